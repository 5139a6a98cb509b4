//! The sites whose circuit is open because too many requests failed in a row. No agent crawls a
//! site with an open circuit until an operator reopens the circuit. The site's tasks are held when
//! an agent is to be chosen for them.
//!
//! Invariants: only an outcome opens a circuit, and only an operator who reopens the site closes
//! the circuit. No task is held because of a closed circuit.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::{AgentId, BatchId, SiteId, TaskId};

use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::tasks::holds::{self, Cause, HoldFilter};
use crate::store::types::Unsigned;
use crate::store::{Error, Locked, Tx};

/// A site whose circuit is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenCircuit {
    pub id: SiteId,
    pub site: String,
    pub since: DateTime<Utc>,
    /// The name of the agent whose outcome opened the circuit.
    pub agent: String,
    pub message: String,
    /// Number of tasks that are held until the site is reopened.
    pub waiting: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CircuitFilter {
    /// The batch contains the site.
    pub batch: Option<BatchId>,
    /// An outcome of one of these agents opened the circuit.
    pub agents: Option<Vec<AgentId>>,
    /// The circuit opened at this time or later.
    pub since: Option<DateTime<Utc>>,
    /// The circuit opened before this time.
    pub until: Option<DateTime<Utc>>,
}

/// At most `limit` of the selected circuits after `after`, newest first, and the number of all
/// selected circuits after `after`: the time at which a circuit opened, and its site.
pub async fn list(
    conn: &mut PgConnection,
    filter: &CircuitFilter,
    after: Option<(DateTime<Utc>, SiteId)>,
    limit: i64,
) -> Result<(Vec<OpenCircuit>, u64), Error> {
    let rows = sqlx::query!(
        r#"
        select s.id, s.name as site, c.since, a.name as agent, c.message,
               (select count(*) from task_holds h where h.cause = 'breaker' and h.site_id = s.id) as "waiting!: Unsigned<u64>",
               count(*) over () as "all!: Unsigned<u64>"
        from open_circuits c
        join sites s on s.id = c.site_id
        join agents a on a.id = c.agent_id
        where ($2::bigint is null or exists (select from tasks t where t.batch_id = $2 and t.site_id = c.site_id))
          and ($3::bigint[] is null or c.agent_id = any($3))
          and ($4::timestamptz is null or c.since >= $4)
          and ($5::timestamptz is null or c.since < $5)
          and ($6::timestamptz is null or (c.since, c.site_id) < ($6, $7))
        order by c.since desc, c.site_id desc
        limit $1
        "#,
        limit,
        filter.batch.map(BatchId::get),
        filter.agents.as_ref() as _,
        filter.since,
        filter.until,
        after.map(|(since, _)| since),
        after.map(|(_, site)| site.get()),
    )
    .all(conn)
    .await?;
    let all = rows.first().map_or(0, |row| row.all.0);
    let circuits = rows.into_iter().map(|row| OpenCircuit {
        id: row.id,
        site: row.site,
        since: row.since,
        agent: row.agent,
        message: row.message,
        waiting: row.waiting.0,
    });
    Ok((circuits.collect(), all))
}

