//! Measures by ICMP echo if the system permits unprivileged ICMP sockets
//! (`net.ipv4.ping_group_range`) or raw sockets.

use std::net::{IpAddr, SocketAddr};

use surge_ping::{Client, Config, ICMP, PingIdentifier, PingSequence};

use super::http::Endpoint;
use super::order_and_result::{ConnectFailure, HostMeasurement, Observation, Observer, Phases, ProbeError, ProbeOrder};
use super::request_pacer::RequestPacer;

const PAYLOAD: [u8; 32] = *b"landfall-agent measures distance";

pub(crate) async fn sample(
    endpoint: Endpoint<'_>,
    order: &ProbeOrder,
    pacer: &mut RequestPacer,
    observe: Observer<'_>,
) -> Result<HostMeasurement, ProbeError> {
    let address = endpoint.address();
    let client = client(address, endpoint.bind())
        .map_err(|error| ProbeError::NotPermitted(format!("ICMP is not permitted here: {error}")))?;
    let mut pinger = client.pinger(address, identifier()).await;
    pinger.timeout(order.timeout);
    let mut samples = Vec::new();
    let mut lost = 0;
    let mut failure = None;
    for number in 0..order.samples {
        pacer.pause().await;
        pacer.spend();
        let sequence = PingSequence(u16::try_from(number & 0xffff).unwrap_or(0));
        match pinger.ping(sequence, &PAYLOAD).await {
            Ok((_, rtt)) => {
                observe(Observation::Sample(rtt));
                samples.push(rtt);
                if order.is_enough(&samples) {
                    break;
                }
            }
            Err(error) => {
                observe(Observation::Lost(error.to_string()));
                lost += 1;
                failure = Some(error);
            }
        }
    }
    let phases = Phases { dns: endpoint.dns, connect: None, tls: None };
    match failure {
        Some(surge_ping::SurgeError::IOError(error)) if samples.is_empty() => {
            let cause = ConnectFailure::from(error.kind());
            Err(ProbeError::Connect { origin: endpoint.origin.to_string(), address, reason: error.to_string(), cause })
        }
        Some(_) if samples.is_empty() => Err(ProbeError::Timeout(endpoint.origin.to_string())),
        _ => Ok(HostMeasurement { origin: Some(endpoint.origin), address, phases, samples, lost }),
    }
}

/// A random identifier. A process id would not be unique. Every raw socket of a machine receives
/// the replies to all containers, and processes in two containers may have the same id.
fn identifier() -> PingIdentifier {
    PingIdentifier(rand::random())
}

fn client(address: IpAddr, bind: Option<IpAddr>) -> std::io::Result<Client> {
    let kind = if address.is_ipv4() { ICMP::V4 } else { ICMP::V6 };
    let mut config = Config::builder().kind(kind);
    if let Some(bind) = bind {
        config = config.bind(SocketAddr::new(bind, 0));
    }
    Client::new(&config.build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_measurements_do_not_share_an_identifier() {
        let first = identifier();
        assert!((0..8).any(|_| identifier() != first));
    }
}
