//! The leases of a session's agent: sends the orders that the store holds, to crawl leased sites
//! and to stop crawls whose lease was revoked or preempted. Takes back returned leases, stores
//! checkpoints, and answers requests for permits to use a site's address.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::FutureExt as _;
use landfall_proto::v1;
use tokio::time::Instant;
use tonic::Status;

use super::fields::respond;
use super::measurements::measure_order;
use super::patience::Unhandled;
use super::received::Released;
use super::session::{Session, ended};
use crate::model::{AgentId, HistoryId, LeaseToken, PolicyRequest, TaskId};
use crate::store::agents::refusals::{self, Refusal};
use crate::store::agents::sessions;
use crate::store::leases::checkpoints::{self, Checkpoint};
use crate::store::leases::preemptions::{self, PreemptionOrder};
use crate::store::leases::{self, Grant};
use crate::store::measurements::orders;
use crate::store::schema::histories;
use crate::store::sites::addresses::{self, PermitRequest, PermitResult};
use crate::store::{self, Tx};
use crate::strategy::explain;

/// Maximum number of checkpoints in memory at the same time. Each checkpoint has up to 1 MiB.
const CHECKPOINTS_AT_ONCE: usize = 8;

impl Session {
    /// Sends the messages that the store holds for this agent. If there are none, which is the
    /// usual case, no row is locked or written.
    pub(super) async fn push(&mut self) -> Result<(), Status> {
        if !self.is_connected() {
            return Ok(());
        }
        let mut conn = self.db.read("look for messages to an agent").await?;
        let waiting = sessions::waiting(&mut conn, self.agent, self.session).await?;
        drop(conn);
        // Without this check, the agent of an ended session would continue until its next
        // heartbeat, and meanwhile crawl sites whose tasks other agents have leased.
        let Some(waiting) = waiting else { return Err(ended(&self.scheduler, self.session).await?) };
        (self.free, self.waits) = (waiting.free, waiting.tasks);
        let waiting = sessions::PendingMessages { tasks: waiting.tasks && self.may_grant(), ..waiting };
        let any = waiting.orders || waiting.revocations || waiting.preemptions || waiting.leases();
        match if any { self.hand_out(waiting).await } else { Ok(()) } {
            Err(Unhandled::Ends(status)) => Err(status),
            // The next poll tries again.
            Ok(()) | Err(Unhandled::Later) => Ok(()),
        }
    }

    async fn hand_out(&mut self, waiting: sessions::PendingMessages) -> Result<(), Unhandled> {
        let (agent, session) = (self.agent, self.session);
        let taking = self.db.tx("take messages to an agent", |tx| {
            async move {
                let (mut orders, mut revoked, mut preempted, mut grants) =
                    (Vec::new(), Vec::new(), Vec::new(), Vec::new());
                if waiting.orders {
                    orders = orders::take_unsent(tx, agent, session).await?;
                }
                if waiting.revocations {
                    revoked = leases::take_revoked(tx, session).await?;
                }
                if waiting.preemptions {
                    preempted = preemptions::take_unsent(tx, agent, session).await?;
                }
                if waiting.leases() {
                    grants = leases::grant(tx, agent, session).await?;
                }
                Ok::<_, store::Error>((orders, revoked, preempted, grants))
            }
            .boxed()
        });
        let (orders, revoked, preempted, grants) = taking.await?;
        // Revocations are sent first, because each revocation frees a slot for a new lease.
        for (task, token) in revoked {
            self.send(cancel_order(task, token, self.history(token))).await?;
        }
        for order in preempted {
            self.send(preempt_order(&order, self.history(order.token))).await?;
        }
        for order in orders {
            let config = &self.scheduler.config;
            self.send(measure_order(order, &config.measure, &config.confirm)).await?;
        }
        Ok(self.send_orders(grants).await?)
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
                let history = self.history(grant.token);
                self.send(crawl_order(grant, history, state, last_pages)).await?;
            }
        }
        Ok(())
    }

    /// The history in which this database granted a lease.
    fn history(&self, token: LeaseToken) -> i64 {
        self.histories.of(token).map_or(0, HistoryId::get)
    }

    /// The checkpoints of granted tasks. No other agent writes these checkpoints in the meantime,
    /// because only this agent has the leases.
    async fn checkpoints(&self, grants: &[Grant]) -> Result<HashMap<TaskId, Vec<u8>>, Status> {
        let again: Vec<TaskId> = grants.iter().filter(|grant| grant.token.get() > 1).map(|grant| grant.task).collect();
        if again.is_empty() {
            return Ok(HashMap::new());
        }
        Ok(checkpoints::of(&mut *self.db.read("read checkpoints").await?, &again).await?)
    }

    /// The number of pages in the last crawl of each granted task's site. The number is read only
    /// if the crawl rate depends on it.
    async fn last_pages(&self, grants: &[Grant]) -> Result<HashMap<TaskId, u32>, Status> {
        let depends = |grant: &&Grant| grant.policy.shortest_interval < grant.policy.request_interval;
        let asked: Vec<TaskId> = grants.iter().filter(depends).map(|grant| grant.task).collect();
        if asked.is_empty() {
            return Ok(HashMap::new());
        }
        Ok(leases::last_pages(&mut *self.db.read("read sizes of sites").await?, &asked).await?)
    }
}