pub async fn count(conn: &mut PgConnection) -> Result<u64, Error> {
    let count = sqlx::query_scalar!(r#"select count(*) as "count!: Unsigned<u64>" from open_circuits"#);
    Ok(count.one(conn).await?.0)
}

/// The time since which a site's circuit has been open; `None` if it is closed.
pub async fn of_site(conn: &mut PgConnection, site: SiteId) -> Result<Option<DateTime<Utc>>, Error> {
    let since = sqlx::query_scalar!("select since from open_circuits where site_id = $1", site.get());
    since.optional(conn).await
}

/// Opens the circuits of sites whose crawls were ended by the breaker. Does not change a circuit
/// that is already open.
pub(in crate::store) async fn open(conn: &mut PgConnection, ended: &[(SiteId, AgentId, &str)]) -> Result<(), Error> {
    let sites: Vec<i64> = ended.iter().map(|(site, ..)| site.get()).collect();
    let agents: Vec<i64> = ended.iter().map(|(_, agent, _)| agent.get()).collect();
    let messages: Vec<&str> = ended.iter().map(|(.., message)| *message).collect();
    sqlx::query!(
        r#"
        insert into open_circuits (site_id, agent_id, message)
        select * from unnest($1::bigint[], $2::bigint[], $3::text[]) as opened (site_id, agent_id, message)
        order by site_id
        on conflict (site_id) do nothing
        "#,
        &sites,
        &agents,
        &messages as _,
    )
    .run(conn)
    .await
}

/// Holds each of these located tasks whose site has an open circuit. Returns the held tasks.
pub async fn hold(tx: &mut Tx<'_>, tasks: &[Locked<TaskId>]) -> Result<Vec<TaskId>, Error> {
    let open = sqlx::query_scalar!(
        r#"
        select t.id from tasks t join open_circuits c on c.site_id = t.site_id
        where t.id = any($1)
        -- The lock keeps a circuit open until the holds are committed. A circuit that is being
        -- closed counts as closed.
        for share of c skip locked
        "#,
        tasks as _,
    )
    .all(tx)
    .await?;
    let broken: Vec<_> = open.into_iter().map(|task| (Locked::by(tx, task), Cause::Breaker)).collect();
    holds::hold(tx, &broken).await
}

/// What a piece of a reopening did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reopened {
    /// Number of circuits that were open.
    pub sites: u64,
    /// Number of released tasks.
    pub tasks: u64,
    /// Number of circuits that stay open, because another transaction has locked a task of the site
    /// or the circuit.
    pub busy: u64,
    /// The site after which the next piece continues; `None` if there is no circuit to close.
    pub next: Option<SiteId>,
}

/// Maximum number of circuits that a piece closes, so that a piece takes well under a second.
const PIECE: i64 = 500;
/// Maximum number of tasks that a piece releases. A site may have more tasks, one for each batch;
/// its circuit is then a piece of its own.
const MOST_TASKS: i64 = 1_000;

