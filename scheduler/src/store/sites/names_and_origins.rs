//! Finds sites by name, origin or another spelling, and settles sites: stores the origin to which a
//! site's name leads, and the aliases of a site.
//!
//! Of all sites with the same origin, one site (the keeper) represents the origin.
//!
//! Invariants: an origin never changes once it is set. The first site that gets an origin is the
//! origin's keeper. The keeper never becomes an alias, so that its measurements and leases stay
//! valid. Every later site found at that origin becomes an alias of the keeper, so no alias points
//! to an alias. The origin of a site is always in the site's own registrable domain, whatever an
//! agent reports. Storing an origin locks it until the transaction ends.

use std::collections::{HashMap, HashSet};

use sqlx::PgConnection;

use crate::model::site_name::SiteName;
use crate::model::{SiteId, TaskId};
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::tasks::{holds, measuring_and_rounds};
use crate::store::{Error, Locked, Tx};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    pub id: SiteId,
    pub name: String,
    pub origin: Option<String>,
    /// For an alias, the site to which the alias points, with that site's name; `None` for any
    /// other site.
    pub alias_of: Option<(SiteId, String)>,
}

/// Finds a site by its name, its origin, or another spelling of either.
pub async fn find(conn: &mut PgConnection, name: &SiteName) -> Result<Option<Site>, Error> {
    Ok(find_all(conn, std::slice::from_ref(name)).await?.pop().flatten())
}

/// Finds the sites of many names, in their order.
pub async fn find_all(conn: &mut PgConnection, names: &[SiteName]) -> Result<Vec<Option<Site>>, Error> {
    let spellings = names
        .iter()
        .zip(0_i64..)
        .flat_map(|(name, place)| name.spellings().into_iter().map(move |spelling| (place, spelling)));
    let (places, spellings): (Vec<i64>, Vec<String>) = spellings.unzip();
    let rows = sqlx::query!(
        r#"
        with spellings as (
            select place, text, position
            from unnest($1::bigint[], $2::text[]) with ordinality as spellings (place, text, position)
        ), found as (
            select place, position, true as by_name, s.id from spellings join sites s on s.name = text
            union all
            select place, position, false, s.id from spellings join sites s on s.origin = text and s.alias_of is null
        ), best as (
            select distinct on (place) place, id from found order by place, position, by_name desc
        )
        select best.place as "place!", s.id, s.name, s.origin, s.alias_of, keeper.name as "keeper?"
        from best join sites s on s.id = best.id left join sites keeper on keeper.id = s.alias_of
        "#,
        &places,
        &spellings,
    )
    .all(conn)
    .await?;
    let found = rows.into_iter().map(|row| {
        let alias_of = row.alias_of.zip(row.keeper);
        (row.place, Site { id: row.id, name: row.name, origin: row.origin, alias_of })
    });
    let mut found: HashMap<i64, Site> = found.collect();
    Ok((0_i64..).take(names.len()).map(|place| found.remove(&place)).collect())
}

impl Site {
    /// The site's identifier and, for an alias, also the identifier of the site to which the alias
    /// points. The data of both sites apply to the alias.
    pub fn ids(&self) -> Vec<SiteId> {
        std::iter::once(self.id).chain(self.alias_of.as_ref().map(|(keeper, _)| *keeper)).collect()
    }
}

/// Number of attempts to move an alias's tasks to the keeper. An attempt fails if a submission adds
/// the same task to the keeper in the meantime.
const MOVE_TRIES: u32 = 3;

/// Stores the origin that the prober observed as the site's origin, and returns the site that
/// represents this origin (the keeper).
///
/// If the site and the keeper both have a task in the same batch and round, only one task is kept:
/// the task that has begun or, if neither has, the keeper's task. The other task is cancelled, with
/// the reason stored.
///
/// Locks the origin, the site and its tasks, so the transaction must not have locked a task before.
pub async fn settle(tx: &mut Tx<'_>, site: SiteId, origin: &str) -> Result<SiteId, Error> {
    let Ok(origin) = origin.parse::<SiteName>() else {
        tracing::warn!(site.id = %site, origin, "an agent reported an invalid origin");
        return Ok(site);
    };
    // The lock is taken by a separate statement, so that the next statement sees the changes
    // committed by the lock's previous holder.
    lock(tx, &origin).await?;
    let known = sqlx::query!("select name, origin, alias_of from sites where id = $1 for no key update", site.get())
        .optional(tx)
        .await?;
    let stands = match known {
        None => site,
        Some(row) if row.origin.is_some() || row.alias_of.is_some() => row.alias_of.unwrap_or(site),
        // One agent's report must not make a site an alias of a foreign site, because the site's
        // tasks could then be cancelled.
        Some(row) if !row.name.parse::<SiteName>().is_ok_and(|name| name.may_settle_at(&origin)) => {
            tracing::warn!(site.id = %site, site.name = row.name, %origin, "an agent reported a foreign origin");
            site
        }
        Some(_) => settle_new(tx, site, origin.as_str()).await?,
    };
    Ok(stands)
}

