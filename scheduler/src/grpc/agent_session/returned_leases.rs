//! Takes back the leases that an agent returns.

use std::time::Duration;

use landfall_proto::v1;
use tokio::time::Instant;
use tonic::Status;

use super::message_fields::{LONGEST_PAUSE, clip, lease_key};
use super::session_state::Session;
use crate::grpc::operator::convert::plain;
use crate::model::{LeaseToken, TaskId};
use crate::store;
use crate::store::agents::refusals::{self, Refusal};
use crate::store::leases::{self, preemptions};
use crate::store::schema::restores;

/// Time during which an agent gets no leases after it returned a lease because it had no room or
/// could not begin the crawl. Without this pause, the agent would get the same lease again at once.
const REFUSAL_PAUSE: Duration = Duration::from_secs(5);

/// A parsed message with which an agent returns a lease.
#[derive(Debug)]
struct Released {
    task: TaskId,
    token: LeaseToken,
    /// The error with which the crawl crashed, if it crashed.
    crash: Option<String>,
    /// The pause that the site requested; always `None` after a crash.
    pause: Option<Duration>,
}

impl Session {
    pub(super) async fn release(&mut self, release: v1::LeaseRelease) -> Result<(), Status> {
        let Released { task, token, crash, pause } = released_by(release);
        let most = self.scheduler.config.lease.max_crashes;
        let mut tx = store::begin(&self.scheduler.pool).await?;
        let asked_for =
            crash.is_none() && pause.is_none() && preemptions::release(&mut tx, self.agent, task, token).await?;
        let released = match pause {
            _ if asked_for => true,
            Some(pause) => leases::pause(&mut tx, self.agent, task, token, pause).await?,
            None => leases::release(&mut tx, self.agent, task, token, crash.as_deref(), most).await?,
        };
        // If the lease was granted to this agent but has already ended, no refusal is counted.
        let holder = leases::holder(&mut tx, task, token).await?;
        if !released && holder != Some(self.agent) {
            let refusal = match holder {
                Some(_) => Refusal::ForeignLease,
                None => {
                    let floor = restores::floor(&mut tx).await?;
                    restores::blame(token.get(), floor, Refusal::ForgedToken)
                }
            };
            let detail = format!("task {task}, token {token}: hands back {refusal}");
            refusals::count(&mut tx, self.agent, refusal, &detail).await?;
        }
        store::commit(tx).await?;
        if released {
            if let Some(crash) = crash {
                tracing::warn!(agent.name = self.name, task.id = %task, token = %token, crash, "a crawl crashed");
            }
            // `REFUSAL_PAUSE` applies only if the agent could not crawl. A lease that was
            // preempted, or returned because of the site, does not mean that the agent has no room.
            if pause.is_none() && !asked_for {
                self.grants_from = Instant::now() + REFUSAL_PAUSE;
            }
            // A draining agent does not get the lease again, so another agent must be chosen.
            self.scheduler.wakes.assign.notify_one();
        }
        Ok(())
    }
}

fn released_by(release: v1::LeaseRelease) -> Released {
    let (task, token) = lease_key(release.task_id, release.token);
    let crash = Some(clip(release.crash)).filter(|crash| !crash.is_empty());
    let pause = plain(release.not_before).filter(|_| crash.is_none()).map(|pause| pause.min(LONGEST_PAUSE));
    Released { task, token, crash, pause }
}
