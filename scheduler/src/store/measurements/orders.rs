//! Measurement orders: finds the sites and the agents' beacons that must be measured, orders these
//! measurements, and reads and gives up the orders that have not been answered yet.
//!
//! Invariants, enforced by unique indexes: a site has at most one open order, so that only one
//! agent probes it at a time. Likewise, an address has at most one open order, so that only one
//! agent probes it at a time. An order without an address only asks for the site's address
//! (`super::site_measurements`). A pair of agents has at most one open order.
//!
//! An order ends with the session on which it was sent, and at `expires_at` at the latest. After
//! the end of the session, another prober may measure the site, because the previous prober has
//! already stopped: an agent drops its orders when its stream breaks, or when the scheduler has
//! acknowledged no heartbeat for the lifetime of a lease. The agent's session expires more than a
//! grace period after the agent has dropped its orders.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use sqlx::PgConnection;

use crate::model::{AgentId, OrderId, SessionId, SiteId};
use crate::store::Error;
use crate::store::measurements::reach::MESH_RETRY;
use crate::store::measurements::results_and_failures::{Cause, NO_REPORT};
use crate::store::measurements::site_measurements::{ENOUGH, NOT_SHARED_FOR};
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::sites::Site;
use crate::store::types::Interval;

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

/// A site that needs a prober, and the probers that have not measured it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueSite {
    pub site: SiteId,
    /// The probers that may be asked now, in the order of their identifiers; at least one.
    pub probers: Vec<AvailableProber>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AvailableProber {
    pub prober: AgentId,
    /// The address to which the site's name will probably resolve at the prober; `None` if it is
    /// unknown. No order is open for this address.
    pub address: Option<IpAddr>,
}

impl AvailableProber {
    /// Combines two parallel arrays of a query into a list.
    pub(in crate::store) fn listed(probers: Vec<AgentId>, addresses: Vec<Option<IpAddr>>) -> Vec<Self> {
        probers.into_iter().zip(addresses).map(|(prober, address)| Self { prober, address }).collect()
    }
}

/// Number of open site orders of each of these probers.
pub async fn open_site_orders(conn: &mut PgConnection, probers: &[AgentId]) -> Result<HashMap<AgentId, u32>, Error> {
    let rows = sqlx::query!(
        r#"
        select prober_id, count(*) as "open!" from measurement_orders
        where prober_id = any($1) and site_id is not null
        group by prober_id
        "#,
        probers as _,
    )
    .all(conn)
    .await?;
    let mut open: HashMap<AgentId, u32> = probers.iter().map(|prober| (*prober, 0)).collect();
    open.extend(rows.into_iter().map(|row| (row.prober_id, u32::try_from(row.open).unwrap_or(u32::MAX))));
    Ok(open)
}

/// At most `limit` sites that have tasks in the state `measuring` and no open order, and that at
/// least one of these probers has not measured. The oldest site comes first.
///
/// A round trip counts as measured if it was at most `max_age` old when the site's first task in
/// the state `measuring` began to wait, and if it was measured after the site was last marked as
/// doubtful. A failure counts only if it came after this first task began to wait. A prober gets no
/// order for the site while an order is open for the address to which the site's name probably
/// resolves at this prober.
pub async fn due_sites(
    conn: &mut PgConnection,
    probers: &[AgentId],
    max_age: Duration,
    limit: i64,
) -> Result<Vec<DueSite>, Error> {
    let rows = sqlx::query!(
        r#"
        select waiting.site_id, missing.probers as "probers!: Vec<AgentId>", missing.addresses as "addresses!: Vec<Option<IpAddr>>"
        from (select site_id, min(state_since) as since from tasks where state = 'measuring' group by site_id) waiting
        join sites on sites.id = waiting.site_id and sites.alias_of is null
        -- Looks up each site by primary key, because the table contains every site ever measured.
        cross join lateral (
            select array_agg(prober.id order by prober.id) as probers,
                   array_agg(coalesce(seen.address, sites.address) order by prober.id) as addresses
            from unnest($1::bigint[]) as prober (id)
            left join resolved_addresses seen on seen.site_id = waiting.site_id and seen.prober_id = prober.id
            where prober.id <> all (array(
                select known.prober_id from site_measurements known
                where known.site_id = waiting.site_id
                  and known.measured_at >= case when known.rtt_us is null then waiting.since
                                                else greatest(waiting.since - $2::interval, sites.doubted_at) end
            ))
              and not exists (
                  select from measurement_orders open where open.address = coalesce(seen.address, sites.address)
              )
        ) missing
        where missing.probers is not null
          and not exists (select from measurement_orders open where open.site_id = waiting.site_id)
        order by waiting.site_id
        limit $3
        "#,
        probers as _,
        Interval(max_age),
        limit,
    )
    .all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| DueSite { site: row.site_id, probers: AvailableProber::listed(row.probers, row.addresses) })
        .collect())
}