fn cancel_order(task: TaskId, token: LeaseToken, history: i64) -> v1::SessionResponse {
    let (task_id, token) = (task.get(), token.get());
    respond(v1::session_response::Message::Cancel(v1::CancelOrder { task_id, token, history }))
}

fn preempt_order(preempt: &PreemptionOrder, history: i64) -> v1::SessionResponse {
    respond(v1::session_response::Message::Preempt(v1::PreemptOrder {
        task_id: preempt.task.get(),
        token: preempt.token.get(),
        history,
        reason: explain::ends_sooner(&preempt.to, preempt.there, preempt.here),
    }))
}

/// The crawl order for a granted lease. `checkpoint` is the crawl's progress, or empty if the crawl
/// has not begun. `last_pages` is the number of pages in the site's last crawl.
fn crawl_order(grant: Grant, history: i64, checkpoint: Vec<u8>, last_pages: Option<u32>) -> v1::SessionResponse {
    respond(v1::session_response::Message::Crawl(v1::CrawlOrder {
        task_id: grant.task.get(),
        token: grant.token.get(),
        history,
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

/// What became of a returned lease.
struct LeaseReturn {
    /// Whether the lease was active until now.
    released: bool,
    /// Whether the scheduler had preempted the lease.
    asked_for: bool,
}

async fn take_back(tx: &mut Tx<'_>, agent: AgentId, lease: &Released, most: u32) -> Result<LeaseReturn, store::Error> {
    let Released { task, token, pause, ref crash } = *lease;
    let asked_for = crash.is_none() && pause.is_none() && preemptions::release(tx, agent, task, token).await?;
    let released = match pause {
        _ if asked_for => true,
        Some(pause) => leases::pause(tx, agent, task, token, pause).await?,
        None => leases::release(tx, agent, task, token, crash.as_deref(), most).await?,
    };
    // If the lease was granted to this agent but has already ended, no refusal is counted.
    let holder = leases::holder(tx, task, token).await?;
    if !released && holder != Some(agent) {
        let refusal = match holder {
            Some(_) => Refusal::ForeignLease,
            None => {
                let floor = histories::floor(tx).await?;
                histories::blame(token.get(), floor, Refusal::ForgedToken)
            }
        };
        let detail = format!("task {task}, token {token}: hands back {refusal}");
        refusals::count(tx, agent, refusal, &detail).await?;
    }
    Ok(LeaseReturn { released, asked_for })
}

impl Session {
    pub(super) async fn release(&mut self, released: &Released) -> Result<(), Unhandled> {
        let Released { task, token, pause, ref crash } = *released;
        let (agent, most) = (self.agent, self.scheduler.config.lease.max_crashes);
        let releasing = self.db.tx("release a lease", |tx| take_back(tx, agent, released, most).boxed());
        let LeaseReturn { released, asked_for } = releasing.await?;
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

impl Session {
    /// Stores a crawl's checkpoint, unless the agent no longer has the lease. If another transaction
    /// has locked the task, the checkpoint is dropped. The crawl makes another a minute later.
    pub(super) async fn keep(&self, checkpoint: &Checkpoint) -> Result<(), Unhandled> {
        let saving =
            self.db.tx("save a checkpoint", |tx| checkpoints::save(tx, self.agent, self.session, checkpoint).boxed());
        let problem = match saving.await.map_err(Unhandled::from) {
            Ok(true) => return Ok(()),
            Ok(false) => "its lease is not held",
            Err(Unhandled::Later) => "its task is locked",
            Err(ends @ Unhandled::Ends(_)) => return Err(ends),
        };
        let (task, token) = (checkpoint.task, checkpoint.token);
        tracing::debug!(agent.name = self.name, task.id = %task, token = %token, problem, "a checkpoint was not stored");
        Ok(())
    }
}

impl Session {
    /// Answers whether a crawl may send requests to an address. If the agent no longer has the
    /// lease, no answer is sent, because another message tells the agent that the lease has ended.
    pub(super) async fn permit(&mut self, asked: &v1::PermitRequest, request: &PermitRequest) -> Result<(), Unhandled> {
        let cap = self.scheduler.config.politeness.crawls_at_address;
        self.db.tx("note an address", |tx| addresses::note_address(tx, request).boxed()).await?;
        let answer = self.db.tx("permit an address", |tx| addresses::permit(tx, request, cap).boxed()).await?;
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
        Ok(self.send(permit_answer(asked.clone(), reason)).await?)
    }
}

/// The answer to a crawl that asks whether it may use an address. `reason` says why the address is
/// refused; `None` if it is permitted.
fn permit_answer(asked: v1::PermitRequest, reason: Option<String>) -> v1::SessionResponse {
    let v1::PermitRequest { task_id, token, address, history } = asked;
    respond(v1::session_response::Message::Permit(v1::PermitAnswer {
        task_id,
        token,
        history,
        address,
        granted: reason.is_none(),
        reason: reason.unwrap_or_default(),
    }))
}
