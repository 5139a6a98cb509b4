//! Measures one host by the metric of its order: finds the host's origin, and takes samples of
//! requests on warm connections, or of TCP handshakes.

use std::time::Duration;

use url::Url;

use super::http::{self, Connection, Endpoint, NoResponse, TimedResponse, why_lost};
use super::icmp;
use super::order_and_result::{HostMeasurement, Metric, Observation, Observer, Phases, ProbeError, ProbeOrder, Target};
use super::request_pacer::RequestPacer;
use super::sample_schedule::{Event, SampleSchedule, Step};
use crate::metrics::{METRICS, SampleResult};
use crate::net::guard::Guard;
use crate::net::origin::Origin;
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
pub(super) async fn measure_paced(
    context: &RequestContext,
    target: &Target,
    order: &ProbeOrder,
    pacer: &mut RequestPacer,
    observe: Observer<'_>,
) -> Result<HostMeasurement, ProbeError> {
    if order.samples == 0 {
        return Err(ProbeError::BadOrder("the number of samples must be at least 1".to_owned()));
    }
    if let Some(origin) = settled_origin(target).filter(|_| order.metric != Metric::Ttfb) {
        let guard = guard_for(context, target);
        let endpoint = http::Endpoint::resolve(context, &guard, origin.clone(), target, order.timeout).await?;
        return measure_below_http(endpoint, order, pacer, observe).await;
    }
    let found = find_origin(context, target, order.timeout, pacer, observe).await?;
    sample_settled(found, order, pacer, observe).await
}

/// Measures a target whose origin was found.
pub(super) async fn sample_settled(
    found: SettledEndpoint<'_>,
    order: &ProbeOrder,
    pacer: &mut RequestPacer,
    observe: Observer<'_>,
) -> Result<HostMeasurement, ProbeError> {
    match order.metric {
        Metric::Ttfb => sample_requests(found, order, pacer, &mut counted(observe)).await,
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
        Metric::Connect | Metric::Ttfb => sample_handshakes(endpoint, order, pacer, observe).await,
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

/// Maximum number of hops from the submitted name to the final origin. A longer chain counts as a
/// loop.
const MAX_HOPS: usize = 5;

/// The origin of a target that needs no search.
pub(super) fn settled_origin(target: &Target) -> Option<&Origin> {
    target.candidates.first().filter(|_| target.candidates.len() == 1 && !may_move(target))
}

/// Whether a redirect inside the registrable domain moves the target to another origin. A target
/// whose origin is known does not move.
const fn may_move(target: &Target) -> bool {
    target.is_unsettled
}

/// The origin that was found, with the connection on which it answered the first request.
pub(crate) struct SettledEndpoint<'a> {
    pub(crate) endpoint: Endpoint<'a>,
    pub(crate) connection: Connection,
    pub(crate) phases: Phases,
    /// Whether the connection can be used for another request.
    pub(super) reusable: bool,
}

/// Finds the origin of a submitted name. `interval` is the pause before every request; `timeout` is
/// the time limit for each request.
pub async fn settle(
    context: &RequestContext,
    name: &str,
    interval: Duration,
    timeout: Duration,
) -> Result<Origin, ProbeError> {
    let target = Target::site(name).map_err(|error| ProbeError::BadOrder(error.to_string()))?;
    Ok(find_origin(context, &target, timeout, &mut RequestPacer::new(interval), &mut |_| {}).await?.endpoint.origin)
}

/// Finds a target's origin, and returns it with the open connection.
pub(crate) async fn find_origin<'a>(
    context: &'a RequestContext,
    target: &Target,
    timeout: Duration,
    pacer: &mut RequestPacer,
    observe: Observer<'_>,
) -> Result<SettledEndpoint<'a>, ProbeError> {
    let (mut found, mut location) = first_that_answers(context, target, timeout, pacer, observe).await?;
    if !may_move(target) {
        return Ok(found);
    }
    for _ in 0..MAX_HOPS {
        let Some(next) = location.as_deref().and_then(|location| moved_to(&found.endpoint.origin, location)) else {
            return Ok(found);
        };
        match answer_of(context, target, next, timeout, pacer, observe).await {
            Ok(moved) => (found, location) = moved,
            Err(refused @ ProbeError::Guard(_)) => return Err(refused),
            // The new origin does not respond, so keep the origin that responded.
            Err(_) => return Ok(found),
        }
    }
    Ok(found)
}

