//! Confirmations: which agents were asked to measure a site before it gets its agent, of a `gnp-confirmed` batch or because its distances
//! were too unsure to choose by.
//!
//! A confirmation belongs to the site: every task of the site shares it, until it is too old. Its confirmers are asked
//! by measurement orders, one at a time like everybody who measures a site. Nothing of it is kept in memory.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::{Connection, PgConnection};

use crate::model::{AgentId, Rtt, SiteId, Strategy};

use super::measurement_orders::{self, Due, Turn};
use super::measurements::raw_sites;
use super::{Error, round_trip};

/// What an agent found of a site: `None` when it failed.
pub type Tried = (AgentId, Option<Rtt>);

/// Wants these sites confirmed. Those that are wanted already are no error.
///
/// # Errors
/// When the database fails.
pub async fn want(conn: &mut PgConnection, sites: &[SiteId]) -> Result<(), Error> {
    sqlx::query!(
        "insert into wanted_confirmations (site_id) select unnest($1::bigint[]) order by 1 on conflict do nothing",
        &raw_sites(sites),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The sites of located `gnp-confirmed` tasks whose confirmation has not begun, or ended more than `max_age` ago, and those that are
/// [wanted](want); at most `limit`, and so many only that no more than `at_once` are open.
///
/// # Errors
/// When the database fails.
pub async fn due(conn: &mut PgConnection, max_age: Duration, limit: i64, at_once: i64) -> Result<Vec<SiteId>, Error> {
    let sites = sqlx::query_scalar!(
        r#"
        select t.site_id as "site_id!"
        from tasks t join batches b on b.id = t.batch_id
        where t.state = 'located' and b.strategy = $1
          and not exists (
              select from confirmations r
              where r.site_id = t.site_id and (r.ended_at is null or r.ended_at >= now() - make_interval(secs => $2))
          )
        union
        select site_id from wanted_confirmations
        order by 1
        limit greatest(0, least($3::bigint, $4 - (select count(*) from confirmations where ended_at is null)))
        "#,
        Strategy::GnpConfirmed.name(),
        max_age.as_secs_f64(),
        limit,
        at_once,
    )
    .fetch_all(conn)
    .await?;
    Ok(sites.into_iter().map(SiteId::new).collect())
}

/// Who measured these sites or failed to in the last `max_age`; sites that nobody tried are absent.
///
/// # Errors
/// When the database fails or a row contradicts the domain.
pub async fn tried(
    conn: &mut PgConnection,
    sites: &[SiteId],
    max_age: Duration,
) -> Result<HashMap<SiteId, Vec<Tried>>, Error> {
    let rows = sqlx::query!(
        r#"
        select site_id, prober_id, rtt_us from site_measurements
        where site_id = any($1) and measured_at >= now() - make_interval(secs => $2)
        order by site_id, prober_id
        "#,
        &raw_sites(sites),
        max_age.as_secs_f64(),
    )
    .fetch_all(conn)
    .await?;
    let mut tried: HashMap<SiteId, Vec<Tried>> = HashMap::new();
    for row in rows {
        let rtt = round_trip("site_measurements", "rtt_us", row.rtt_us)?;
        tried.entry(SiteId::new(row.site_id)).or_default().push((AgentId::new(row.prober_id), rtt));
    }
    Ok(tried)
}

/// Begins the confirmation of these sites, each by these agents; one by nobody ends at once. A confirmation that another
/// scheduler began meanwhile, and one that ended less than `max_age` ago, stays as it is; none of them is wanted any more.
///
/// Tasks that wait for it say `reason`, in place of a `former` one or nothing, until it ends. Returns how many ended at once.
///
/// # Errors
/// When the database fails.
pub async fn begin(
    conn: &mut PgConnection,
    confirmations: &[(SiteId, Vec<AgentId>)],
    max_age: Duration,
    reason: &str,
    former: &[&str],
) -> Result<u64, Error> {
    let sites: Vec<i64> = confirmations.iter().map(|(site, _)| site.get()).collect();
    let empty: Vec<bool> = confirmations.iter().map(|(_, confirmers)| confirmers.is_empty()).collect();
    let begun: Vec<i64> = sqlx::query_scalar!(
        r#"
        insert into confirmations (site_id, ended_at)
        select site_id, case when empty then now() end
        from unnest($1::bigint[], $2::boolean[]) as begun (site_id, empty)
        order by site_id
        on conflict (site_id) do update set began_at = now(), ended_at = excluded.ended_at
        where confirmations.ended_at < now() - make_interval(secs => $3)
        returning site_id
        "#,
        &sites,
        &empty,
        max_age.as_secs_f64(),
    )
    .fetch_all(&mut *conn)
    .await?;
    sqlx::query!("delete from wanted_confirmations where site_id = any($1)", &sites).execute(&mut *conn).await?;
    sqlx::query!("delete from confirmers where site_id = any($1)", &begun).execute(&mut *conn).await?;
    let asked = confirmations.iter().filter(|(site, _)| begun.contains(&site.get()));
    let (sites, agents): (Vec<i64>, Vec<i64>) =
        asked.flat_map(|(site, confirmers)| confirmers.iter().map(|confirmer| (site.get(), confirmer.get()))).unzip();
    sqlx::query!(
        "insert into confirmers (site_id, agent_id) select * from unnest($1::bigint[], $2::bigint[])",
        &sites,
        &agents,
    )
    .execute(&mut *conn)
    .await?;
    let former: Vec<String> = former.iter().map(|reason| (*reason).to_owned()).collect();
    sqlx::query!(
        r#"
        update tasks set reason = $2 from batches
        where site_id = any($1) and state::text = 'located' and (reason is null or reason = any($4))
          and batches.id = tasks.batch_id and batches.strategy = any($3)
        "#,
        &sites,
        reason,
        &confirming(),
        &former,
    )
    .execute(conn)
    .await?;
    let ended = confirmations.iter().filter(|(site, confirmers)| confirmers.is_empty() && begun.contains(&site.get()));
    Ok(u64::try_from(ended.count()).unwrap_or(u64::MAX))
}

/// The strategies that wait for confirmations.
pub(super) fn confirming() -> Vec<String> {
    let waits = |strategy: &Strategy| *strategy == Strategy::GnpConfirmed || strategy.confirms_the_unsure();
    Strategy::ALL.into_iter().filter(waits).map(|strategy| strategy.name().to_owned()).collect()
}

/// The sites of open confirmations that nobody is measuring now, each with the connected and believed confirmers that
/// have yet to answer; the longest open first, at most `limit`. One whose order was lost with its session is among them again.
///
/// # Errors
/// When the database fails.
pub async fn askable(conn: &mut PgConnection, limit: i64) -> Result<Vec<Due>, Error> {
    let rows = sqlx::query!(
        r#"
        select r.site_id, array_agg(c.agent_id order by c.agent_id) as "confirmers!",
               array_agg(host(coalesce(seen.address, sites.address)) order by c.agent_id) as "addresses!: Vec<Option<String>>"
        from confirmations r
        join sites on sites.id = r.site_id
        join confirmers c using (site_id)
        join sessions s on s.agent_id = c.agent_id and s.state = 'active'
        left join site_sightings seen on seen.site_id = r.site_id and seen.prober_id = c.agent_id
        where r.ended_at is null
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
    .fetch_all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| Due { site: SiteId::new(row.site_id), turns: Turn::listed(row.confirmers, row.addresses) })
        .collect())
}

/// Orders these sites measured by these of their confirmers. A site that cannot be measured now gets no order. Returns the
/// confirmers that got orders.
///
/// # Errors
/// When the database fails.
pub async fn ask(
    conn: &mut PgConnection,
    orders: &[(SiteId, AgentId)],
    lifetime: Duration,
) -> Result<Vec<AgentId>, Error> {
    let (sites, agents): (Vec<i64>, Vec<i64>) = orders.iter().map(|(site, agent)| (site.get(), agent.get())).unzip();
    let mut tx = conn.begin().await?;
    measurement_orders::order_sites(&mut tx, orders, lifetime).await?;
    let asked = sqlx::query_scalar!(
        r#"
        with ordered as (
            update measurement_orders o set confirming = true
            from unnest($1::bigint[], $2::bigint[]) as asked (site_id, agent_id)
            -- Those of this transaction: an older one is a landmark's.
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
    .fetch_all(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(asked.into_iter().map(AgentId::new).collect())
}

/// Notes which confirmers have answered. A round trip counts when it was not older than `max_age` as the confirmation
/// began, for it may be another site's at the same address; a failure only when it came after the confirmer was asked.
///
/// # Errors
/// When the database fails.
pub async fn hear(conn: &mut PgConnection, max_age: Duration) -> Result<(), Error> {
    sqlx::query!(
        r#"
        update confirmers c set answered_at = now()
        from confirmations r, site_measurements m
        where r.ended_at is null and c.site_id = r.site_id and c.answered_at is null
          and m.site_id = c.site_id and m.prober_id = c.agent_id
          and m.measured_at >= case when m.rtt_us is null then coalesce(c.asked_at, r.began_at)
                                    else r.began_at - make_interval(secs => $1) end
        "#,
        max_age.as_secs_f64(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Ends the confirmations in which nobody connected and believed has yet to answer, and those open for longer than `patience`. Takes
/// `reason` back from their tasks; returns how many ended.
///
/// # Errors
/// When the database fails.
pub async fn end(conn: &mut PgConnection, patience: Duration, reason: &str) -> Result<u64, Error> {
    let ended = sqlx::query_scalar!(
        r#"
        with ended as (
            update confirmations r set ended_at = now()
            where r.ended_at is null
              and (r.began_at < now() - make_interval(secs => $1) or not exists (
                  select from confirmers c
                  join sessions s on s.agent_id = c.agent_id and s.state = 'active'
                  where c.site_id = r.site_id and c.answered_at is null
                    and c.agent_id not in (select q.agent_id from quarantines q where q.released_at is null)
              ))
            returning r.site_id
        ), freed as (
            update tasks set reason = null from ended
            where tasks.site_id = ended.site_id and tasks.state::text = 'located' and tasks.reason = $2
        )
        select count(*) as "ended!" from ended
        "#,
        patience.as_secs_f64(),
        reason,
    )
    .fetch_one(conn)
    .await?;
    Ok(u64::try_from(ended).unwrap_or(0))
}
