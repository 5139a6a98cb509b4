//! Measures the round trip to a host. `probe::http` and `probe::icmp` send requests.
//! `probe::sample_schedule` decides a prober's next step, and `probe::stopping_rule` decides when
//! to stop. `probe::weighted_mean` summarises the samples. `probe::origin_search` finds a site's
//! origin.
//!
//! The prober pauses before *every* request. So even if several probers measure a host one after
//! another, the host gets at most one request per interval. Requests go only to addresses that the
//! guard has vetted, and always have a user agent.

pub use address_lock::AddressLock;
pub use error::{ConnectFailure, ProbeError};
pub use measure_host::measure;
pub use measurement_result::{HostMeasurement, Observation, Observer, Phases};
pub(crate) use pacer::RequestPacer;
pub use probe_order::{Metric, ProbeOrder};
pub use target::Target;

mod address_lock;
mod error;
mod handshakes;
pub mod http;
pub mod icmp;
pub mod locked_measurement;
mod measure_host;
mod measurement_result;
pub mod origin_search;
mod pacer;
mod probe_order;
pub mod sample_schedule;
mod sampling;
pub mod sharing;
pub mod stopping_rule;
mod target;
#[cfg(test)]
mod tests;
pub mod weighted_mean;
