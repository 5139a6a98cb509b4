//! The leases of a session's agent: sends the orders that the store holds, to crawl leased sites
//! and to stop crawls whose lease was revoked or preempted. Takes back returned leases, stores
//! checkpoints, and answers requests for permits to use a site's address.

use std::collections::HashMap;
use std::time::Duration;

use landfall_proto::v1;
use tokio::time::Instant;
use tonic::Status;

use super::measurements::measure_order;
use super::session::{LONGEST_PAUSE, Session, clip, lease_key, respond};
use crate::grpc::operator::convert::plain;
use crate::model::{AgentId, LeaseToken, PolicyRequest, SessionId, TaskId};
use crate::store;
use crate::store::agents::refusals::{self, Refusal};
use crate::store::agents::sessions;
use crate::store::leases::checkpoints::{self, Checkpoint, RateState};
use crate::store::leases::preemptions::{self, PreemptionOrder};
use crate::store::leases::{self, Grant};
use crate::store::measurements::orders;
use crate::store::schema::backup_and_restore;
use crate::store::sites::addresses::{self, PermitRequest, PermitResult};
use crate::strategy::explain;

/// Maximum number of checkpoints in memory at the same time. Each checkpoint has up to 1 MiB.
const CHECKPOINTS_AT_ONCE: usize = 8;

impl Session {
    /// Sends the messages that the store holds for this agent. If there are none, which is the
    /// usual case, no row is locked or written.
    pub(super) async fn push(&mut self) -> Result<(), Status> {
        let mut conn = self.connection().await?;
        let waiting = sessions::waiting(&mut conn, self.agent, self.session).await?;
        drop(conn);
        // Without this check, the agent of an ended session would continue until its next
        // heartbeat, and meanwhile crawl sites whose tasks other agents have leased.
        let Some(waiting) = waiting else { return Err(self.ended().await?) };
        (self.free, self.waits) = (waiting.free, waiting.tasks);
        let waiting = sessions::PendingMessages { tasks: waiting.tasks && self.may_grant(), ..waiting };
        let any = waiting.orders || waiting.revocations || waiting.preemptions || waiting.leases();
        if any { self.hand_out(waiting).await } else { Ok(()) }
    }

    async fn hand_out(&mut self, waiting: sessions::PendingMessages) -> Result<(), Status> {
        let (mut orders, mut revoked, mut preempted, mut grants) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut tx = store::begin(&self.scheduler.pool).await?;
        if waiting.orders {
            orders = orders::take_unsent(&mut tx, self.agent, self.session).await?;
        }
        if waiting.revocations {
            revoked = leases::take_revoked(&mut tx, self.session).await?;
        }
        if waiting.preemptions {
            preempted = preemptions::take_unsent(&mut tx, self.agent, self.session).await?;
        }
        if waiting.leases() {
            grants = leases::grant(&mut tx, self.agent, self.session).await?;
        }
        store::commit(tx).await?;
        // Revocations are sent first, because each revocation frees a slot for a new lease.
        for (task, token) in revoked {
            self.send(cancel_order(task, token)).await?;
        }
        for order in preempted {
            self.send(preempt_order(&order)).await?;
        }
        for order in orders {
            let config = &self.scheduler.config;
            self.send(measure_order(order, &config.measure, &config.confirm)).await?;
        }
        self.send_orders(grants).await
    }

    /// Sends crawl orders for granted leases.
    pub(super) async fn send_orders(&mut self, grants: Vec<Grant>) -> Result<(), Status> {
        self.free = self.free.saturating_sub(i64::try_from(grants.len()).unwrap_or(i64::MAX));
        let mut grants = grants.into_iter().peekable();
        while grants.peek().is_some() {
            let some: Vec<Grant> = grants.by_ref().take(CHECKPOINTS_AT_ONCE).collect();
            let mut states = self.checkpoints(&some).await?;
            let pages = self.last_pages(&some).await?;
            for grant in some {
                let state = states.remove(&grant.task).unwrap_or_default();
                let last_pages = pages.get(&grant.task).copied();
                self.send(crawl_order(grant, state, last_pages)).await?;
            }
        }
        Ok(())
    }

