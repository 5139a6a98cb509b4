//! Measurement orders: requests to probers that have not been answered yet.
//!
//! Invariants, enforced by unique indexes: a site has at most one open order, so that only one
//! agent probes it at a time. Likewise, an address has at most one open order, so that only one
//! agent probes it at a time. An order without an address only asks for the site's address
//! (`super::of_sites`). A pair of agents has at most one open order.
//!
//! An order ends with the session on which it was sent, and at `expires_at` at the latest. After
//! the end of the session, another prober may measure the site, because the previous prober has
//! already stopped: an agent drops its orders when its stream breaks, or when the scheduler has
//! acknowledged no heartbeat for the lifetime of a lease. The agent's session expires more than a
//! grace period after the agent has dropped its orders.

use std::net::IpAddr;

use sqlx::PgConnection;

use crate::model::{AgentId, OrderId, SessionId, SiteId};
use crate::store::Error;
use crate::store::rows::{Rows, Statement};
use crate::store::sites::Site;
use crate::store::types::Interval;

use super::failures::{Cause, NO_REPORT};
use super::sharing::{ENOUGH, NOT_SHARED_FOR};

/// An order as sent on the prober's session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    pub id: OrderId,
    pub target: OrderTarget,
    /// Whether the order belongs to a confirmation (`crate::store::tasks::confirmations`).
    pub confirming: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrderTarget {
    Site {
        id: SiteId,
        name: String,
        /// The site's origin; `None` until a prober has reported it.
        origin: Option<String>,
        /// The address that the order locks. If it is unknown (`None`), the order only asks for the
        /// address.
        locked: Option<IpAddr>,
        /// Whether the prober may report its measurement of another site at the same address.
        may_share: bool,
    },
    /// Another agent's beacon.
    Beacon { agent: AgentId, url: String },
}

/// The open order for which a site waits, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenOrder {
    pub prober: String,
    /// The address that the order locks; `None` if the order only asks for the address.
    pub address: Option<String>,
    /// The order's site; `None` if the order is for the waiting site itself.
    pub other: Option<String>,
}

/// Marks the agent's unsent orders as sent on this session and returns them, oldest first.
pub async fn take_unsent(conn: &mut PgConnection, agent: AgentId, session: SessionId) -> Result<Vec<Order>, Error> {
    let rows = sqlx::query!(
        r#"
        with taken as (
            update measurement_orders set session_id = $2
            where prober_id = $1 and session_id is null and expires_at > now()
              -- The open stream of an ended session must not take the orders of the new session.
              and exists (select from sessions where id = $2 and state = 'active')
            returning id, site_id, agent_id, confirming, address
        )
        select taken.id, site_id, agent_id, confirming, taken.address as locked, sites.name as "name?", sites.origin as "origin?", agents.beacon_url as "url?",
               coalesce(sites.doubted_at < now() - $3::interval, true)
                   and not exists (
                       select from address_disagreements off
                       where off.address = taken.address and off.seen_at > now() - $3
                         and off.prober_id not in (select q.agent_id from quarantines q where q.released_at is null)
                       having count(*) >= $4 or bool_or(off.prober_id = $1)
                   ) as "may_share!"
        from taken
        left join sites on sites.id = taken.site_id
        left join agents on agents.id = taken.agent_id
        order by taken.id
        "#,
        agent.get(),
        session.get(),
        Interval(NOT_SHARED_FOR),
        ENOUGH,
    )
    .all(conn)
    .await?;
    let orders = rows.into_iter().filter_map(|row| {
        let target = match (row.site_id, row.name, row.agent_id, row.url) {
            (Some(site), Some(name), _, _) => {
                OrderTarget::Site { id: site, name, origin: row.origin, locked: row.locked, may_share: row.may_share }
            }
            (_, _, Some(agent), Some(url)) => OrderTarget::Beacon { agent, url },
            // The target agent reconnected without a beacon, so the order is not sent, and expires.
            _ => return None,
        };
        Some(Order { id: row.id, target, confirming: row.confirming })
    });
    Ok(orders.collect())
}

/// Ends orders that will not be answered. Deletes orders of probers whose session has ended. If a
/// prober has missed the time limit, stores a failure, so that the target does not wait for the
/// prober any longer.
pub async fn give_up(conn: &mut PgConnection) -> Result<u64, Error> {
    sqlx::query!(
        r#"
        delete from measurement_orders
        where not exists (
            select from sessions
            where sessions.agent_id = measurement_orders.prober_id and sessions.state = 'active'
              and sessions.id = coalesce(measurement_orders.session_id, sessions.id)
        )
        "#,
    )
    .run(conn)
    .await?;
    let expired = sqlx::query_scalar!(
        r#"
        with expired as (
            delete from measurement_orders where expires_at <= now() returning prober_id, site_id, agent_id
        ), sites_failed as (
            insert into site_measurements (site_id, prober_id, answered, lost, failure)
            select site_id, prober_id, 0, 0, $1 from expired where site_id is not null
            on conflict (site_id, prober_id) do update
            set rtt_us = null, min_us = null, median_us = null, spread_us = null, answered = 0, lost = 0,
                failure = excluded.failure, address = null, shared_from = null, measured_at = excluded.measured_at
        ), beacons_failed as (
            insert into mesh_measurements (prober_id, agent_id, answered, lost, failure, cause, said, failed_at)
            select prober_id, agent_id, 0, 0, $1, $2, $1, now() from expired where agent_id is not null
            on conflict (prober_id, agent_id) do update
            set rtt_us = null, answered = 0, lost = 0,
                failure = excluded.failure, measured_at = excluded.measured_at, cause = excluded.cause, said = excluded.said,
                failed_at = excluded.failed_at
        )
        select count(*) as "count!" from expired
        "#,
        NO_REPORT,
        Cause::NoReport,
    )
    .one(conn)
    .await?;
    Ok(u64::try_from(expired).unwrap_or(0))
}

/// The open order for which a site waits: its own order or, if the site has tasks in the state
/// `measuring`, another site's order at the same address.
pub async fn awaited(conn: &mut PgConnection, site: &Site) -> Result<Option<OpenOrder>, Error> {
    sqlx::query_as!(
        OpenOrder,
        r#"
        select a.name as prober, host(o.address) as address,
               case when o.site_id = any($1) then null else other.name end as other
        from measurement_orders o
        join agents a on a.id = o.prober_id
        join sites other on other.id = o.site_id
        where o.site_id = any($1)
           or (o.address = any (array(select address from sites where id = any($1)))
               and exists (select from tasks t where t.site_id = any($1) and t.state = 'measuring'))
        order by o.site_id = any($1) desc, o.id
        limit 1
        "#,
        &site.ids() as _,
    )
    .optional(conn)
    .await
}
