//! Shows which agents reach which agents' beacons, and why a beacon is not reached.

use landfall_proto::v1;
use landfall_proto::v1::measurement_failure::Reason;
use tonic::Status;

use crate::Scheduler;
use crate::store;
use crate::store::measurements::failures::Failure;
use crate::store::measurements::reach::{self, ReachDirection, ReachFilter};

use super::convert::{InvalidField, rtt, timestamp};
use super::named;

pub(super) async fn show(
    scheduler: &Scheduler,
    request: v1::ShowReachRequest,
) -> Result<v1::ShowReachResponse, Status> {
    let v1::ShowReachRequest { agent, other } = request;
    if agent == other {
        return Err(itself("other", &agent).into());
    }
    let config = &scheduler.config.measure;
    let mut conn = store::acquire(&scheduler.pool).await?;
    let agent = named::agent(&mut conn, &agent).await?;
    let other = if other.is_empty() { None } else { Some(named::agent(&mut conn, &other).await?) };
    if other.as_ref() == Some(&agent) {
        return Err(itself("other", &agent.name).into());
    }
    let asked = ReachFilter {
        agent: agent.id,
        other: other.map(|other| other.id),
        max_age: config.mesh_max_age,
        max_peers: config.max_mesh_peers,
    };
    let mut ways = reach::ways(&mut conn, &asked).await?;
    if asked.other.is_some() {
        ways.sort_by_key(|way| way.prober != agent.name);
    }
    Ok(v1::ShowReachResponse { ways: ways.into_iter().map(Into::into).collect() })
}

/// The error for a request that must name two different agents but names the same agent twice.
fn itself(field: &str, name: &str) -> InvalidField {
    InvalidField::new(field, format!("{name} is named twice: name two different agents"))
}

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