    /// The checkpoints of granted tasks. No other agent writes these checkpoints in the meantime,
    /// because only this agent has the leases.
    async fn checkpoints(&self, grants: &[Grant]) -> Result<HashMap<TaskId, Vec<u8>>, Status> {
        let again: Vec<TaskId> = grants.iter().filter(|grant| grant.token.get() > 1).map(|grant| grant.task).collect();
        if again.is_empty() {
            return Ok(HashMap::new());
        }
        Ok(checkpoints::of(&mut *self.connection().await?, &again).await?)
    }

    /// The number of pages in the last crawl of each granted task's site. The number is read only
    /// if the crawl rate depends on it.
    async fn last_pages(&self, grants: &[Grant]) -> Result<HashMap<TaskId, u32>, Status> {
        let depends = |grant: &&Grant| grant.policy.shortest_interval < grant.policy.request_interval;
        let asked: Vec<TaskId> = grants.iter().filter(depends).map(|grant| grant.task).collect();
        if asked.is_empty() {
            return Ok(HashMap::new());
        }
        Ok(store::leases::last_pages(&mut *self.connection().await?, &asked).await?)
    }
}

fn cancel_order(task: TaskId, token: LeaseToken) -> v1::SessionResponse {
    respond(v1::session_response::Message::Cancel(v1::CancelOrder { task_id: task.get(), token: token.get() }))
}

fn preempt_order(preempt: &PreemptionOrder) -> v1::SessionResponse {
    respond(v1::session_response::Message::Preempt(v1::PreemptOrder {
        task_id: preempt.task.get(),
        token: preempt.token.get(),
        reason: explain::ends_sooner(&preempt.to, preempt.there, preempt.here),
    }))
}

/// The crawl order for a granted lease. `checkpoint` is the crawl's progress, or empty if the crawl
/// has not begun. `last_pages` is the number of pages in the site's last crawl.
fn crawl_order(grant: Grant, checkpoint: Vec<u8>, last_pages: Option<u32>) -> v1::SessionResponse {
    respond(v1::session_response::Message::Crawl(v1::CrawlOrder {
        task_id: grant.task.get(),
        token: grant.token.get(),
        site: Some(v1::SiteTarget {
            site_id: grant.site.get(),
            name: grant.name,
            origin: grant.origin.unwrap_or_default(),
        }),
        // Agents do not need the recrawl interval.
        policy: Some(PolicyRequest { recrawl_interval: None, ..grant.policy.into() }.into()),
        checkpoint,
        last_pages,
    }))
}

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
                    let floor = backup_and_restore::floor(&mut tx).await?;
                    backup_and_restore::blame(token.get(), floor, Refusal::ForgedToken)
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

impl Session {
    /// Answers whether a crawl may send requests to an address. If the agent no longer has the
    /// lease, no answer is sent, because another message tells the agent that the lease has ended.
    pub(super) async fn permit(&mut self, asked: v1::PermitRequest) -> Result<(), Status> {
        let request = permit_request(&asked, self.agent, self.session)?;
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
        self.send(permit_answer(asked, reason)).await
    }
}

fn permit_request(asked: &v1::PermitRequest, agent: AgentId, session: SessionId) -> Result<PermitRequest, Status> {
    let (task, token) = lease_key(asked.task_id, asked.token);
    let address = asked.address.parse().map_err(|_| {
        Status::invalid_argument(format!("address: '{}' is not an IP address", clip(asked.address.clone())))
    })?;
    Ok(PermitRequest { agent, session, task, token, address })
}

/// The answer to a crawl that asks whether it may use an address. `reason` says why the address is
/// refused; `None` if it is permitted.
fn permit_answer(asked: v1::PermitRequest, reason: Option<String>) -> v1::SessionResponse {
    let v1::PermitRequest { task_id, token, address } = asked;
    respond(v1::session_response::Message::Permit(v1::PermitAnswer {
        task_id,
        token,
        address,
        granted: reason.is_none(),
        reason: reason.unwrap_or_default(),
    }))
}