/// Closes the next circuits of these sites, or of all sites if `sites` is `None`. Waits for no other
/// transaction.
pub async fn reopen(tx: &mut Tx<'_>, sites: Option<&[SiteId]>, after: SiteId) -> Result<Reopened, Error> {
    let named: Option<Vec<i64>> = sites.map(|sites| sites.iter().map(|site| site.get()).collect());
    let open = sqlx::query_scalar!(
        r#"
        with next as (
            select site_id from open_circuits
            where ($1::bigint[] is null or site_id = any($1)) and site_id > $2
            order by site_id limit $3
        ), counted as (
            select site_id, row_number() over (order by site_id) as place,
                   sum((select count(*) from task_holds h where h.cause = 'breaker' and h.site_id = next.site_id))
                       over (order by site_id) as tasks
            from next
        )
        select site_id from counted where place = 1 or tasks <= $4::bigint order by site_id
        "#,
        named.as_deref(),
        after.get(),
        PIECE,
        MOST_TASKS,
    )
    .all(tx)
    .await?;
    // No task is held for a circuit with this lock, see `hold`. So no hold is overlooked below.
    let locked = sqlx::query_scalar!(
        "select site_id from open_circuits where site_id = any($1) order by site_id for update skip locked",
        &open as _,
    );
    let locked = locked.all(tx).await?;
    let released = holds::release(tx, HoldFilter::Breaker(&locked), i64::MAX).await?;
    let closed = sqlx::query!(
        r#"
        delete from open_circuits c
        where c.site_id = any($1)
          and not exists (select from task_holds h where h.cause = 'breaker' and h.site_id = c.site_id)
        "#,
        &locked as _,
    );
    let closed = closed.affected(tx).await?;
    let number = |rows: usize| u64::try_from(rows).unwrap_or(u64::MAX);
    let busy = number(open.len()).saturating_sub(closed);
    Ok(Reopened { sites: closed, tasks: number(released.len()), busy, next: open.last().copied() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Blocker, CrawlEnding};
    use crate::store::fixtures::{self, Conn, LeasedTask};

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_site_whose_circuit_is_open_waits_for_a_person(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let LeasedTask { agent, site, task, .. } = fixtures::leased(&mut conn, "a").await;
        let second = fixtures::batch(&mut conn, "second", "random").await;
        let other = fixtures::site(&mut conn, "b.cn").await;
        let ending = CrawlEnding::Blocked(Some(Blocker::Breaker));
        let report = fixtures::report(task, fixtures::TOKEN, ending);
        fixtures::record(&mut conn, agent, &report).await;
        let next = fixtures::task(&mut conn, second, site, "located").await;
        let unhurt = fixtures::task(&mut conn, second, other, "located").await;
        assert_eq!(fixtures::chosen(&mut conn).await, [next, unhurt]);
        let locked = fixtures::lock(&mut conn, &[next, unhurt]).await;
        assert_eq!(hold(&mut conn, &locked).await.expect("hold"), [next]);
        assert_eq!(fixtures::chosen(&mut conn).await, [unhurt]);
        let (circuits, total) = list(&mut conn, &CircuitFilter::default(), None, 10).await.expect("list");
        assert_eq!(
            (circuits[0].site.as_str(), circuits[0].agent.as_str(), circuits[0].waiting, total),
            ("a.cn", "a", 1, 1)
        );
        assert!(of_site(&mut conn, site).await.expect("look").is_some());
        let first = SiteId::new(0);
        let done = |sites, tasks, next| Reopened { sites, tasks, busy: 0, next };
        assert_eq!(reopen(&mut conn, Some(&[other]), first).await.expect("reopen"), done(0, 0, None));
        assert_eq!(reopen(&mut conn, Some(&[site]), first).await.expect("reopen"), done(1, 1, Some(site)));
        assert_eq!(reopen(&mut conn, None, first).await.expect("reopen"), done(0, 0, None));
        assert_eq!(fixtures::chosen(&mut conn).await, [next, unhurt]);
        assert_eq!(hold(&mut conn, &locked).await.expect("hold"), []);
        assert_eq!(
            (
                list(&mut conn, &CircuitFilter::default(), None, 10).await.expect("list").1,
                of_site(&mut conn, site).await.expect("look")
            ),
            (0, None)
        );
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn many_circuits_are_closed_piece_by_piece(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        fixtures::agent(&mut conn, "a").await;
        for fill in [
            "insert into sites (name) select 's' || n || '.cn' from generate_series(1, 700) n",
            "insert into open_circuits (site_id, agent_id, message) select s.id, a.id, '' from sites s, agents a",
        ] {
            fixtures::execute(&mut conn, fill).await;
        }
        let first = reopen(&mut conn, None, SiteId::new(0)).await.expect("reopen");
        assert_eq!((first.sites, count(&mut conn).await.expect("count")), (500, 200));
        let second = reopen(&mut conn, None, first.next.expect("more are open")).await.expect("reopen");
        assert_eq!((second.sites, second.tasks, second.busy), (200, 0, 0));
        let last = reopen(&mut conn, None, second.next.expect("a site")).await.expect("reopen");
        assert_eq!(last, Reopened { sites: 0, tasks: 0, busy: 0, next: None });
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_circuit_opens_once_and_outlives_the_batch_whose_crawl_opened_it(mut conn: Conn) {
        let agent = fixtures::agent(&mut conn, "a").await;
        let site = fixtures::site(&mut conn, "a.cn").await;
        for said in ["50 requests in a row failed", "once more"] {
            open(&mut conn, &[(site, agent, said), (site, agent, said)]).await.expect("open");
        }
        let (circuits, total) = list(&mut conn, &CircuitFilter::default(), None, 10).await.expect("list");
        assert_eq!((circuits[0].message.as_str(), total), ("50 requests in a row failed", 1));
    }
}
