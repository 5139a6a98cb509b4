//! Throughput of crawls: of a batch over time, by agent and by strategy, and of all batches over
//! time.
//!
//! The view `crawls` defines when a crawl was active. The number of rows read per crawl is bounded,
//! however many crawls and slices of time there are.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::{BatchId, Rtt, Strategy};
use crate::store::reports::accuracy_failures_agents::ReportScope;
use crate::store::reports::remaining_time::{TaskTotals, recent, task_totals};
use crate::store::rows_and_errors::Rows;
use crate::store::types::{Interval, Unsigned};
use crate::store::{Error, Snapshot};
use crate::throughput::{Amount, RecentCrawls, Remaining, Slice, Total};

/// The highest round of any site of a batch; `None` if the batch has no site.
pub async fn newest_round(conn: &mut PgConnection, batch: BatchId) -> Result<Option<u32>, Error> {
    let newest = sqlx::query_scalar!(
        r#"select max(round) as "round: Unsigned<u32>" from tasks where batch_id = $1"#,
        batch.get()
    )
    .one(conn)
    .await?;
    Ok(newest.map(u32::from))
}

/// Totals of a group of ended crawls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CrawlTotals {
    pub total: Total,
    /// Time during which at least one of an agent's crawls was active, summed over agents.
    pub busy: Duration,
    /// The sum of the crawls' durations.
    pub crawling: Duration,
    /// The mean of the crawls' median round trips.
    pub mean_rtt: Option<Rtt>,
}

/// Totals of all ended crawls, of each agent's crawls, and of each strategy's crawls.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Crawls {
    pub all: CrawlTotals,
    /// When the first crawl began, and when the last one ended; `None` without crawls.
    pub time: Option<(DateTime<Utc>, DateTime<Utc>)>,
    /// Totals by the agent that crawled, in the order of the agents' names.
    pub agents: Vec<(Agent, CrawlTotals)>,
    /// Totals by the strategy of the newest assignment, in the order of the strategies' names.
    pub strategies: Vec<(Strategy, CrawlTotals)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    pub name: String,
    pub city: String,
    pub carrier: String,
}

async fn crawls(conn: &mut PgConnection, scope: ReportScope) -> Result<Crawls, Error> {
    let rows = sqlx::query!(
        r#"
        with crawled as (
            select c.agent_id, a.strategy, c.pages, c.bytes, c.rtt_us, c.begun, c.ended
            from crawls c left join assignments a on a.id = c.assignment_id
            where c.batch_id = $1 and case when $2::integer is null then c.newest_round else c.round = $2 end
        ), alone as (
            -- From `alone_from` on, no crawl that the agent began earlier is active.
            select *, greatest(begun, max(ended) over (
                partition by agent_id order by begun, ended rows between unbounded preceding and 1 preceding
            )) as alone_from
            from crawled
        ), grouped as (
            select agent_id, strategy, grouping(agent_id, strategy) as by, count(*) as sites, sum(pages)::bigint as pages,
                   -- An agent may report any number, so the sum may not fit into a bigint.
                   least(coalesce(sum(bytes), 0), 9223372036854775807)::bigint as bytes,
                   ceil(avg(rtt_us))::bigint as mean_rtt_us,
                   sum(ended - begun) as crawling,
                   sum(greatest(ended - alone_from, interval '0')) as busy,
                   min(begun) as begun, max(ended) as ended
            from alone
            group by grouping sets ((), (agent_id), (strategy))
        )
        select g.by as "by!", a.name as "agent?", a.city as "city?", a.carrier as "carrier?", g.strategy as "strategy?",
               g.sites as "sites!: Unsigned<u64>", coalesce(g.pages, 0) as "pages!: Unsigned<u64>", g.bytes as "bytes!: Unsigned<u64>", g.mean_rtt_us as "mean_rtt_us: Rtt",
               g.crawling as "crawling: Interval", g.busy as "busy: Interval", g.begun, g.ended
        from grouped g left join agents a on a.id = g.agent_id
        order by g.by, a.name, g.strategy
        "#,
        scope.batch.get(),
        scope.stored(),
    )
    .all(conn)
    .await?;
    let mut crawls = Crawls::default();
    for row in rows {
        let part = CrawlTotals {
            total: Total { sites: row.sites.0, pages: row.pages.0, bytes: row.bytes.0 },
            busy: row.busy.unwrap_or_default().0,
            crawling: row.crawling.unwrap_or_default().0,
            mean_rtt: row.mean_rtt_us,
        };
        // `by` is from Postgres' `grouping()`, which sets a bit for each column by which a row is
        // not grouped.
        match (row.by, row.agent, row.city, row.carrier) {
            (0b01, Some(name), Some(city), Some(carrier)) => crawls.agents.push((Agent { name, city, carrier }, part)),
            (0b10, ..) => crawls.strategies.extend(row.strategy.map(|strategy| (strategy, part))),
            _ => (crawls.all, crawls.time) = (part, row.begun.zip(row.ended)),
        }
    }
    Ok(crawls)
}

