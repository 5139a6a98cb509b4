//! Measures the round trip to a host. `probe::http` and `probe::icmp` send requests.
//! `probe::sample_schedule` decides a prober's next step, and `probe::stopping_rule` decides when
//! to stop. `probe::weighted_mean` summarises the samples. `probe::origin_search` finds a site's
//! origin.
//!
//! The prober pauses before *every* request. So even if several probers measure a host one after
//! another, the host gets at most one request per interval. Requests go only to addresses that the
//! guard has vetted, and always have a user agent.

use crate::metrics::{METRICS, SampleResult};
use crate::net::request_context::RequestContext;
pub use address_lock::AddressLock;
pub use error::{ConnectFailure, ProbeError};
pub use host_measurement::{HostMeasurement, Observation, Observer, Phases};
pub(crate) use pacer::RequestPacer;
pub use probe_order::{Metric, ProbeOrder};
pub use target::Target;

mod address_lock;
mod error;
mod host_measurement;
pub mod http;
pub mod icmp;
pub mod locked_measurement;
pub mod origin_search;
mod pacer;
mod probe_order;
pub mod sample_schedule;
mod sampling;
pub mod sharing;
pub mod stopping_rule;
mod target;
pub mod weighted_mean;

/// Measures one host. Fails if no sample was answered.
pub async fn measure(
    context: &RequestContext,
    target: &Target,
    order: &ProbeOrder,
    observe: Observer<'_>,
) -> Result<HostMeasurement, ProbeError> {
    measure_paced(context, target, order, &mut RequestPacer::new(order.interval), observe).await
}

/// Measures one host. The caller's pacer pauses before every request.
pub(crate) async fn measure_paced(
    context: &RequestContext,
    target: &Target,
    order: &ProbeOrder,
    pacer: &mut RequestPacer,
    observe: Observer<'_>,
) -> Result<HostMeasurement, ProbeError> {
    if order.samples == 0 {
        return Err(ProbeError::BadOrder("the number of samples must be at least 1".to_owned()));
    }
    if let Some(origin) = target.settled_origin().filter(|_| order.metric != Metric::Ttfb) {
        let guard = origin_search::guard_for(context, target);
        let endpoint = http::Endpoint::resolve(context, &guard, origin.clone(), target, order.timeout).await?;
        return measure_below_http(endpoint, order, pacer, observe).await;
    }
    let found = origin_search::find(context, target, order.timeout, pacer, observe).await?;
    sample_settled(found, order, pacer, observe).await
}

/// Measures a target whose origin was found.
pub(crate) async fn sample_settled(
    found: origin_search::SettledEndpoint<'_>,
    order: &ProbeOrder,
    pacer: &mut RequestPacer,
    observe: Observer<'_>,
) -> Result<HostMeasurement, ProbeError> {
    match order.metric {
        Metric::Ttfb => sampling::sample(found, order, pacer, &mut counted(observe)).await,
        Metric::Connect | Metric::Icmp => {
            drop(found.connection);
            measure_below_http(found.endpoint, order, pacer, observe).await
        }
    }
}

async fn measure_below_http(
    endpoint: http::Endpoint<'_>,
    order: &ProbeOrder,
    pacer: &mut RequestPacer,
    observe: Observer<'_>,
) -> Result<HostMeasurement, ProbeError> {
    let observe = &mut counted(observe);
    match order.metric {
        Metric::Icmp => icmp::sample(endpoint, order, pacer, observe).await,
        Metric::Connect | Metric::Ttfb => sampling::handshakes(endpoint, order, pacer, observe).await,
    }
}

/// Wraps an observer, so that samples are also counted for metrics.
fn counted(observe: Observer<'_>) -> impl FnMut(Observation) + Send {
    |observation| {
        match observation {
            Observation::Sample(_) => METRICS.sampled(SampleResult::Answered),
            Observation::Lost(_) => METRICS.sampled(SampleResult::Lost),
            Observation::Connected { .. } | Observation::WarmUp(_) => {}
        }
        observe(observation);
    }
}

#[cfg(test)]
mod tests;