/// The origin to which a redirect moves the site at `origin`. `None` if the redirect stays in this
/// origin or leaves the registrable domain.
fn moved_to(origin: &Origin, location: &str) -> Option<Origin> {
    let base = Url::parse(&format!("{origin}/")).ok()?;
    let target = Origin::of(&base.join(location).ok()?).ok()?;
    (target != *origin && origin.same_site(&target)).then_some(target)
}

async fn first_that_answers<'a>(
    context: &'a RequestContext,
    target: &Target,
    timeout: Duration,
    pacer: &mut RequestPacer,
    observe: Observer<'_>,
) -> Result<(SettledEndpoint<'a>, Option<String>), ProbeError> {
    let mut failure = None;
    for origin in &target.candidates {
        match answer_of(context, target, origin.clone(), timeout, pacer, observe).await {
            Ok(found) => return Ok(found),
            // Trying the other scheme would fail too, because the name and the addresses are the
            // same.
            Err(error @ (ProbeError::Dns(_) | ProbeError::Guard(_))) => return Err(error),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| ProbeError::BadOrder("no origin to try".to_owned())))
}

async fn answer_of<'a>(
    context: &'a RequestContext,
    target: &Target,
    origin: Origin,
    timeout: Duration,
    pacer: &mut RequestPacer,
    observe: Observer<'_>,
) -> Result<(SettledEndpoint<'a>, Option<String>), ProbeError> {
    let guard = guard_for(context, target);
    let mut endpoint = Endpoint::resolve(context, &guard, origin, target, timeout).await?;
    let (mut connection, phases, mut answer) = endpoint.warm_up(pacer, observe).await?;
    observe(Observation::WarmUp(answer.rtt));
    if may_move(target) && endpoint.refuses_head() && answer.reusable {
        // A server that refuses HEAD may still answer a GET with a redirect.
        answer = endpoint.get(&mut connection, pacer).await?;
    }
    Ok((SettledEndpoint { endpoint, connection, phases, reusable: answer.reusable }, answer.location))
}

fn guard_for(context: &RequestContext, target: &Target) -> Guard {
    if target.enrolled { context.guard.for_beacon() } else { context.guard.clone() }
}

/// Takes samples with requests on a warm connection.
async fn sample_requests(
    found: SettledEndpoint<'_>,
    order: &ProbeOrder,
    pacer: &mut RequestPacer,
    observe: Observer<'_>,
) -> Result<HostMeasurement, ProbeError> {
    let SettledEndpoint { mut endpoint, connection, phases, reusable } = found;
    let mut connection = reusable.then_some(connection);
    let mut schedule = SampleSchedule::warm(order.samples);
    let mut samples = Vec::new();
    let mut failure = None;
    loop {
        let event = match schedule.next() {
            Step::Done => break,
            Step::WarmUp | Step::ColdSample => match endpoint.warm_up(pacer, observe).await {
                Ok((_, _, answer)) if schedule.next() == Step::ColdSample => {
                    observe(Observation::Sample(answer.rtt));
                    samples.push(answer.rtt);
                    Event::AnsweredAndClosed
                }
                Ok((warm, _, answer)) => {
                    observe(Observation::WarmUp(answer.rtt));
                    connection = answer.reusable.then_some(warm);
                    Event::Warmed
                }
                Err(error) => {
                    observe(Observation::Lost(error.to_string()));
                    failure = Some(error);
                    Event::WarmUpFailed
                }
            },
            Step::Sample => {
                pacer.pause().await;
                match one_sample(&endpoint, &mut connection, pacer).await? {
                    Ok(answer) => {
                        observe(Observation::Sample(answer.rtt));
                        samples.push(answer.rtt);
                        if answer.reusable { Event::Answered } else { Event::AnsweredAndClosed }
                    }
                    Err(NoResponse::Closed) => Event::Closed,
                    Err(unanswered) => {
                        failure = Some(why_lost(&endpoint.origin, &unanswered));
                        observe(Observation::Lost(unanswered.into()));
                        Event::Lost
                    }
                }
            }
        };
        schedule.record(event);
        if matches!(event, Event::Answered | Event::AnsweredAndClosed) && order.is_enough(&samples) {
            break;
        }
    }
    if samples.is_empty() {
        let reason = "the connection is closed before a second request".to_owned();
        return Err(failure.unwrap_or(ProbeError::Protocol { origin: endpoint.origin.to_string(), reason }));
    }
    let address = endpoint.address();
    Ok(HostMeasurement { origin: Some(endpoint.origin), address, phases, samples, lost: schedule.lost() })
}

