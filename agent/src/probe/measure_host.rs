//! Measures one host by the metric of its order: finds the host's origin if that is needed, and
//! takes the samples.

use super::error::ProbeError;
use super::measurement_result::{HostMeasurement, Observation, Observer};
use super::pacer::RequestPacer;
use super::probe_order::{Metric, ProbeOrder};
use super::target::Target;
use super::{handshakes, http, icmp, origin_search, sampling};
use crate::metrics::{METRICS, SampleResult};
use crate::net::request_context::RequestContext;

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
    if let Some(origin) = origin_search::settled_origin(target).filter(|_| order.metric != Metric::Ttfb) {
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
        Metric::Connect | Metric::Ttfb => handshakes::sample(endpoint, order, pacer, observe).await,
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
