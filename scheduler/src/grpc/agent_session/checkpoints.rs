//! Stores the checkpoints of an agent's crawls.

use landfall_proto::v1;
use tonic::Status;

use super::message_fields::{LONGEST_PAUSE, clip, lease_key};
use super::session_state::Session;
use crate::grpc::operator::convert::plain;
use crate::store::leases::checkpoints::{self, Checkpoint, RateState};

impl Session {
    /// Stores a crawl's checkpoint, unless the agent no longer has the lease.
    pub(super) async fn keep(&self, checkpoint: v1::CrawlCheckpoint) -> Result<(), Status> {
        let checkpoint = checkpoint_of(checkpoint)?;
        let mut conn = self.connection().await?;
        if !checkpoints::save(&mut conn, self.agent, self.session, &checkpoint).await? {
            let (task, token) = (checkpoint.task, checkpoint.token);
            tracing::debug!(agent.name = self.name, task.id = %task, token = %token, "a checkpoint of a lease that is not held");
        }
        Ok(())
    }
}

fn checkpoint_of(checkpoint: v1::CrawlCheckpoint) -> Result<Checkpoint, Status> {
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
