//! Carries out a schedule: takes samples on warm connections.

use super::error::ProbeError;
use super::http::{Connection, Endpoint, NoResponse, TimedResponse, why_lost};
use super::measurement_result::{HostMeasurement, Observation, Observer};
use super::origin_search::SettledEndpoint;
use super::pacer::RequestPacer;
use super::probe_order::ProbeOrder;
use super::sample_schedule::{Event, SampleSchedule, Step};

/// Takes samples with requests on a warm connection.
pub(crate) async fn sample(
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
