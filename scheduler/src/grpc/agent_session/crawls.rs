//! Handles an agent's messages about running crawls: progress, requests to use an address, and
//! returned leases.

use std::time::Duration;

use landfall_proto::v1;
use tokio::time::Instant;
use tonic::Status;

use super::convert;
use super::session::Session;
use crate::store;
use crate::store::agents::refusals::{self, Refusal};
use crate::store::leases::{self, checkpoints, preemptions};
use crate::store::schema::restores;
use crate::store::sites::addresses::{self, PermitResult};

/// Time during which an agent gets no leases after it returned a lease because it had no room or
/// could not begin the crawl. Without this pause, the agent would get the same lease again at once.
const REFUSAL_PAUSE: Duration = Duration::from_secs(5);

impl Session {
    pub(super) async fn release(&mut self, release: v1::LeaseRelease) -> Result<(), Status> {
        let convert::Released { task, token, crash, pause } = convert::release(release);
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

    /// Stores a crawl's checkpoint, unless the agent no longer has the lease.
    pub(super) async fn keep(&self, checkpoint: v1::CrawlCheckpoint) -> Result<(), Status> {
        let checkpoint = convert::checkpoint(checkpoint)?;
        let mut conn = self.connection().await?;
        if !checkpoints::save(&mut conn, self.agent, self.session, &checkpoint).await? {
            let (task, token) = (checkpoint.task, checkpoint.token);
            tracing::debug!(agent.name = self.name, task.id = %task, token = %token, "a checkpoint of a lease that is not held");
        }
        Ok(())
    }

    /// Answers whether a crawl may send requests to an address. If the agent no longer has the
    /// lease, no answer is sent, because another message tells the agent that the lease has ended.
    pub(super) async fn permit(&mut self, asked: v1::PermitRequest) -> Result<(), Status> {
        let request = convert::permit_request(&asked, self.agent, self.session)?;
        let cap = self.scheduler.config.politeness.crawls_at_address;
        addresses::note_address(&mut *self.connection().await?, &request).await?;
        let mut tx = store::begin(&self.scheduler.pool).await?;
        let answer = addresses::permit(&mut tx, &request, cap).await?;
        store::commit(tx).await?;
        let reason = match answer {
            PermitResult::NotHeld => {
                tracing::debug!(agent.name = self.name, task.id = %request.task, "an address for a lease that is not held");
                return Ok(());
            }
            PermitResult::Granted => None,
            PermitResult::Full { crawls } => {
                self.free = self.free.saturating_add(1);
                self.wake.notify_one();
                Some(format!("{crawls} crawled at {}", request.address))
            }
        };
        self.send(convert::permit_answer(asked, reason)).await
    }
}
