//! Events: the log of the transitions of tasks, leases, sessions, agents and terms. Triggers write
//! the log (`migrations/0007_log.sql`); this module reads it.
//!
//! A reader sees an event only when all transactions that began before the event's transaction have
//! ended. So a reader that continues after the last event it saw misses no event.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::{AgentId, BatchId, Incarnation, LeaseToken, SessionId, SiteId, TaskId};

use crate::store::Error;
use crate::store::rows_and_errors::Rows;
use crate::store::types::Unsigned;

/// Maximum number of events in a page.
pub const PAGE: i64 = 500;
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The event's position in the log. A reader continues after this position.
    pub cursor: Cursor,
    pub at: DateTime<Utc>,
    /// The kind of thing that changed: task, lease, session, agent, term or database.
    pub noun: String,
    /// The state that was entered, or a word for the event.
    pub what: String,
    /// The task's batch, site and round.
    pub task: Option<TaskOf>,
    pub token: Option<LeaseToken>,
    pub agent: Option<String>,
    pub session: Option<SessionId>,
    pub incarnation: Option<Incarnation>,
    /// The cause, as operators see it.
    pub cause: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskOf {
    pub id: TaskId,
    pub batch: String,
    pub site: String,
    pub round: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Cursor {
    xact: i64,
    id: i64,
}

impl Cursor {
    /// The number of the event, which operators and programs see.
    pub const fn id(self) -> i64 {
        self.id
    }
}

#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Events of tasks of this batch, and of their leases.
    pub batch: Option<BatchId>,
    /// Events of tasks of these sites, and of their leases.
    pub sites: Option<Vec<SiteId>>,
    pub agents: Option<Vec<AgentId>>,
    /// Events of these kinds, each in the form `noun` or `noun-what`.
    pub kinds: Option<Vec<String>>,
    /// If set, only events of tasks whose identifier is a multiple of this number.
    pub one_task_in: Option<i64>,
}

pub const KINDS: [&str; 28] = [
    "task",
    "task-submitted",
    "task-measuring",
    "task-located",
    "task-assigned",
    "task-leased",
    "task-done",
    "task-failed",
    "task-cancelled",
    "lease",
    "lease-granted",
    "lease-rebound",
    "lease-completed",
    "lease-released",
    "lease-expired",
    "lease-revoked",
    "lease-overdue",
    "session",
    "session-opened",
    "session-closed",
    "session-expired",
    "agent",
    "agent-enrolled",
    "agent-draining",
    "agent-resumed",
    "agent-removed",
    "term",
    "term-taken",
];

/// A reader's position in the history that begins at a given time. Events are read in order of
/// time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventsSince {
    horizon: i64,
    at: DateTime<Utc>,
    id: i64,
    until: Option<DateTime<Utc>>,
}

impl EventsSince {
    /// Selects the events between `at` (included) and `until` (excluded) that have been committed
    /// by now.
    pub async fn since(
        conn: &mut PgConnection,
        at: DateTime<Utc>,
        until: Option<DateTime<Utc>>,
    ) -> Result<Self, Error> {
        Ok(Self { horizon: horizon(conn).await?, at, id: 0, until })
    }

    /// The position in the log from which a reader follows new events after it has read the
    /// history.
    pub const fn end(self) -> Cursor {
        Cursor { xact: self.horizon - 1, id: i64::MAX }
    }
}

/// Events, oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub events: Vec<Event>,
    /// The position at which to continue, even after an empty page.
    pub next: Cursor,
}

struct Row {
    xact: i64,
    id: i64,
    at: DateTime<Utc>,
    noun: String,
    what: String,
    task_id: Option<TaskId>,
    batch: Option<String>,
    site: Option<String>,
    round: Option<Unsigned<u32>>,
    token: Option<LeaseToken>,
    agent: Option<String>,
    session_id: Option<SessionId>,
    incarnation: Option<Incarnation>,
    cause: Option<String>,
}

impl From<Row> for Event {
    fn from(row: Row) -> Self {
        let task = match (row.task_id, row.batch, row.site, row.round) {
            (Some(id), Some(batch), Some(site), Some(round)) => Some(TaskOf { id, batch, site, round: round.0 }),
            _ => None,
        };
        Self {
            cursor: Cursor { xact: row.xact, id: row.id },
            at: row.at,
            noun: row.noun,
            what: row.what,
            task,
            token: row.token,
            agent: row.agent,
            session: row.session_id,
            incarnation: row.incarnation,
            cause: row.cause,
        }
    }
}

