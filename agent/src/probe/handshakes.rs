//! Measures TCP handshakes.

use super::error::ProbeError;
use super::http::Endpoint;
use super::measurement_result::{HostMeasurement, Observation, Observer, Phases};
use super::pacer::RequestPacer;
use super::probe_order::ProbeOrder;

pub(crate) async fn sample(
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
