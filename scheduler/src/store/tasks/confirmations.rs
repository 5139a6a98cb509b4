//! Confirmations: measurements of a site by the agents that may be nearest to the site, before an
//! agent is chosen. Confirmations are made for batches with the strategy `gnp-confirmed`, and for
//! sites whose predicted round trips are too uncertain for a choice.
//!
//! A confirmation belongs to the site. All tasks of the site share it until it is too old. A
//! confirmation is first requested, then begins, and then ends. The tasks that wait for the
//! confirmation are held until it ends. Confirmers get measurement orders one after the other,
//! because a site has at most one open order.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use sqlx::PgConnection;

use crate::model::{AgentId, Rtt, SiteId, TaskId};

use super::holds::{self, Cause, HoldFilter};
use crate::store::measurements::orders::{self, AvailableProber, DueSite};
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::types::Interval;
use crate::store::{Error, Locked, Tx};

/// An agent's round trip to a site; `None` if the measurement failed.
pub type ConfirmationAttempt = (AgentId, Option<Rtt>);

/// The state of a site's newest confirmation that is not too old.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfirmationState {
    Open {
        /// Time since the confirmation began or, if it has not begun, since it was requested.
        since: Duration,
    },
    Ended,
}

/// The states of these sites' confirmations. A site is absent if it has no confirmation, or if the
/// confirmation ended more than `max_age` ago.
pub async fn states(
    conn: &mut PgConnection,
    sites: &[SiteId],
    max_age: Duration,
) -> Result<HashMap<SiteId, ConfirmationState>, Error> {
    let rows = sqlx::query!(
        r#"
        select site_id, ended_at is null as "open!",
               now() - coalesce(began_at, wanted_at) as "since!: Interval"
        from confirmations
        where site_id = any($1) and (ended_at is null or ended_at >= now() - $2::interval)
        "#,
        sites as _,
        Interval(max_age),
    )
    .all(conn)
    .await?;
    let state = |open: bool, since| if open { ConfirmationState::Open { since } } else { ConfirmationState::Ended };
    Ok(rows.into_iter().map(|row| (row.site_id, state(row.open, row.since.0))).collect())
}

/// A task that has to wait until its site is confirmed.
#[derive(Debug, Clone, Copy)]
pub struct ConfirmationRequest<Task = TaskId> {
    pub task: Task,
    pub site: SiteId,
    /// Maximum time that the task waits. If `None`, it waits until the confirmation ends.
    pub patience: Option<Duration>,
}

impl ConfirmationRequest {
    /// The request, if its task is among the locked ones.
    pub fn locked(self, tasks: &HashSet<Locked<TaskId>>) -> Option<ConfirmationRequest<Locked<TaskId>>> {
        let Self { task, site, patience } = self;
        Some(ConfirmationRequest { task: *tasks.get(&task)?, site, patience })
    }
}

/// Requests confirmations of sites, and holds the located tasks that wait for them. A confirmation
/// that ended more than `max_age` ago starts again. If a site's confirmation ended within `max_age`,
/// the site's tasks are not held.
pub async fn want(
    tx: &mut Tx<'_>,
    wanted: &[ConfirmationRequest<Locked<TaskId>>],
    max_age: Duration,
) -> Result<(), Error> {
    if wanted.is_empty() {
        return Ok(());
    }
    let sites: Vec<SiteId> = wanted.iter().map(|one| one.site).collect();
    // Locks every row, even if the row does not change. So a concurrent transaction that ends one
    // of these confirmations waits for this transaction, and then also releases the tasks that are
    // held here.
    sqlx::query!(
        r#"
        insert into confirmations (site_id)
        select distinct site_id from unnest($1::bigint[]) as wanted (site_id) order by site_id
        on conflict (site_id) do update set wanted_at = now(), began_at = null, ended_at = null
        where confirmations.ended_at < now() - $2::interval
        "#,
        &sites as _,
        Interval(max_age),
    )
    .run(tx)
    .await?;
    let open = states(tx, &sites, Duration::ZERO).await?;
    let open = |one: &&ConfirmationRequest<_>| matches!(open.get(&one.site), Some(ConfirmationState::Open { .. }));
    let holds = wanted.iter().filter(open).map(|one| (one.task, Cause::Confirming(one.patience)));
    holds::hold(tx, &holds.collect::<Vec<_>>()).await?;
    Ok(())
}

#[derive(Debug, Default)]
pub struct DueConfirmations {
    pub sites: Vec<SiteId>,
    pub looked_at: usize,
}