/// Orders measurements of these sites. A site gets no order if an order for the site or its address
/// is already open. Returns the probers that got orders.
pub async fn order_sites(
    conn: &mut PgConnection,
    orders: &[(SiteId, AgentId)],
    lifetime: Duration,
) -> Result<Vec<AgentId>, Error> {
    let sites: Vec<i64> = orders.iter().map(|(site, _)| site.get()).collect();
    let probers: Vec<i64> = orders.iter().map(|(_, prober)| prober.get()).collect();
    sqlx::query_scalar!(
        r#"
        insert into measurement_orders (prober_id, site_id, address, expires_at)
        select prober_id, site_id, coalesce(seen.address, sites.address) as locked, now() + $3::interval
        from unnest($1::bigint[], $2::bigint[]) as ordered (site_id, prober_id)
        join sites on sites.id = ordered.site_id
        left join resolved_addresses seen using (site_id, prober_id)
        -- A prober or a site that somebody has locked is left to a later pass.
        cross join lateral (select from agents a where a.id = prober_id for key share skip locked) prober
        cross join lateral (select from sites s where s.id = site_id for key share skip locked) site
        -- Concurrent passes insert orders in the same order, so that they do not deadlock.
        order by locked, site_id
        on conflict do nothing
        returning prober_id
        "#,
        &sites,
        &probers,
        Interval(lifetime),
    )
    .all(conn)
    .await
}

/// Settings for measurements of the mesh.
#[derive(Debug, Clone, Copy)]
pub struct MeshPlan {
    /// Age at which a round trip is measured again.
    pub max_age: Duration,
    /// Maximum number of other agents that each agent measures besides the landmarks.
    pub max_peers: u32,
    /// Maximum number of an agent's open beacon orders.
    pub max_orders: u32,
    pub lifetime: Duration,
}

/// The result of [`order_mesh`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshOrders {
    /// The prober of each new order.
    pub probers: Vec<AgentId>,
    /// Whether more measurements are due than were ordered, because a prober already has the
    /// maximum number of open orders.
    pub more_due: bool,
}

/// Orders those beacon measurements between connected agents that are missing or outdated. A prober
/// measures landmarks before other agents.
pub async fn order_mesh(conn: &mut PgConnection, plan: &MeshPlan) -> Result<MeshOrders, Error> {
    sqlx::query_as!(
        MeshOrders,
        r#"
        with connected as (
            select agents.id, beacon_url is not null as has_beacon, landmarks.agent_id is not null as is_landmark,
                   sessions.opened_at
            from agents
            join sessions on sessions.agent_id = agents.id and sessions.state = 'active'
            left join landmarks on landmarks.agent_id = agents.id
        ), pairs as (
            select prober.id as prober_id, target.id as agent_id, target.is_landmark,
                   greatest(prober.opened_at, target.opened_at) as both_there_at,
                   -- The order is the same in every pass, and different for each prober.
                   row_number() over (
                       partition by prober.id, target.is_landmark
                       order by hashint8extended(target.id, prober.id), target.id
                   ) as peer
            from connected prober join connected target on target.id <> prober.id and target.has_beacon
        ), due as (
            select pairs.prober_id, pairs.agent_id,
                   row_number() over (partition by pairs.prober_id order by is_landmark desc, peer) as place
            from pairs
            left join mesh_measurements known using (prober_id, agent_id)
            where (pairs.is_landmark or pairs.peer <= $3)
              and (known.measured_at is null
                   or known.measured_at < now() - case when known.rtt_us is null then $2::interval else $1 end
                   -- A repaired agent was restarted, so a failure is due after a new session.
                   or known.rtt_us is null and known.measured_at < pairs.both_there_at)
              and not exists (
                  select from measurement_orders open
                  where open.prober_id = pairs.prober_id and open.agent_id = pairs.agent_id
              )
        ), ordered as (
            insert into measurement_orders (prober_id, agent_id, expires_at)
            select prober_id, agent_id, now() + $5::interval
            from due
            -- Agents that somebody has locked are left to a later pass.
            cross join lateral (select from agents a where a.id = prober_id for key share skip locked) prober
            cross join lateral (select from agents a where a.id = due.agent_id for key share skip locked) target
            where place <= $4 - (
                select count(*) from measurement_orders open
                where open.prober_id = due.prober_id and open.agent_id is not null
            )
            on conflict do nothing
            returning prober_id
        )
        select array(select prober_id from ordered) as "probers!: Vec<AgentId>",
               (select count(*) from due) > (select count(*) from ordered) as "more_due!"
        "#,
        Interval(plan.max_age),
        Interval(MESH_RETRY),
        i64::from(plan.max_peers),
        i64::from(plan.max_orders),
        Interval(plan.lifetime),
    )
    .one(conn)
    .await
}