/// Locks an origin until the transaction ends.
pub(in crate::store) async fn lock(tx: &mut Tx<'_>, origin: &SiteName) -> Result<(), Error> {
    sqlx::query!("select pg_advisory_xact_lock(hashtextextended($1, 7171))", origin.as_str()).run(tx).await
}

/// Returns which of these sites are not settled yet (have no origin and are not aliases).
pub async fn unsettled(conn: &mut PgConnection, sites: &[SiteId]) -> Result<HashSet<SiteId>, Error> {
    let sites: Vec<i64> = sites.iter().map(|site| site.get()).collect();
    let ids =
        sqlx::query_scalar!("select id from sites where id = any($1) and origin is null and alias_of is null", &sites,)
            .all(conn)
            .await?;
    Ok(ids.into_iter().collect())
}

async fn settle_new(tx: &mut Tx<'_>, site: SiteId, origin: &str) -> Result<SiteId, Error> {
    let keeper =
        sqlx::query_scalar!("select id from sites where origin = $1 and alias_of is null", origin).optional(tx).await?;
    sqlx::query!(
        "update sites set origin = $2, alias_of = $3 where id = $1",
        site.get(),
        origin,
        keeper.map(SiteId::get)
    )
    .run(tx)
    .await?;
    let Some(keeper) = keeper else { return Ok(site) };
    share_measurements(tx, site, keeper).await?;
    for attempt in 1..=MOVE_TRIES {
        let mut savepoint = tx.savepoint().await?;
        match move_tasks(&mut savepoint, site, keeper).await {
            Ok(()) => {
                savepoint.commit().await?;
                break;
            }
            Err(Error::Database(sqlx::Error::Database(error)))
                if error.is_unique_violation() && attempt < MOVE_TRIES =>
            {
                savepoint.rollback().await?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(keeper)
}

/// Copies the new alias's measurements to the keeper, because both names always led to the same
/// origin.
async fn share_measurements(conn: &mut PgConnection, site: SiteId, keeper: SiteId) -> Result<(), Error> {
    // Orders are locked before measurements, as by a report.
    sqlx::query!("delete from measurement_orders where site_id = $1", site.get()).run(conn).await?;
    sqlx::query!(
        r#"
        insert into site_measurements (site_id, prober_id, rtt_us, min_us, median_us, spread_us, answered, lost, failure,
                                       address, shared_from, measured_at)
        select $2, prober_id, rtt_us, min_us, median_us, spread_us, answered, lost, failure,
               address, shared_from, measured_at
        from site_measurements where site_id = $1 and rtt_us is not null
        on conflict (site_id, prober_id) do nothing
        "#,
        site.get(),
        keeper.get(),
    )
    .run(conn)
    .await
}

async fn move_tasks(tx: &mut Tx<'_>, site: SiteId, keeper: SiteId) -> Result<(), Error> {
    // One statement locks the tasks of both sites in the order of their identifiers, like every
    // transaction that waits for tasks.
    sqlx::query_scalar!(
        r#"
        select id from tasks
        where site_id in ($1, $2) and state in ('submitted', 'measuring', 'located', 'assigned')
        order by id
        for update
        "#,
        site.get(),
        keeper.get(),
    )
    .all(tx)
    .await?;
    // The keeper's tasks that have not begun are cancelled if the alias's crawl has begun. This
    // statement and the next also lock tasks that were added since the first one.
    let given_way: Vec<_> = sqlx::query_scalar!(
        r#"
        select id from tasks
        where site_id = $2 and state in ('submitted', 'measuring', 'located', 'assigned')
          and exists (
              select from tasks begun
              where begun.batch_id = tasks.batch_id and begun.round = tasks.round and begun.site_id = $1
                and begun.state in ('leased', 'done')
          )
        order by id
        for update
        "#,
        site.get(),
        keeper.get(),
    )
    .locked(tx)
    .await?;
    cancel(tx, &given_way, site).await?;
    let moved = sqlx::query!(
        r#"
        select id, exists (
                   select from tasks kept
                   where kept.batch_id = tasks.batch_id and kept.round = tasks.round and kept.site_id = $2
               ) as "kept!"
        from tasks
        where site_id = $1 and state in ('submitted', 'measuring', 'located', 'assigned')
        order by id
        for update
        "#,
        site.get(),
        keeper.get(),
    )
    .all(tx)
    .await?;
    let (given_way, moved): (Vec<_>, Vec<_>) = moved.into_iter().partition(|row| row.kept);
    let given_way: Vec<_> = Locked::all(tx, given_way.into_iter().map(|row| row.id));
    cancel(tx, &given_way, keeper).await?;
    let moved: Vec<_> = Locked::all(tx, moved.into_iter().map(|row| row.id));
    // The holds of the moved tasks end, because their causes concern the alias, not the keeper.
    holds::end(tx, &moved).await?;
    sqlx::query!(
        r#"
        update tasks
        set site_id = $2, reason = null, state_since = now(),
            state = case when b.strategy = any($3) then 'submitted'::task_state else 'located' end
        from batches b
        where b.id = tasks.batch_id and tasks.id = any($1)
        "#,
        &moved as _,
        keeper.get(),
        &measuring_and_rounds::distanced(),
    )
    .run(tx)
    .await
}

/// Cancels tasks because another name of the same origin has a task in the same batch and round.
async fn cancel(tx: &mut Tx<'_>, tasks: &[Locked<TaskId>], of: SiteId) -> Result<(), Error> {
    holds::end(tx, tasks).await?;
    sqlx::query!(
        r#"
        update tasks
        set state = 'cancelled', reason = 'same origin as ' || (select name from sites where id = $2), reason_kind = 'same-site',
            state_since = now()
        where id = any($1)
        "#,
        tasks as _,
        of.get(),
    )
    .run(tx)
    .await
}

/// For each alias, moves the tasks submitted under its name to the site to which it points.
pub async fn follow_aliases(tx: &mut Tx<'_>, aliases: &[(SiteId, SiteId)]) -> Result<(), Error> {
    // Moves the tasks of one alias at a time, because a batch may contain two aliases of one site,
    // and the second move must see the first. This is fast enough, because there are few aliases.
    for (alias, keeper) in aliases {
        move_tasks(tx, *alias, *keeper).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::store::fixtures::{self, Conn};
    use crate::store::tasks::holds::Cause;

    const ORIGIN: &str = "https://www.a.cn:443";

    async fn task(conn: &mut PgConnection, task: TaskId) -> (i64, String, Option<String>) {
        sqlx::query_as("select site_id, state::text, reason from tasks where id = $1")
            .bind(task.get())
            .fetch_one(conn)
            .await
            .expect("read a task")
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn two_names_at_one_origin_become_one_site(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let (both, alone) = (
            fixtures::batch(&mut conn, "both", "gnp-top3").await,
            fixtures::batch(&mut conn, "alone", "gnp-top3").await,
        );
        let (bare, www) = (fixtures::site(&mut conn, "a.cn").await, fixtures::site(&mut conn, "www.a.cn").await);
        let kept = fixtures::task(&mut conn, both, bare, "measuring").await;
        let twin = fixtures::task(&mut conn, both, www, "measuring").await;
        let moved = fixtures::task(&mut conn, alone, www, "measuring").await;

        assert_eq!(settle(&mut conn, bare, ORIGIN).await.expect("settle"), bare);
        assert_eq!(settle(&mut conn, www, ORIGIN).await.expect("settle"), bare);
        assert_eq!(task(&mut conn, kept).await, (bare.get(), "measuring".into(), None));
        assert_eq!(task(&mut conn, twin).await, (www.get(), "cancelled".into(), Some("same origin as a.cn".into())));
        assert_eq!(task(&mut conn, moved).await, (bare.get(), "submitted".into(), None));

        assert_eq!(settle(&mut conn, www, "https://elsewhere:443").await.expect("settle"), bare, "settled once");
        assert_eq!(settle(&mut conn, bare, ORIGIN).await.expect("settle"), bare);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_agent_cannot_make_one_site_another(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let batch = fixtures::batch(&mut conn, "b", "gnp-top3").await;
        let (victim, other) = (fixtures::site(&mut conn, "a.cn").await, fixtures::site(&mut conn, "b.cn").await);
        let kept = fixtures::task(&mut conn, batch, victim, "measuring").await;
        fixtures::task(&mut conn, batch, other, "measuring").await;
        settle(&mut conn, other, "https://b.cn").await.expect("settle");
        for origin in ["https://b.cn", "http://10.0.0.1", "b.cn", "nonsense here"] {
            assert_eq!(settle(&mut conn, victim, origin).await.expect("settle"), victim, "{origin}");
        }
        assert_eq!(task(&mut conn, kept).await, (victim.get(), "measuring".into(), None));
        let settled = "select origin from sites where id = $1";
        let origin: Option<String> =
            sqlx::query_scalar(settled).bind(victim.get()).fetch_one(&mut *conn).await.expect("read a site");
        assert_eq!(origin, None, "an honest prober may still settle it");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_crawl_that_has_begun_is_the_one_that_is_kept(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let (bare, www) = (fixtures::site(&mut conn, "a.cn").await, fixtures::site(&mut conn, "www.a.cn").await);
        let waiting = fixtures::task(&mut conn, batch, bare, "assigned").await;
        let crawled = fixtures::task(&mut conn, batch, www, "done").await;
        settle(&mut conn, bare, ORIGIN).await.expect("settle");
        settle(&mut conn, www, ORIGIN).await.expect("settle");
        assert_eq!(task(&mut conn, crawled).await, (www.get(), "done".into(), None));
        assert_eq!(task(&mut conn, waiting).await.2.as_deref(), Some("same origin as www.a.cn"));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn names_settled_at_the_same_time_become_one_site(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let batch = fixtures::batch(&mut conn, "b", "gnp-top3").await;
        let (bare, www) = (fixtures::site(&mut conn, "a.cn").await, fixtures::site(&mut conn, "www.a.cn").await);
        fixtures::task(&mut conn, batch, bare, "measuring").await;
        let twin = fixtures::task(&mut conn, batch, www, "measuring").await;

        let mut first = fixtures::begin(&pool).await;
        settle(&mut first, www, ORIGIN).await.expect("settle");
        let second = async |tx: &mut Tx<'_>| settle(tx, bare, ORIGIN).await.expect("settle");
        assert_eq!(fixtures::behind(&pool, first, second).await, www);
        assert_eq!(task(&mut conn, twin).await.1, "measuring");
        let open: i64 = fixtures::scalar(&mut conn, "select count(*) from tasks where state <> 'cancelled'").await;
        assert_eq!(open, 1);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_was_held_under_another_name_is_free_to_go(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let (bare, www) = (fixtures::site(&mut conn, "a.cn").await, fixtures::site(&mut conn, "www.a.cn").await);
        let held = fixtures::task(&mut conn, batch, www, "located").await;
        let locked = fixtures::lock(&mut conn, &[held]).await[0];
        holds::hold(&mut conn, &[(locked, Cause::Unmet)]).await.expect("hold");
        settle(&mut conn, bare, ORIGIN).await.expect("settle");
        settle(&mut conn, www, ORIGIN).await.expect("settle");
        assert_eq!(task(&mut conn, held).await, (bare.get(), "located".into(), None));
        let left = "select (select count(*) from task_holds) + (select count(*) from tasks where held)";
        assert_eq!(sqlx::query_scalar::<_, i64>(left).fetch_one(&mut *conn).await.expect("count"), 0);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_task_submitted_under_an_alias_follows_it(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let batch = fixtures::batch(&mut conn, "b", "gnp-top3").await;
        let (bare, www) = (fixtures::site(&mut conn, "a.cn").await, fixtures::site(&mut conn, "www.a.cn").await);
        settle(&mut conn, bare, ORIGIN).await.expect("settle");
        settle(&mut conn, www, ORIGIN).await.expect("settle");
        let late = fixtures::task(&mut conn, batch, www, "submitted").await;
        let begun = measuring_and_rounds::begin_measuring(&mut conn, 10, 10).await.expect("begin");
        assert_eq!(begun, measuring_and_rounds::MeasuringBegun { tasks: 1, aliases: vec![(www, bare)] });
        follow_aliases(&mut conn, &begun.aliases).await.expect("follow");
        assert_eq!(task(&mut conn, late).await, (bare.get(), "submitted".into(), None));
    }
}