/// Chooses at most `limit` requested confirmations, the oldest requests first, and returns their
/// sites. At most `at_once` confirmations are open at a time, so fewer may be chosen. Deletes
/// confirmations for which no task waits.
pub async fn due(tx: &mut Tx<'_>, limit: i64, at_once: i64) -> Result<DueConfirmations, Error> {
    // Locks the rows of requested confirmations first. [`want`] keeps such rows locked until its
    // tasks are held, so the next statement sees those tasks.
    let wanted = sqlx::query_scalar!(
        r#"
        select site_id from confirmations
        where began_at is null and ended_at is null
        order by wanted_at, site_id
        limit greatest(0, least($1, $2 - (
            select count(*) from confirmations where began_at is not null and ended_at is null
        )))
        for update skip locked
        "#,
        limit,
        at_once,
    )
    .all(tx)
    .await?;
    if wanted.is_empty() {
        return Ok(DueConfirmations::default());
    }
    sqlx::query!(
        r#"
        delete from confirmations r
        where r.site_id = any($1)
          and not exists (select from task_holds h where h.site_id = r.site_id and h.cause = 'confirming' offset 0)
        "#,
        &wanted as _,
    )
    .run(tx)
    .await?;
    let sites =
        sqlx::query_scalar!("select site_id from confirmations where site_id = any($1) order by site_id", &wanted as _)
            .all(tx)
            .await?;
    Ok(DueConfirmations { sites, looked_at: wanted.len() })
}

/// The agents that measured these sites within `max_age`, successfully or not. Sites without such
/// agents are absent.
pub async fn tried(
    conn: &mut PgConnection,
    sites: &[SiteId],
    max_age: Duration,
) -> Result<HashMap<SiteId, Vec<ConfirmationAttempt>>, Error> {
    let rows = sqlx::query!(
        r#"
        select site_id, prober_id, rtt_us from site_measurements
        where site_id = any($1) and measured_at >= now() - $2::interval
        order by site_id, prober_id
        "#,
        sites as _,
        Interval(max_age),
    )
    .all(conn)
    .await?;
    let mut tried: HashMap<SiteId, Vec<ConfirmationAttempt>> = HashMap::new();
    for row in rows {
        tried.entry(row.site_id).or_default().push((row.prober_id, row.rtt_us));
    }
    Ok(tried)
}

/// Begins the requested confirmations of these sites by these agents. A confirmation without agents
/// ends at once. Returns the number of confirmations that ended at once.
pub async fn begin(tx: &mut Tx<'_>, confirmations: &[(SiteId, Vec<AgentId>)]) -> Result<u64, Error> {
    let sites: Vec<i64> = confirmations.iter().map(|(site, _)| site.get()).collect();
    let empty: Vec<bool> = confirmations.iter().map(|(_, confirmers)| confirmers.is_empty()).collect();
    let begun: Vec<SiteId> = sqlx::query_scalar!(
        r#"
        update confirmations r set began_at = now(), ended_at = case when begun.empty then now() end
        from unnest($1::bigint[], $2::boolean[]) as begun (site_id, empty)
        where r.site_id = begun.site_id and r.began_at is null and r.ended_at is null
        returning r.site_id
        "#,
        &sites,
        &empty,
    )
    .all(tx)
    .await?;
    sqlx::query!("delete from confirmers where site_id = any($1)", &begun as _).run(tx).await?;
    let asked = confirmations.iter().filter(|(site, _)| begun.contains(site));
    let (sites, agents): (Vec<i64>, Vec<i64>) =
        asked.flat_map(|(site, confirmers)| confirmers.iter().map(|confirmer| (site.get(), confirmer.get()))).unzip();
    sqlx::query!(
        "insert into confirmers (site_id, agent_id) select * from unnest($1::bigint[], $2::bigint[])",
        &sites,
        &agents,
    )
    .run(tx)
    .await?;
    let ended = confirmations.iter().filter(|(site, confirmers)| confirmers.is_empty() && begun.contains(site));
    let ended: Vec<SiteId> = ended.map(|(site, _)| *site).collect();
    holds::release(tx, HoldFilter::Confirming(&ended), i64::MAX).await?;
    Ok(u64::try_from(ended.len()).unwrap_or(u64::MAX))
}