/// What crawls fetched in each of `slices` equal slices of the time from `from` to `from + span`.
async fn slices(
    conn: &mut PgConnection,
    scope: ReportScope,
    from: DateTime<Utc>,
    span: Duration,
    slices: u16,
) -> Result<Vec<Slice>, Error> {
    let width = (span.as_secs_f64() / f64::from(slices.max(1))).max(f64::MIN_POSITIVE);
    let rows = sqlx::query!(
        r#"
        with crawled as (
            select pages::float8 as pages, bytes::float8 as bytes,
                   extract(epoch from begun - $3)::float8 / $4 as begun, extract(epoch from ended - $3)::float8 / $4 as ended
            from crawls
            where batch_id = $1 and case when $2::integer is null then newest_round else round = $2 end
        ), placed as (
            select pages, bytes, begun, ended,
                   least(greatest(floor(begun), 0), $5::integer - 1)::integer as first,
                   least(greatest(floor(ended), 0), $5::integer - 1)::integer as last
            from crawled
        ), shares as (
            -- `part` is a crawl's share in its first or last slice. `step` is its share in each
            -- slice between, added after the first slice and subtracted at the last slice.
            select slice, pages, bytes, part, step, is_end
            from placed cross join lateral (
                values (first, case when first = last then 1.0 else (first + 1 - begun) / (ended - begun) end, 0.0, 0),
                       (last, case when first = last then 0.0 else (ended - last) / (ended - begun) end, 0.0, 1),
                       (first + 1, 0.0, case when first < last then 1.0 / (ended - begun) else 0.0 end, 0),
                       (last, 0.0, case when first < last then -1.0 / (ended - begun) else 0.0 end, 0)
            ) as share (slice, part, step, is_end)
        )
        select slice as "slice!: Unsigned<u32>", sum(is_end)::bigint as "ended!: Unsigned<u64>",
               sum(part * pages) as "pages!", sum(part * bytes) as "bytes!",
               sum(step * pages) as "pages_step!", sum(step * bytes) as "bytes_step!"
        from shares
        where slice < $5
        group by slice
        "#,
        scope.batch.get(),
        scope.stored(),
        from,
        width,
        i32::from(slices),
    )
    .all(conn)
    .await?;
    let mut filled = vec![Slice::default(); usize::from(slices)];
    for row in rows {
        let slice: usize = row.slice.into();
        if let Some(slice) = filled.get_mut(slice) {
            *slice = Slice {
                ended: row.ended.0,
                part: Amount { pages: row.pages, bytes: row.bytes },
                step: Amount { pages: row.pages_step, bytes: row.bytes_step },
            };
        }
    }
    Ok(filled)
}

/// How a batch's results grew over time.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchGrowth {
    pub totals: TaskTotals,
    pub crawls: Crawls,
    pub recent: RecentCrawls,
    /// From the beginning of the first crawl until now, or, if all tasks have ended, until the end
    /// of the last crawl; `None` before the first crawl.
    pub time: Option<(DateTime<Utc>, DateTime<Utc>)>,
    /// The slices of `time`; empty before the first crawl ends.
    pub slices: Vec<Slice>,
}

impl BatchGrowth {
    pub async fn read(conn: &mut Snapshot, scope: ReportScope, slices: u16) -> Result<Self, Error> {
        let totals = task_totals(conn, scope).await?;
        let crawls = crawls(conn, scope).await?;
        let recent = recent(conn, scope).await?;
        let begun = [crawls.time.map(|(begun, _)| begun), totals.crawling_since].into_iter().flatten().min();
        let Remaining { waiting, crawling, stalled, .. } = &totals.remaining;
        let goes_on = *waiting > 0 || *crawling > 0 || !stalled.is_empty();
        let ended = crawls.time.map(|(_, ended)| ended).filter(|_| !goes_on).unwrap_or(totals.now);
        let time = begun.map(|begun| (begun, ended.max(begun)));
        let slices = match time {
            Some((begun, ended)) if crawls.time.is_some() => {
                self::slices(conn, scope, begun, (ended - begun).to_std().unwrap_or_default(), slices).await?
            }
            _ => Vec::new(),
        };
        Ok(Self { totals, crawls, recent, time, slices })
    }
}

