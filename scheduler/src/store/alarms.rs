//! Alarms: sites that were broken off, because requests to them failed without end. Nobody crawls one until a person reopens it; tasks of
//! it that come to be chosen for are parked.
//!
//! Nothing of this is stored beside the outcomes: a site is broken off while its breaker opened after it was reopened last (the view
//! `broken_off`).

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::{SiteId, TaskId};

use super::{Error, unsigned};

/// A site that was broken off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alarm {
    /// Its name.
    pub site: String,
    /// When.
    pub since: DateTime<Utc>,
    /// The name of the agent that did.
    pub agent: String,
    /// What it says of it.
    pub message: String,
    /// Tasks that wait for it to be reopened.
    pub waiting: u64,
}

/// The open alarms, the newest first, at most `limit`; and how many there are.
///
/// # Errors
/// When the database fails.
pub async fn open(conn: &mut PgConnection, limit: i64) -> Result<(Vec<Alarm>, u64), Error> {
    let rows = sqlx::query!(
        r#"
        select s.name as site, broken.since as "since!", o.agent as "agent!", o.message as "message!",
               (select count(*) from parkings p join tasks t on t.id = p.task_id
                where p.cause = 'breaker' and t.site_id = s.id and t.state = 'located') as "waiting!",
               count(*) over () as "total!"
        from broken_off broken
        join sites s on s.id = broken.site_id
        cross join lateral (
            select a.name as agent, o.message
            from outcomes o join tasks t on t.id = o.task_id join agents a on a.id = o.agent_id
            where o.blocked_by = 'breaker' and o.accepted_at = broken.since and t.site_id = s.id
            limit 1
        ) o
        order by broken.since desc, s.name
        limit $1
        "#,
        limit,
    )
    .fetch_all(conn)
    .await?;
    let total = unsigned("outcomes", "count", rows.first().map_or(0, |row| row.total))?;
    let alarms = rows.into_iter().map(|row| {
        Ok(Alarm {
            site: row.site,
            since: row.since,
            agent: row.agent,
            message: row.message,
            waiting: unsigned("parkings", "count", row.waiting)?,
        })
    });
    Ok((alarms.collect::<Result<_, Error>>()?, total))
}

/// Since when a site has been broken off; `None` when it is not.
///
/// # Errors
/// When the database fails.
pub async fn of_site(conn: &mut PgConnection, site: SiteId) -> Result<Option<DateTime<Utc>>, Error> {
    let since = sqlx::query_scalar!(r#"select since as "since!" from broken_off where site_id = $1"#, site.get());
    Ok(since.fetch_optional(conn).await?)
}

/// Parks located tasks whose sites are broken off. They are locked by the caller.
///
/// # Errors
/// When the database fails.
pub async fn park(conn: &mut PgConnection, tasks: &[TaskId]) -> Result<(), Error> {
    let tasks: Vec<i64> = tasks.iter().map(|task| task.get()).collect();
    sqlx::query!(
        r#"
        with parked as (
            insert into parkings (task_id, cause) select id, 'breaker' from unnest($1::bigint[]) as id
            on conflict (task_id) do update
            set cause = 'breaker', address = null, until = null, since = now(), called = false
        )
        update tasks set parked = true, reason = 'its site was broken off: `landfall sites reopen` lets it be crawled again'
        where id = any($1)
        "#,
        &tasks,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Lets sites be crawled again, all that are broken off where none is named; returns how many were, and how many tasks waited for that.
/// Run in a transaction.
///
/// # Errors
/// When the database fails.
pub async fn reopen(conn: &mut PgConnection, sites: Option<&[SiteId]>) -> Result<(u64, u64), Error> {
    let named: Option<Vec<i64>> = sites.map(|sites| sites.iter().map(|site| site.get()).collect());
    let reopened = sqlx::query_scalar!(
        r#"
        update sites s set reopened_at = now()
        from broken_off broken
        where s.id = broken.site_id and ($1::bigint[] is null or s.id = any($1))
        returning s.id
        "#,
        named.as_deref(),
    )
    .fetch_all(&mut *conn)
    .await?;
    let called = sqlx::query!(
        r#"
        with waiting as (
            select t.id, t.state = 'located' as located from parkings p join tasks t on t.id = p.task_id
            where p.cause = 'breaker' and t.site_id = any($1)
            order by t.id
            for update of t
        ), over as (
            delete from parkings p using waiting where p.task_id = waiting.id
        )
        update tasks t set parked = false, reason = null from waiting where t.id = waiting.id and waiting.located
        "#,
        &reopened,
    )
    .execute(conn)
    .await?;
    Ok((u64::try_from(reopened.len()).unwrap_or(u64::MAX), called.rows_affected()))
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::model::LeaseToken;
    use crate::store::outcomes::{Blocker, Ending, Report};
    use crate::store::{assignments, fixtures, leases};

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_site_that_was_broken_off_waits_for_a_person(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let (first, second) =
            (fixtures::batch(&mut conn, "b", "random").await, fixtures::batch(&mut conn, "c", "random").await);
        let agent = fixtures::agent(&mut conn, "a").await;
        let session = fixtures::session(&mut conn, agent).await;
        let (site, other) = (fixtures::site(&mut conn, "a.cn").await, fixtures::site(&mut conn, "b.cn").await);
        let task = fixtures::assigned(&mut conn, first, site, agent).await;
        leases::grant(&mut conn, agent, session).await.expect("grant");
        let ending = Ending::Blocked(Some(Blocker::Breaker));
        let report = Report {
            task,
            token: LeaseToken::new(1),
            ending,
            pages: 3,
            bytes: 300,
            errors: 50,
            started_at: chrono::DateTime::UNIX_EPOCH,
            duration: std::time::Duration::from_secs(60),
            rtt: None,
            message: "50 requests in a row failed".to_owned(),
            refetched: 0,
            trapped: 0,
        };
        fixtures::record(&mut conn, agent, &report).await.expect("record");
        let next = fixtures::task(&mut conn, second, site, "located").await;
        let unhurt = fixtures::task(&mut conn, second, other, "located").await;
        let broken = async |conn: &mut PgConnection| {
            let waiting =
                assignments::waiting(conn, assignments::Pool::EachByItself, assignments::Within::default(), 10)
                    .await
                    .expect("look");
            waiting.into_iter().map(|task| (task.task, task.broken_off)).collect::<Vec<_>>()
        };
        assert_eq!(broken(&mut conn).await, [(next, true), (unhurt, false)]);
        park(&mut conn, &[next]).await.expect("park");
        assert_eq!(broken(&mut conn).await, [(unhurt, false)]);
        let (alarms, total) = open(&mut conn, 10).await.expect("list");
        assert_eq!((alarms[0].site.as_str(), alarms[0].agent.as_str(), alarms[0].waiting, total), ("a.cn", "a", 1, 1));
        assert!(of_site(&mut conn, site).await.expect("look").is_some());
        assert_eq!(reopen(&mut conn, Some(&[other])).await.expect("reopen"), (0, 0));
        assert_eq!(reopen(&mut conn, Some(&[site])).await.expect("reopen"), (1, 1));
        assert_eq!(reopen(&mut conn, None).await.expect("reopen"), (0, 0));
        assert_eq!(broken(&mut conn).await, [(next, false), (unhurt, false)]);
        assert_eq!(
            (open(&mut conn, 10).await.expect("list").1, of_site(&mut conn, site).await.expect("look")),
            (0, None)
        );
    }
}