/// Takes one sample on the warm connection. Removes the connection if it cannot be used again.
async fn one_sample(
    endpoint: &Endpoint<'_>,
    connection: &mut Option<Connection>,
    pacer: &mut RequestPacer,
) -> Result<Result<TimedResponse, NoResponse>, ProbeError> {
    let Some(mut warm) = connection.take().filter(|warm| !warm.is_closed()) else {
        return Ok(Err(NoResponse::Closed));
    };
    pacer.spend();
    let answer = endpoint.sample(&mut warm).await?;
    if matches!(&answer, Ok(answer) if answer.reusable) {
        *connection = Some(warm);
    }
    Ok(answer)
}

async fn sample_handshakes(
    mut endpoint: Endpoint<'_>,
    order: &ProbeOrder,
    pacer: &mut RequestPacer,
    observe: Observer<'_>,
) -> Result<HostMeasurement, ProbeError> {
    let mut samples = Vec::new();
    let (mut lost, mut failure) = (0, None);
    for _ in 0..order.samples {
        pacer.pause().await;
        pacer.spend();
        match endpoint.tcp().await {
            Ok(connected) => {
                observe(Observation::Sample(connected.took));
                samples.push(connected.took);
                if order.is_enough(&samples) {
                    break;
                }
            }
            Err(error) => {
                lost += 1;
                observe(Observation::Lost(error.to_string()));
                failure = Some(error);
            }
        }
    }
    let phases = Phases { dns: endpoint.dns, connect: samples.first().copied(), tls: None };
    match failure {
        Some(error) if samples.is_empty() => Err(error),
        _ => Ok(HostMeasurement { address: endpoint.address(), origin: Some(endpoint.origin), phases, samples, lost }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(text: &str) -> Origin {
        text.parse().unwrap()
    }

    #[test]
    fn redirects_move_a_site_only_inside_its_domain() {
        let from = origin("http://example.com.cn");
        let moved = |location: &str| moved_to(&from, location).map(|to| to.to_string());
        assert_eq!(moved("https://www.example.com.cn/index").as_deref(), Some("https://www.example.com.cn"));
        assert_eq!(moved("//m.example.com.cn/").as_deref(), Some("http://m.example.com.cn"));
        assert_eq!(moved("/index.html"), None);
        assert_eq!(moved("http://example.com.cn/x"), None);
        assert_eq!(moved("https://other.com.cn/"), None);
        assert_eq!(moved("https://com.cn/"), None);
        assert_eq!(moved("http://127.0.0.1/"), None);
        assert_eq!(moved("ftp://www.example.com.cn/"), None);
        assert_eq!(moved("http://"), None);
        assert_eq!(moved_to(&origin("http://10.0.0.1"), "http://11.0.0.1/"), None);
        assert!(moved_to(&origin("http://10.0.0.1"), "https://10.0.0.1/").is_some());
    }
}
