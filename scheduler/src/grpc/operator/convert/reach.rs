//! Converts reachability (which agent reaches which beacon) to messages of the protocol.

use landfall_proto::v1;
use landfall_proto::v1::measurement_failure::Reason;

use super::{count, rtt, timestamp};
use crate::store::measurements::failures::Failure;
use crate::store::measurements::reach::{ReachDirection, Reachability};

impl From<ReachDirection> for v1::Way {
    fn from(way: ReachDirection) -> Self {
        let (trip, reached_at) = way.reached.unzip();
        let (failure, failed_at) = way.failed.unzip();
        let said = |Failure { cause, said }: Failure| v1::MeasurementFailure {
            reason: Reason::from(cause).into(),
            message: said,
        };
        Self {
            prober: way.prober,
            target: way.target,
            beacon_url: way.beacon_url.unwrap_or_default(),
            state: v1::WayState::from(way.reachability).into(),
            rtt: rtt(trip),
            reached_at: reached_at.map(timestamp),
            failure: failure.map(said),
            failed_at: failed_at.map(timestamp),
            next_at: way.next_at.map(timestamp),
        }
    }
}

/// Adds three facts to an agent's state: how many other agents reach this agent, how many other
/// agents it reaches, and the text of one failure in each direction.
pub(in crate::grpc) fn with_ways(response: v1::CheckResponse, ways: &[ReachDirection]) -> v1::CheckResponse {
    let counted = |here: &dyn Fn(&ReachDirection) -> bool, there: fn(&ReachDirection) -> &str| {
        let tried = ways.iter().filter(|way| here(way));
        let with_state = |wanted| tried.clone().filter(|way| way.reachability == wanted).count();
        let (reached, failed) = (with_state(Reachability::Reached), with_state(Reachability::Failed));
        let failure = tried.clone().filter(|way| way.reachability == Reachability::Failed).find_map(|way| {
            let failure = &way.failed.as_ref()?.0;
            let message = if failure.said.is_empty() { failure.to_string() } else { failure.said.clone() };
            Some(v1::BeaconFailure { agent: there(way).to_owned(), message })
        });
        (count(reached), count(reached.saturating_add(failed)), failure)
    };
    let name = response.name.clone();
    let (reached_by, tried_by, not_reached_by) = counted(&|way| way.target == name, |way| &way.prober);
    let (reaches, tries, not_reached) = counted(&|way| way.prober == name, |way| &way.target);
    v1::CheckResponse { reached_by, tried_by, not_reached_by, reaches, tries, not_reached, ..response }
}
