//! Measures the round trip to a host. `probe::http` and `probe::icmp` send requests.
//! `probe::measure_host` finds a site's origin and takes samples. `probe::sample_schedule` decides
//! a prober's next step, and when to stop. `probe::weighted_mean` summarises the samples.
//!
//! The prober pauses before *every* request. So even if several probers measure a host one after
//! another, the host gets at most one request per interval. Requests go only to addresses that the
//! guard has vetted, and always have a user agent.

pub use address_locks::AddressLock;
pub use measure_host::measure;
pub use order_and_result::{
    ConnectFailure, HostMeasurement, Metric, Observation, Observer, Phases, ProbeError, ProbeOrder, Target,
};

pub(crate) use request_pacer::RequestPacer;

mod address_locks;
pub mod http;
pub mod icmp;
pub mod locked_measurement;
pub mod measure_host;
mod order_and_result;
mod request_pacer;
pub mod sample_schedule;
pub mod sharing;
#[cfg(test)]
mod tests;
pub mod weighted_mean;
