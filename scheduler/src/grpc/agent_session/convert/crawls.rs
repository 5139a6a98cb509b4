//! Converts the messages between agents and the scheduler about running crawls.

use std::time::Duration;

use landfall_proto::v1;
use tonic::Status;

use super::{clip, lease_key, plain, respond};
use crate::model::{AgentId, LeaseToken, SessionId, TaskId};
use crate::store::leases::checkpoints::{self, Checkpoint, RateState};
use crate::store::sites::addresses::PermitRequest;

/// Maximum length of one pause that a site can request.
const LONGEST_PAUSE: Duration = Duration::from_secs(7 * 24 * 3600);

/// A parsed message with which an agent returns a lease.
#[derive(Debug)]
pub(in crate::grpc) struct Released {
    pub(in crate::grpc) task: TaskId,
    pub(in crate::grpc) token: LeaseToken,
    /// The error with which the crawl crashed, if it crashed.
    pub(in crate::grpc) crash: Option<String>,
    /// The pause that the site requested; always `None` after a crash.
    pub(in crate::grpc) pause: Option<Duration>,
}

pub(in crate::grpc) fn release(release: v1::LeaseRelease) -> Released {
    let (task, token) = lease_key(release.task_id, release.token);
    let crash = Some(clip(release.crash)).filter(|crash| !crash.is_empty());
    let pause = plain(release.not_before).filter(|_| crash.is_none()).map(|pause| pause.min(LONGEST_PAUSE));
    Released { task, token, crash, pause }
}

pub(in crate::grpc) fn permit_request(
    asked: &v1::PermitRequest,
    agent: AgentId,
    session: SessionId,
) -> Result<PermitRequest, Status> {
    let (task, token) = lease_key(asked.task_id, asked.token);
    let address = asked.address.parse().map_err(|_| {
        Status::invalid_argument(format!("address: '{}' is not an IP address", clip(asked.address.clone())))
    })?;
    Ok(PermitRequest { agent, session, task, token, address })
}

/// The answer to a crawl that asks whether it may use an address. `reason` says why the address is
/// refused; `None` if it is permitted.
pub(in crate::grpc) fn permit_answer(asked: v1::PermitRequest, reason: Option<String>) -> v1::SessionResponse {
    let v1::PermitRequest { task_id, token, address } = asked;
    respond(v1::session_response::Message::Permit(v1::PermitAnswer {
        task_id,
        token,
        address,
        granted: reason.is_none(),
        reason: reason.unwrap_or_default(),
    }))
}

pub(in crate::grpc) fn checkpoint(checkpoint: v1::CrawlCheckpoint) -> Result<Checkpoint, Status> {
    let v1::CrawlCheckpoint { task_id, token, pages, state, rate_state } = checkpoint;
    if state.len() > checkpoints::MOST_BYTES {
        let most = checkpoints::MOST_BYTES;
        return Err(Status::invalid_argument(format!("state: {} bytes when at most {most} are kept", state.len())));
    }
    let (task, token) = lease_key(task_id, token);
    let rate_state = rate_state.unwrap_or_default();
    let rate_state = RateState {
        interval: plain(rate_state.interval).map(|interval| interval.min(LONGEST_PAUSE)),
        pause: plain(rate_state.pause).map(|pause| pause.min(LONGEST_PAUSE)),
        turned_away: rate_state.turned_away,
        failed_in_a_row: rate_state.failed_in_a_row,
        recent_requests: rate_state.recent_requests,
        recent_errors: rate_state.recent_errors,
        last_error: clip(rate_state.last_error),
    };
    Ok(Checkpoint { task, token, pages, state, rate_state })
}
