//! What an agent has to keep to on its stream: it introduces itself first and in time, and its heartbeats are not from the future.

use std::time::Duration;

use landfall_proto::v1;
use tonic::{Status, Streaming};

/// How long an agent that handed a lease back is granted nothing: it has no room, or could not begin. At once it would
/// get the same lease again.
pub(super) const REFUSAL_PAUSE: Duration = Duration::from_secs(5);
/// How long an agent may take to introduce itself.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads the first message, which must be the agent's introduction.
pub(super) async fn first_message(inbound: &mut Streaming<v1::SessionRequest>) -> Result<v1::Register, Status> {
    let first = tokio::time::timeout(REGISTER_TIMEOUT, inbound.message())
        .await
        .map_err(|_| Status::deadline_exceeded("the first message did not come in time"))??;
    match first.and_then(|request| request.message) {
        Some(v1::session_request::Message::Register(register)) => Ok(register),
        _ => Err(Status::invalid_argument("the first message must be `register`")),
    }
}

/// Heartbeats that an agent can have sent since it was welcomed. It strays from its interval by a fifth; the double of that
/// and a few more are nobody's clock.
pub(super) fn most_heartbeats(elapsed: Duration, interval: Duration) -> u64 {
    let intervals = elapsed.as_nanos() / interval.as_nanos().max(1);
    u64::try_from(intervals).unwrap_or(u64::MAX).saturating_mul(2).saturating_add(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_keeps_its_interval_is_never_from_the_future() {
        let interval = Duration::from_secs(10);
        // The fastest: a fifth early every time.
        for sequence in 1..10_000 {
            let elapsed = interval.mul_f64(0.8) * sequence;
            assert!(u64::from(sequence) <= most_heartbeats(elapsed, interval), "{sequence}");
        }
        assert_eq!(most_heartbeats(Duration::ZERO, interval), 4);
        assert_eq!(most_heartbeats(Duration::from_secs(3600), interval), 724);
        assert_eq!(
            most_heartbeats(Duration::from_secs(1), Duration::ZERO),
            2_000_000_004,
            "no interval is no division by it"
        );
    }
}