/// At most `limit` sites that have an open confirmation and no open order, the oldest confirmation
/// first. Each site comes with its connected, trusted confirmers that have not answered. A site
/// whose order was lost with the prober's session is included again.
pub async fn askable(conn: &mut PgConnection, limit: i64) -> Result<Vec<DueSite>, Error> {
    let rows = sqlx::query!(
        r#"
        select r.site_id, array_agg(c.agent_id order by c.agent_id) as "confirmers!: Vec<AgentId>",
               array_agg(coalesce(seen.address, sites.address) order by c.agent_id) as "addresses!: Vec<Option<IpAddr>>"
        from confirmations r
        join sites on sites.id = r.site_id
        join confirmers c using (site_id)
        join sessions s on s.agent_id = c.agent_id and s.state = 'active'
        left join resolved_addresses seen on seen.site_id = r.site_id and seen.prober_id = c.agent_id
        where r.began_at is not null and r.ended_at is null
          and c.answered_at is null
          and c.agent_id not in (select q.agent_id from quarantines q where q.released_at is null)
          and not exists (select from measurement_orders open where open.site_id = r.site_id)
          and not exists (
              select from measurement_orders open where open.address = coalesce(seen.address, sites.address)
          )
        group by r.site_id, r.began_at
        order by r.began_at, r.site_id
        limit $1
        "#,
        limit,
    )
    .all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| DueSite { site: row.site_id, probers: AvailableProber::listed(row.confirmers, row.addresses) })
        .collect())
}

/// Orders measurements of these sites by these confirmers. A site that cannot be measured now gets
/// no order. Returns the confirmers that got orders.
pub async fn ask(tx: &mut Tx<'_>, orders: &[(SiteId, AgentId)], lifetime: Duration) -> Result<Vec<AgentId>, Error> {
    let (sites, agents): (Vec<i64>, Vec<i64>) = orders.iter().map(|(site, agent)| (site.get(), agent.get())).unzip();
    orders::order_sites(tx, orders, lifetime).await?;
    let asked = sqlx::query_scalar!(
        r#"
        with ordered as (
            update measurement_orders o set confirming = true
            from unnest($1::bigint[], $2::bigint[]) as asked (site_id, agent_id)
            -- Only orders made in this transaction. An older order is for a landmark's measurement.
            where o.site_id = asked.site_id and o.prober_id = asked.agent_id and o.created_at = now()
            returning o.site_id, o.prober_id
        )
        update confirmers set asked_at = now()
        from ordered where confirmers.site_id = ordered.site_id and confirmers.agent_id = ordered.prober_id
        returning confirmers.agent_id
        "#,
        &sites,
        &agents,
    )
    .all(tx)
    .await?;
    Ok(asked)
}

/// Stores which confirmers have answered. A round trip counts as an answer if it was at most
/// `max_age` old when the confirmation began. The round trip may be older than the measurement
/// order, because the confirmer may have shared an earlier measurement of another site at the same
/// address. A failure counts only if it came after the measurement order.
pub async fn hear(conn: &mut PgConnection, max_age: Duration) -> Result<(), Error> {
    sqlx::query!(
        r#"
        update confirmers c set answered_at = now()
        from confirmations r, site_measurements m
        where r.began_at is not null and r.ended_at is null and c.site_id = r.site_id and c.answered_at is null
          and m.site_id = c.site_id and m.prober_id = c.agent_id
          and m.measured_at >= case when m.rtt_us is null then coalesce(c.asked_at, r.began_at)
                                    else r.began_at - $1::interval end
        "#,
        Interval(max_age),
    )
    .run(conn)
    .await
}

/// Ends confirmations that have been open for longer than `patience`, or in which every connected,
/// trusted confirmer has answered. Releases their tasks. Returns the number of ended confirmations.
pub async fn end(tx: &mut Tx<'_>, patience: Duration) -> Result<u64, Error> {
    let ended = sqlx::query_scalar!(
        r#"
        update confirmations r set ended_at = now()
        where r.began_at is not null and r.ended_at is null
          and (r.began_at < now() - $1::interval or not exists (
              select from confirmers c
              join sessions s on s.agent_id = c.agent_id and s.state = 'active'
              where c.site_id = r.site_id and c.answered_at is null
                and c.agent_id not in (select q.agent_id from quarantines q where q.released_at is null)
          ))
        returning r.site_id
        "#,
        Interval(patience),
    )
    .all(tx)
    .await?;
    // This statement is separate from the one above, so that it also releases tasks that [`want`]
    // has just held.
    holds::release(tx, HoldFilter::Confirming(&ended), i64::MAX).await?;
    Ok(u64::try_from(ended.len()).unwrap_or(u64::MAX))
}