/// The crawls that ended within one interval of time.
#[derive(Debug, Clone, PartialEq)]
pub struct CrawledStretch {
    pub from: DateTime<Utc>,
    pub crawls: u64,
    pub pages: u64,
    pub bytes: f64,
}

/// The crawls that ended between `past` ago and now, in intervals of length `stretch`. Intervals
/// without a crawl are omitted. Reads one row per batch and minute in which crawls ended.
pub async fn crawled(
    conn: &mut PgConnection,
    batch: Option<BatchId>,
    past: Duration,
    stretch: Duration,
) -> Result<Vec<CrawledStretch>, Error> {
    sqlx::query_as!(
        CrawledStretch,
        r#"
        select date_bin($3::interval, minute, timestamptz 'epoch') as "from!", sum(crawls)::bigint as "crawls!: Unsigned<u64>",
               sum(pages)::bigint as "pages!: Unsigned<u64>", sum(bytes)::float8 as "bytes!"
        from batch_minutes
        where minute >= now() - $2::interval and ($1::bigint is null or batch_id = $1)
        group by 1 order by 1
        "#,
        batch.map(BatchId::get),
        Interval(past),
        Interval(stretch),
    )
    .all(conn)
    .await
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;
    use sqlx::pool::PoolConnection;
    use sqlx::postgres::Postgres;

    use super::*;
    use crate::model::{AgentId, SessionId, TaskId};
    use crate::store::reports::remaining_time;
    use crate::store::tasks::holds::{self, Cause};
    use crate::store::{Db, Tx, fixtures};
    use crate::throughput::{BegunCrawl, StallReason, StalledCrawls, estimate, growth};

    /// A batch that agents crawl. In these tests the time `begin` is an hour ago.
    struct Scene {
        db: Db,
        conn: PoolConnection<Postgres>,
        batch: BatchId,
        sites: u32,
    }

    /// An ended crawl. `granted` and `accepted`, the times of its lease and of its outcome, are in
    /// seconds after `begin`. `started` and `took_ms` are by the agent's clock.
    struct Crawl {
        granted: f64,
        accepted: f64,
        started: &'static str,
        took_ms: i64,
        bytes: i64,
    }

    /// A crawl by an agent whose clock is right.
    fn crawl(granted: f64, accepted: f64, bytes: i64) -> Crawl {
        #[expect(clippy::cast_possible_truncation, reason = "a test's own small numbers")]
        let took_ms = ((accepted - granted) * 1e3) as i64;
        Crawl { granted, accepted, started: "-infinity", took_ms, bytes }
    }

    impl Scene {
        async fn new(pool: &PgPool) -> Self {
            let mut conn = pool.acquire().await.expect("connect");
            let batch = fixtures::batch(&mut conn, "autumn", "gnp-top3").await;
            Self { db: Db::of(pool.clone()), conn, batch, sites: 0 }
        }

        async fn agent(&mut self, name: &str) -> (AgentId, SessionId) {
            let agent = fixtures::agent(&mut self.conn, name).await;
            (agent, fixtures::session(&mut self.conn, agent).await)
        }

        async fn execute(&mut self, sql: &'static str) {
            sqlx::query(sql).execute(&mut *self.conn).await.expect(sql);
        }

        /// Makes an active crawl of a new site, granted `granted` seconds after `begin`.
        async fn lease(&mut self, (agent, session): (AgentId, SessionId), granted: f64) -> i64 {
            self.sites += 1;
            let site = fixtures::site(&mut self.conn, &format!("s{}.cn", self.sites)).await;
            let task = fixtures::assigned(&mut self.conn, self.batch, site, agent).await.get();
            sqlx::query(
                "insert into leases (task_id, token, site_id, agent_id, session_id, granted_at)
                 values ($1, 1, $2, $3, $4, date_trunc('minute', now()) - interval '1 hour' + $5 * interval '1 s')",
            )
            .bind(task)
            .bind(site.get())
            .bind(agent.get())
            .bind(session.get())
            .bind(granted)
            .execute(&mut *self.conn)
            .await
            .expect("lease");
            fixtures::execute_for(&mut self.conn, "update tasks set state = 'leased', token = 1 where id = $1", task)
                .await;
            task
        }

        async fn crawled(&mut self, agent: (AgentId, SessionId), crawl: Crawl) {
            let task = self.lease(agent, crawl.granted).await;
            sqlx::query(
                "insert into outcomes (task_id, token, agent_id, kind, pages, bytes, errors, started_at, duration_ms, rtt_us, accepted_at)
                 select task_id, token, agent_id, 'complete', 10, $2, 0, $3::timestamptz, $4, 20000,
                        granted_at + $5 * interval '1 s'
                 from leases where task_id = $1",
            )
            .bind(task)
            .bind(crawl.bytes)
            .bind(crawl.started)
            .bind(crawl.took_ms)
            .bind(crawl.accepted - crawl.granted)
            .execute(&mut *self.conn)
            .await
            .expect("outcome");
            fixtures::execute_for(&mut self.conn, "update leases set state = 'completed' where task_id = $1", task)
                .await;
            fixtures::execute_for(&mut self.conn, "update tasks set state = 'done' where id = $1", task).await;
        }

        async fn read_scope(&self, scope: ReportScope, slices: u16) -> BatchGrowth {
            let mut snapshot = self.db.snapshot("read").await.expect("begin");
            BatchGrowth::read(&mut snapshot, scope, slices).await.expect("read")
        }

        async fn read(&self, slices: u16) -> BatchGrowth {
            self.read_scope(ReportScope::newest(self.batch), slices).await
        }
    }

    fn secs(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn bytes_are_spread_over_crawls_and_summed_by_agent_and_strategy(pool: PgPool) {
        let mut scene = Scene::new(&pool).await;
        let (a, b) = (scene.agent("a").await, scene.agent("b").await);
        scene.crawled(a, crawl(0.0, 100.0, 10_000_000)).await;
        scene.crawled(a, crawl(15.0, 25.0, 2_000_000)).await;
        scene.crawled(b, crawl(90.0, 100.0, 500_000)).await;
        scene.execute("update assignments set strategy = 'gnp-top3' where task_id = (select min(id) from tasks)").await;
        let grown = scene.read(10).await;
        assert_eq!((grown.totals.tasks, grown.totals.uncrawled, grown.totals.remaining.crawling), (3, 0, 0));
        let (begun, until) = grown.time.expect("a time");
        assert_eq!((until - begun).num_seconds(), 100, "the end is the last crawl's: nothing is to come");
        let all = grown.crawls.all;
        assert_eq!(all.total, Total { sites: 3, pages: 30, bytes: 12_500_000 });
        let megabytes: Vec<u64> =
            growth(&grown.slices, secs(100.0), all.total).iter().map(|slice| slice.total.bytes / 100_000).collect();
        assert_eq!(megabytes, [10, 30, 50, 60, 70, 80, 90, 100, 110, 125]);
        let agents: Vec<(&str, u64, Duration, Duration)> = grown
            .crawls
            .agents
            .iter()
            .map(|(agent, part)| (agent.name.as_str(), part.total.sites, part.busy, part.crawling))
            .collect();
        assert_eq!(agents, [("a", 2, secs(100.0), secs(110.0)), ("b", 1, secs(10.0), secs(10.0))]);
        let strategies: Vec<(String, u64, Option<i64>)> = grown
            .crawls
            .strategies
            .iter()
            .map(|(name, part)| (name.to_string(), part.total.bytes, part.mean_rtt.map(Rtt::as_micros)))
            .collect();
        let part = |name: &str, bytes| (name.to_owned(), bytes, Some(20_000));
        assert_eq!(strategies, [part("gnp-top3", 10_000_000), part("random", 2_500_000)]);
        assert_eq!(estimate(&grown.totals.remaining, &grown.recent), None);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn whatever_an_agent_says_of_time_its_crawl_lies_within_its_lease(pool: PgPool) {
        let mut scene = Scene::new(&pool).await;
        let a = scene.agent("a").await;
        let wrong = [
            ("1970-01-01", i64::MAX),
            ("2999-01-01", 0),
            ("infinity", i64::MAX),
            ("-infinity", 0),
            ("2999-01-01", 4_000),
        ];
        for (started, took_ms) in wrong {
            scene.crawled(a, Crawl { granted: 10.0, accepted: 20.0, started, took_ms, bytes: i64::MAX }).await;
        }
        let rows: Vec<(f64, f64)> = fixtures::rows(
            &mut scene.conn,
            "select extract(epoch from begun - granted_at)::float8, extract(epoch from ended - granted_at)::float8
             from crawls join leases using (task_id) order by task_id",
        )
        .await;
        assert_eq!(rows, [(0.0, 10.0), (10.0, 10.0), (0.0, 10.0), (0.0, 0.0), (6.0, 10.0)]);
        let grown = scene.read(7).await;
        let bytes = u64::try_from(i64::MAX).expect("positive");
        assert_eq!(grown.crawls.all.total, Total { sites: 5, pages: 50, bytes });
        assert_eq!(
            growth(&grown.slices, secs(10.0), grown.crawls.all.total).last().expect("a slice").total.bytes,
            bytes
        );
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_waits_with_a_reason_is_told_from_what_goes_on(pool: PgPool) {
        let mut scene = Scene::new(&pool).await;
        let a = scene.agent("a").await;
        assert_eq!(scene.read(5).await.time, None);
        let batch = scene.batch;
        for (host, state) in [
            ("unmet", "located"),
            ("broken", "located"),
            ("paused", "located"),
            ("free", "submitted"),
            ("gone", "cancelled"),
        ] {
            let site = fixtures::site(&mut scene.conn, host).await;
            fixtures::task(&mut scene.conn, batch, site, state).await;
        }
        let waiting = "select t.id, s.name from tasks t join sites s on s.id = t.site_id where t.state = 'located'";
        let waiting: Vec<(i64, String)> = sqlx::query_as(waiting).fetch_all(&mut *scene.conn).await.expect("read");
        for (task, name) in waiting {
            let cause = match name.as_str() {
                "unmet" => Cause::Unmet,
                "broken" => Cause::Breaker,
                _ => Cause::Pause(secs(3600.0)),
            };
            let hold = async |tx: &mut Tx<'_>| {
                let locked = fixtures::lock(tx, &[TaskId::new(task)]).await[0];
                holds::hold(tx, &[(locked, cause)]).await
            };
            fixtures::tx(&mut scene.conn, hold).await.expect("hold");
        }
        let grown = scene.read(5).await;
        let Remaining { waiting, unassigned, held, crawling, paused_for, connected, taking, .. } =
            grown.totals.remaining;
        assert_eq!((grown.totals.tasks, grown.totals.uncrawled, held, crawling), (5, 1, 2, 0));
        assert_eq!((waiting, unassigned), (2, 2));
        assert!(connected && taking && paused_for > secs(3500.0) && paused_for <= secs(3600.0), "{paused_for:?}");

        scene.execute("insert into stage_causes (stage, cause) values ('measuring', 'no-landmarks')").await;
        let Remaining { waiting, unassigned, held, .. } = scene.read(5).await.totals.remaining;
        assert_eq!((waiting, unassigned, held), (1, 1, 3), "nobody measures the free one");
        let leased = scene.lease(a, 3000.0).await;
        fixtures::execute_for(
            &mut scene.conn,
            "insert into checkpoints (task_id, token, pages, state) values ($1, 1, 42, '')",
            leased,
        )
        .await;
        let grown = scene.read(5).await;
        assert_eq!((grown.totals.remaining.crawling, grown.totals.crawling_pages), (1, 42));
        assert!(grown.time.is_some() && grown.slices.is_empty(), "one has begun and none has ended");
        let said = remaining_time::estimate(&mut scene.conn, batch).await.expect("what is left").expect("an estimate");
        assert_eq!((said.left, said.sites, said.held), (None, 2, 3));
        assert!(said.note.starts_with("no estimate yet: no site has ended; 3 sites are held back"), "{}", said.note);

        // Forty crawls began at the same time, so a window that includes ten of them includes all
        // of them.
        for _ in 0..40 {
            scene.crawled(a, crawl(2900.0, 3000.0, 1)).await;
        }
        let recent = recent(&mut scene.conn, ReportScope::newest(batch)).await.expect("recent");
        assert_eq!(recent.begun, 41, "a quarter of the time is not long enough for ten of them");
        let over = BegunCrawl { time: secs(100.0), ended: true };
        assert_eq!(recent.crawls.iter().filter(|one| **one == over).count(), 40, "nor half of it: {recent:?}");
        let [going_on] = recent.under_way[..] else { panic!("one is under way: {recent:?}") };
        assert!(recent.crawls.contains(&BegunCrawl { time: going_on, ended: false }) && recent.crawls.len() == 41);
        // The window of recent crawls begins 2,900 seconds after `begin`. It contains forty crawls
        // of a hundred seconds each, and the active crawl.
        let since = (going_on + secs(100.0)).as_secs_f64();
        assert!((recent.at_once - (4000.0 + going_on.as_secs_f64()) / since).abs() < 1e-6, "{recent:?}");
        let left =
            remaining_time::estimate(&mut scene.conn, batch).await.expect("what is left").and_then(|one| one.left);
        assert!(left.is_some_and(|left| left > secs(3500.0)), "one site is left alone for an hour: {left:?}");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn crawls_at_agents_that_stand_still_are_not_reckoned_with(pool: PgPool) {
        let mut scene = Scene::new(&pool).await;
        let (a, b, c) = (scene.agent("a").await, scene.agent("b").await, scene.agent("c").await);
        for _ in 0..10 {
            scene.crawled(a, crawl(3000.0, 3010.0, 1)).await;
        }
        for agent in [a, b, b, c] {
            scene.lease(agent, 3100.0).await;
        }
        scene
            .execute(
                "update sessions set paused = 'the disk is full' from agents a where a.id = agent_id and name = 'b'",
            )
            .await;
        scene
            .execute("update sessions set disconnected_at = now() from agents a where a.id = agent_id and name = 'c'")
            .await;
        let grown = scene.read(5).await;
        let stalled = |agent: &str, why, sites| StalledCrawls { agent: agent.into(), why, sites };
        let full = StallReason::Paused("the disk is full".into());
        assert_eq!(grown.totals.remaining.stalled, [stalled("b", full, 2), stalled("c", StallReason::Disconnected, 1)]);
        assert_eq!((grown.totals.remaining.crawling, grown.totals.remaining.waiting), (1, 0));
        assert_eq!(grown.recent.under_way.len(), 1, "the others say nothing of lengths");
        let said =
            remaining_time::estimate(&mut scene.conn, scene.batch).await.expect("what is left").expect("an estimate");
        assert_eq!((said.left.is_some(), said.sites, said.stalled), (true, 1, 3));

        scene
            .execute("update tasks set state = 'cancelled' from leases l where l.task_id = id and l.state = 'active'")
            .await;
        let site = fixtures::site(&mut scene.conn, "waits.cn").await;
        fixtures::task(&mut scene.conn, scene.batch, site, "located").await;
        let note = async |scene: &mut Scene| {
            let said = remaining_time::estimate(&mut scene.conn, scene.batch)
                .await
                .expect("what is left")
                .expect("an estimate");
            (said.left.is_some(), said.note)
        };
        assert_eq!(note(&mut scene).await, (true, String::new()), "a takes it");
        scene.execute("update agents set draining_since = now() where name = 'a'").await;
        let none = "no estimate: no agent takes new sites, because each is paused, disconnected or draining";
        assert_eq!(note(&mut scene).await, (false, none.to_owned()));
        scene.execute("update sessions set state = 'expired'").await;
        assert_eq!(note(&mut scene).await, (false, "no estimate: no agent is connected".to_owned()));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_round_is_reported_by_itself(pool: PgPool) {
        let mut scene = Scene::new(&pool).await;
        let a = scene.agent("a").await;
        scene.crawled(a, crawl(0.0, 10.0, 7)).await;
        scene.execute("update tasks set retried_at = now()").await;
        scene.execute("insert into tasks (batch_id, site_id, round) select batch_id, site_id, 2 from tasks").await;
        let (mut sums, batch) = (Vec::new(), scene.batch);
        for round in [None, Some(1), Some(2), Some(3), Some(u32::MAX)] {
            let grown = scene.read_scope(ReportScope { batch, round }, 3).await;
            sums.push((grown.totals.tasks, grown.crawls.all.total.bytes));
        }
        assert_eq!(sums, [(1, 0), (1, 7), (1, 0), (0, 0), (0, 0)]);
        assert_eq!(newest_round(&mut scene.conn, batch).await.expect("a round"), Some(2));
    }
}
