//! A session sends its agent the orders that the store holds: to measure hosts, to crawl leased
//! sites, and to stop crawls whose lease was revoked or preempted.

use std::collections::HashMap;

use tonic::Status;

use super::convert;
use super::session::Session;
use crate::model::TaskId;
use crate::store;
use crate::store::agents::sessions;
use crate::store::leases::{self, Grant, checkpoints, preemptions};
use crate::store::measurements::orders;

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
            self.send(convert::cancel_order(task, token)).await?;
        }
        for order in preempted {
            self.send(convert::preempt_order(&order)).await?;
        }
        for order in orders {
            let config = &self.scheduler.config;
            self.send(convert::measure_order(order, &config.measure, &config.confirm)).await?;
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
                self.send(convert::crawl_order(grant, state, last_pages)).await?;
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
        Ok(store::leases::outcomes::last_pages(&mut *self.connection().await?, &asked).await?)
    }
}