/// Reads events below the [`horizon`] that match the filter. The last literal of the macro adds a
/// condition, an order and a limit.
macro_rules! read {
    ($conn:expr, $horizon:expr, $filter:expr, $limit:expr, $condition_and_order:literal $(, $argument:expr)*) => {
        sqlx::query_as!(
            Row,
            "select e.xact::text::bigint as \"xact!\", e.id, e.at, e.noun, e.what, e.task_id,
                    b.name as \"batch?\", s.name as \"site?\", t.round as \"round?\", e.token, a.name as \"agent?\",
                    e.session_id, e.incarnation, e.cause
             from events e
             left join tasks t on t.id = e.task_id
             left join batches b on b.id = t.batch_id
             left join sites s on s.id = t.site_id
             left join agents a on a.id = e.agent_id
             where e.xact < $1::bigint::text::xid8
               and ($2::bigint is null or t.batch_id = $2)
               and ($3::bigint[] is null or t.site_id = any($3))
               and ($4::bigint[] is null or e.agent_id = any($4))
               and ($5::text[] is null or e.noun = any($5) or e.noun || '-' || e.what = any($5))
               and ($6::bigint is null or e.task_id % $6 = 0) " + $condition_and_order,
            $horizon,
            $filter.batch.map(BatchId::get),
            $filter.sites.as_ref() as _,
            $filter.agents.as_ref() as _,
            $filter.kinds.as_deref(),
            $filter.one_task_in,
            $limit,
            $($argument),*
        )
        .all($conn)
    };
}

/// At most `limit` events, the newest ones.
pub async fn newest(conn: &mut PgConnection, filter: &Filter, limit: i64) -> Result<Page, Error> {
    let horizon = horizon(conn).await?;
    let rows = read!(conn, horizon, filter, limit, "order by e.xact desc, e.id desc limit $7").await?;
    Ok(Page { events: in_order(rows), next: Cursor { xact: horizon - 1, id: i64::MAX } })
}

/// At most `limit` events, the newest ones before this time. Does not read later events.
pub async fn newest_before(
    conn: &mut PgConnection,
    filter: &Filter,
    until: DateTime<Utc>,
    limit: i64,
) -> Result<Vec<Event>, Error> {
    let horizon = horizon(conn).await?;
    let rows =
        read!(conn, horizon, filter, limit, "and e.at < $8 order by e.at desc, e.id desc limit $7", until).await?;
    Ok(rows.into_iter().rev().map(Event::from).collect())
}

/// The next [`PAGE`] events of the history, and the position at which to continue; `None` after the
/// last event.
pub async fn past(
    conn: &mut PgConnection,
    filter: &Filter,
    from: EventsSince,
) -> Result<(Vec<Event>, Option<EventsSince>), Error> {
    let rows = read!(
        conn,
        from.horizon,
        filter,
        PAGE,
        "and (e.at, e.id) > ($8, $9) and ($10::timestamptz is null or e.at < $10) order by e.at, e.id limit $7",
        from.at,
        from.id,
        from.until
    )
    .await?;
    let full = i64::try_from(rows.len()).is_ok_and(|count| count == PAGE);
    let next = rows.last().filter(|_| full).map(|row| EventsSince { at: row.at, id: row.id, ..from });
    Ok((rows.into_iter().map(Event::from).collect(), next))
}

/// The next [`PAGE`] events after the position `after`.
pub async fn after(conn: &mut PgConnection, filter: &Filter, after: Cursor) -> Result<Page, Error> {
    let horizon = horizon(conn).await?;
    let rows = read!(
        conn,
        horizon,
        filter,
        PAGE,
        "and (e.xact, e.id) > ($8::bigint::text::xid8, $9) order by e.xact, e.id limit $7",
        after.xact,
        after.id
    )
    .await?;
    let full = i64::try_from(rows.len()).is_ok_and(|count| count == PAGE);
    let last = rows.last().map(|row| Cursor { xact: row.xact, id: row.id });
    // If the page is not full, no further event below the horizon matches, so the reader continues
    // at the horizon.
    let next = last.filter(|_| full).unwrap_or(Cursor { xact: horizon - 1, id: i64::MAX });
    Ok(Page { events: in_order(rows), next: next.max(after) })
}

