//! Converts reachability (which agent reaches which beacon) to messages of the protocol.

use landfall_proto::v1;
use landfall_proto::v1::measurement_failure::Reason;

use super::{rtt, timestamp};
use crate::store::measurements::failures::Failure;
use crate::store::measurements::reach::ReachDirection;

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
