//! Waits for an agent's registration, which must be the first message of a session, and validates
//! it: its slots, its place and the address of its beacon.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use landfall_proto::v1;
use tonic::{Status, Streaming};

use super::message_fields::{clip, lease_key};
use crate::store::agents::sessions::Registration;

/// Maximum number of slots of one agent; the schema has the same bound.
pub(super) const MAX_CAPACITY: u32 = 10_000;
/// Maximum time from the start of the stream to the agent's registration.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads the first message, which must be the registration.
pub(super) async fn first_message(inbound: &mut Streaming<v1::SessionRequest>) -> Result<v1::Register, Status> {
    let first = tokio::time::timeout(REGISTER_TIMEOUT, inbound.message())
        .await
        .map_err(|_| Status::deadline_exceeded("the first message did not come in time"))??;
    match first.and_then(|request| request.message) {
        Some(v1::session_request::Message::Register(register)) => Ok(register),
        _ => Err(Status::invalid_argument("the first message must be `register`")),
    }
}

/// An agent's registration. If the agent gives no URL for its beacon, the session's source address
/// is taken as the beacon's address.
pub(super) fn registration(register: v1::Register, peer: Option<IpAddr>) -> Result<Registration, Status> {
    if !(1..=MAX_CAPACITY).contains(&register.capacity) {
        return Err(Status::invalid_argument(format!(
            "capacity: {} is not within 1 to {MAX_CAPACITY}",
            register.capacity
        )));
    }
    let port = u16::try_from(register.beacon_port)
        .map_err(|_| Status::invalid_argument(format!("beacon_port: {} is not a port", register.beacon_port)))?;
    let beacon_url = match (register.beacon_url.is_empty(), port, peer) {
        (false, _, _) => Some(beacon_url(&register.beacon_url)?),
        (true, 0, _) | (true, _, None) => None,
        (true, port, Some(peer)) => Some(format!("http://{}/", SocketAddr::new(peer.to_canonical(), port))),
    };
    Ok(Registration {
        city: clip(register.city),
        carrier: clip(register.carrier),
        country: clip(register.country),
        capacity: register.capacity,
        version: clip(register.version),
        beacon_url,
        address: peer,
        yields: register.yields,
        process: Some(register.process).filter(|process| *process != 0),
        held: register.held.iter().map(|held| lease_key(held.task_id, held.token)).collect(),
    })
}

fn beacon_url(text: &str) -> Result<String, Status> {
    let url = url::Url::parse(text).map_err(|error| Status::invalid_argument(format!("beacon_url: {error}")))?;
    if url.scheme() != "http" || url.host_str().is_none() {
        return Err(Status::invalid_argument("beacon_url: must be an http URL with a host"));
    }
    Ok(url.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register() -> v1::Register {
        v1::Register { name: "a".into(), capacity: 4, beacon_port: 7180, ..v1::Register::default() }
    }

    #[test]
    fn the_beacon_is_where_the_session_comes_from_unless_said_otherwise() {
        let peer = "192.0.2.7".parse().ok();
        let formed = registration(register(), peer).expect("valid").beacon_url;
        assert_eq!(formed.as_deref(), Some("http://192.0.2.7:7180/"));
        let named = v1::Register { beacon_url: "http://b.example:1/".into(), ..register() };
        assert_eq!(registration(named, peer).expect("valid").beacon_url.as_deref(), Some("http://b.example:1/"));
        let none = v1::Register { beacon_port: 0, ..register() };
        assert_eq!(registration(none, peer).expect("valid").beacon_url, None);
    }

    #[test]
    fn nonsense_in_a_registration_is_named() {
        for (broken, field) in [
            (v1::Register { capacity: 0, ..register() }, "capacity"),
            (v1::Register { beacon_port: 70_000, ..register() }, "beacon_port"),
            (v1::Register { beacon_url: "ftp://x".into(), ..register() }, "beacon_url"),
        ] {
            let status = registration(broken, None).expect_err("refused");
            assert!(status.message().starts_with(field), "{status}");
        }
    }
}