/// The number of the oldest active transaction. All transactions with lower numbers have ended.
async fn horizon(conn: &mut PgConnection) -> Result<i64, Error> {
    sqlx::query_scalar!(
        r#"
        select pg_snapshot_xmin(pg_current_snapshot())::text::bigint
               + coalesce(pg_sequence_last_value('event_offset'), 0) as "horizon!"
        "#,
    )
    .one(conn)
    .await
}

/// Sorts events by their numbers, because the events of one task, lease or session happened in this
/// order.
fn in_order(rows: Vec<Row>) -> Vec<Event> {
    let mut events: Vec<Event> = rows.into_iter().map(Event::from).collect();
    events.sort_by_key(|event| event.cursor.id);
    events
}

#[cfg(test)]
mod tests {
    use sqlx::{Connection, PgPool};

    use super::*;
    use crate::store::Tx;
    use crate::store::batches::changes::ChangeKind;
    use crate::store::fixtures::{self, Conn, LeasedTask};
    use crate::store::leases;

    /// Each event of a page as text, in order.
    fn said(page: &Page) -> Vec<String> {
        let sentence = |event: &Event| {
            let token = event.token.map(|token| format!(" #{token}")).unwrap_or_default();
            let cause = event.cause.as_ref().map(|cause| format!(" ({cause})")).unwrap_or_default();
            format!("{} {}{token}{cause}", event.noun, event.what)
        };
        page.events.iter().map(sentence).collect()
    }

