//! A session sends its agent the orders that the store holds: to measure hosts, to crawl leased
//! sites, and to stop crawls whose lease was revoked or preempted.

use std::collections::HashMap;

use landfall_proto::v1;
use tonic::Status;

use super::message_fields::respond;
use super::session_state::Session;
use crate::config::{ConfirmConfig, MeasureConfig};
use crate::grpc::operator::convert::duration;
use crate::model::{LeaseToken, PolicyRequest, TaskId};
use crate::store;
use crate::store::agents::sessions;
use crate::store::leases::preemptions::{self, PreemptionOrder};
use crate::store::leases::{self, Grant, checkpoints};
use crate::store::measurements::orders::{self, Order, OrderTarget};
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
        Ok(store::leases::outcomes::last_pages(&mut *self.connection().await?, &asked).await?)
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

fn measure_order(order: Order, config: &MeasureConfig, confirm: &ConfirmConfig) -> v1::SessionResponse {
    let common = v1::MeasureOrder {
        order_id: order.id.get(),
        timeout: Some(duration(config.sample_timeout)),
        metric: v1::DistanceMetric::from(config.metric).into(),
        ..v1::MeasureOrder::default()
    };
    let order = match order.target {
        OrderTarget::Site { id, name, origin, locked, may_share } => v1::MeasureOrder {
            target: Some(v1::measure_order::Target::Site(v1::SiteTarget {
                site_id: id.get(),
                name,
                origin: origin.unwrap_or_default(),
            })),
            samples: if order.confirming { confirm.samples } else { config.site_samples },
            interval: Some(duration(config.site_interval)),
            least_samples: Some(config.site_least_samples),
            share_max_age: (may_share && !config.share_max_age.is_zero()).then(|| duration(config.share_max_age)),
            resolve_only: locked.is_none(),
            address: locked.map(|address| address.to_string()).unwrap_or_default(),
            ..common
        },
        OrderTarget::Beacon { agent, url } => v1::MeasureOrder {
            target: Some(v1::measure_order::Target::Beacon(v1::BeaconTarget { agent_id: agent.get(), url })),
            samples: config.mesh_samples,
            interval: Some(duration(config.mesh_interval)),
            ..common
        },
    };
    respond(v1::session_response::Message::Measure(order))
}