    /// Waits until all transactions that are active on this server have ended, including those of
    /// other tests.
    async fn settle(conn: &mut PgConnection) {
        let own: i64 = fixtures::scalar(conn, "select pg_current_xact_id()::text::bigint").await;
        while horizon(conn).await.expect("ask") <= own {
            tokio::task::yield_now().await;
        }
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn every_transition_is_said_once_in_order_with_token_agent_and_cause(mut conn: Conn) {
        let LeasedTask { agent, session, batch, task, .. } = fixtures::leased(&mut conn, "a").await;
        assert!(fixtures::renew(&mut conn, session).await);
        let crash = Some("on purpose");
        let release = async |tx: &mut Tx<'_>| {
            leases::release(tx, agent, task, fixtures::TOKEN, crash, fixtures::MAX_CRASHES).await
        };
        assert!(fixtures::tx(&mut conn, release).await.expect("release"));
        fixtures::grant(&mut conn, agent, session).await;
        fixtures::drain(&mut conn, "a").await;
        fixtures::session(&mut conn, agent).await;
        fixtures::change(&mut conn, batch, ChangeKind::Cancel).await;
        settle(&mut conn).await;

        let of_task = newest(&mut conn, &Filter { batch: Some(batch), ..Filter::default() }, 100).await.expect("read");
        let expected = [
            "task located",
            "task assigned",
            "lease granted #1",
            "task leased #1",
            "lease released #1 (crashed: on purpose)",
            "task assigned #1",
            "lease granted #2",
            "task leased #2",
            "lease expired #2 (its session ended: superseded)",
            "task assigned #2",
            "task cancelled #2 (cancelled by the operator)",
        ];
        let mut heard = said(&of_task);
        // One statement changes a task and its lease, so their events may be in either order.
        let mut awaited: Vec<String> = expected.map(str::to_owned).to_vec();
        heard.sort_unstable();
        awaited.sort_unstable();
        assert_eq!(heard, awaited);
        let tasks = of_task.events.iter().filter(|event| event.noun == "task").map(|event| event.what.as_str());
        let path = ["located", "assigned", "leased", "assigned", "leased", "assigned", "cancelled"];
        assert_eq!(tasks.collect::<Vec<_>>(), path);
        let lost = of_task.events.iter().find(|event| event.what == "expired").expect("it was lost");
        assert_eq!(
            (lost.agent.as_deref(), lost.session, lost.incarnation),
            (Some("a"), Some(session), Some(Incarnation::new(1)))
        );

        let of_agent =
            newest(&mut conn, &Filter { agents: Some(vec![agent]), ..Filter::default() }, 100).await.expect("read");
        let own: Vec<String> = said(&of_agent).into_iter().filter(|said| !said.contains('#')).collect();
        let expected =
            ["session opened", "task assigned", "agent draining", "session closed (superseded)", "session opened"];
        assert_eq!(own, expected, "and no word of heartbeats");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_reader_misses_nothing_that_is_committed_out_of_order(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let mut other = pool.acquire().await.expect("connect");
        let batch = fixtures::batch(&mut conn, "autumn", "random").await;
        let (early, late) = (fixtures::site(&mut conn, "early.cn").await, fixtures::site(&mut conn, "late.cn").await);
        settle(&mut conn).await;
        let from = newest(&mut conn, &Filter::default(), 1).await.expect("read").next;

        let mut slow = other.begin().await.expect("begin");
        fixtures::task(&mut slow, batch, early, "submitted").await;
        fixtures::task(&mut conn, batch, late, "submitted").await;
        let page = after(&mut conn, &Filter::default(), from).await.expect("read");
        assert_eq!(page.events, [], "what is committed waits for what began before it");
        slow.commit().await.expect("commit");
        settle(&mut conn).await;
        let page = after(&mut conn, &Filter::default(), page.next).await.expect("read");
        let sites = page.events.iter().filter_map(|event| Some(event.task.as_ref()?.site.as_str()));
        assert_eq!(sites.collect::<Vec<_>>(), ["early.cn", "late.cn"]);
        assert_eq!(after(&mut conn, &Filter::default(), page.next).await.expect("read").events, [], "once");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn the_history_since_a_moment_comes_by_time_page_by_page_and_by_kind(mut conn: Conn) {
        let (agent, _) = fixtures::crawler(&mut conn, "a").await;
        fixtures::execute_for(&mut conn, "insert into events (noun, what, agent_id, at) select 'agent', 'draining', $1, timestamptz '2026-01-01' + n * interval '1 s'
             from generate_series(1, 1200) n", agent).await;
        settle(&mut conn).await;
        let at = DateTime::parse_from_rfc3339("2026-01-01T00:00:11Z").expect("a moment").to_utc();
        let mut past = Some(EventsSince::since(&mut conn, at, None).await.expect("ask"));
        let drained = Filter { kinds: Some(vec!["agent-draining".to_owned()]), ..Filter::default() };
        let (mut times, mut pages) = (Vec::new(), 0);
        while let Some(from) = past {
            let (events, next) = super::past(&mut conn, &drained, from).await.expect("read");
            times.extend(events.iter().map(|event| event.at));
            (past, pages) = (next, pages + 1);
        }
        assert_eq!((times.len(), pages, times.is_sorted()), (1190, 3, true));
        assert_eq!(times[0], at, "the moment itself too");
        let of = async |conn: &mut PgConnection, kind: &str| {
            let filter = Filter { kinds: Some(vec![kind.to_owned()]), ..Filter::default() };
            newest(conn, &filter, 5000).await.expect("read").events.len()
        };
        assert_eq!((of(&mut conn, "agent").await, of(&mut conn, "session").await), (1200, 1));
        assert_eq!((of(&mut conn, "session-opened").await, of(&mut conn, "session-closed").await), (1, 0));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_share_of_the_tasks_is_followed_without_other_events(mut conn: Conn) {
        let start = newest(&mut conn, &Filter::default(), 0).await.expect("read").next;
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        fixtures::execute_for(
            &mut conn,
            "with made as (insert into sites (name) select n || '.cn' from generate_series(1, 1000) n returning id)
             insert into tasks (batch_id, site_id) select $1, id from made",
            batch,
        )
        .await;
        fixtures::crawler(&mut conn, "a").await;
        settle(&mut conn).await;
        let followed = Filter { one_task_in: Some(8), ..Filter::default() };
        let page = after(&mut conn, &followed, start).await.expect("read");
        assert_eq!(page.events.len(), 125);
        assert!(page.events.iter().all(|event| event.task.as_ref().is_some_and(|task| task.id.get() % 8 == 0)));
        assert_eq!(after(&mut conn, &followed, page.next).await.expect("read").events, []);
    }
}
