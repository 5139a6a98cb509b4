//! Outcomes: what a finished crawl reported; at most one per task.
//!
//! An outcome is accepted only with the task's newest token and from the agent that was granted it. A repeat is
//! recognised, and so is one with other content; everything else is stale. Refusals are counted and change nothing else.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::{AgentId, LeaseToken, Rtt, SiteId, TaskId};

use super::Error;
use super::refusals::{self, Refusal};

/// How a crawl ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Everything was fetched.
    Complete,
    /// A budget cut it.
    Truncated(Budget),
    /// robots.txt or the guard forbids the site.
    Blocked,
    /// The site did not answer.
    Unreachable,
}

/// The budget that cut a crawl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    /// Pages.
    Pages,
    /// Bytes.
    Bytes,
    /// Time.
    Duration,
    /// Links from the start page.
    Depth,
}

/// What an agent reports.
#[derive(Debug, Clone)]
pub struct Report {
    /// The task.
    pub task: TaskId,
    /// The token of the grant.
    pub token: LeaseToken,
    /// How it ended.
    pub ending: Ending,
    /// Pages fetched.
    pub pages: u32,
    /// Body bytes received.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u32,
    /// By the agent's clock.
    pub started_at: DateTime<Utc>,
    /// How long it took.
    pub duration: Duration,
    /// The median time to first byte on warm connections.
    pub rtt: Option<Rtt>,
    /// One sentence, or empty.
    pub message: String,
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Recorded, for this site.
    Accepted(SiteId),
    /// Recorded before, as it is.
    Duplicate,
    /// Not recorded, and counted: of a contradiction what was recorded first stays.
    Refused(Refusal),
}

/// Records an outcome once. Run in a transaction: the task's row is locked for its length.
///
/// # Errors
/// When the database fails.
pub async fn record(conn: &mut PgConnection, agent: AgentId, report: &Report) -> Result<Answer, Error> {
    let verdict = judge(conn, agent, report).await?;
    match verdict {
        Answer::Accepted(_) => {
            insert(conn, agent, report).await?;
            end_task(conn, report).await?;
        }
        Answer::Duplicate => {}
        Answer::Refused(refusal) => {
            let detail = format!("task {}, token {}: {refusal}", report.task, report.token);
            refusals::count(conn, agent, refusal, &detail).await?;
        }
    }
    Ok(verdict)
}

/// What an outcome deserves. The task's row is locked from here on.
async fn judge(conn: &mut PgConnection, agent: AgentId, report: &Report) -> Result<Answer, Error> {
    let task = sqlx::query!(
        r#"
        select site_id, token, state in ('assigned', 'leased', 'located') as "open!"
        from tasks where id = $1
        for update
        "#,
        report.task.get(),
    )
    .fetch_optional(&mut *conn)
    .await?;
    let Some(task) = task else { return Ok(Answer::Refused(Refusal::UnknownTask)) };
    // A statement of its own: whoever held the row until now may have granted, or recorded, meanwhile.
    let known = sqlx::query!(
        r#"
        select l.agent_id, o.token as "accepted?", o.kind as "kind?", o.budget, o.pages as "pages?", o.bytes as "bytes?",
               o.errors as "errors?", o.duration_ms as "duration_ms?", o.rtt_us
        from leases l left join outcomes o on o.task_id = l.task_id
        where l.task_id = $1 and l.token = $2
        "#,
        report.task.get(),
        report.token.get(),
    )
    .fetch_optional(conn)
    .await?;
    let Some(known) = known else { return Ok(Answer::Refused(Refusal::ForgedToken)) };
    if known.agent_id != agent.get() {
        return Ok(Answer::Refused(Refusal::ForeignLease));
    }
    let stored = Stored::from(report);
    Ok(match known.accepted {
        Some(token) if token == report.token.get() => {
            let same = known.kind.as_deref() == Some(stored.kind)
                && known.budget.as_deref() == stored.budget
                && known.pages == Some(stored.pages)
                && known.bytes == Some(stored.bytes)
                && known.errors == Some(stored.errors)
                && known.duration_ms == Some(stored.duration_ms)
                && known.rtt_us == stored.rtt_us;
            if same { Answer::Duplicate } else { Answer::Refused(Refusal::Contradiction) }
        }
        _ if task.token != report.token.get() => Answer::Refused(Refusal::OldToken),
        _ if !task.open => Answer::Refused(Refusal::EndedTask),
        _ => Answer::Accepted(SiteId::new(task.site_id)),
    })
}

/// A report's figures as they are stored: what does not fit is the most that does.
struct Stored {
    kind: &'static str,
    budget: Option<&'static str>,
    pages: i32,
    bytes: i64,
    errors: i32,
    duration_ms: i64,
    rtt_us: Option<i64>,
}

impl From<&Report> for Stored {
    fn from(report: &Report) -> Self {
        Self {
            kind: report.ending.kind(),
            budget: report.ending.budget(),
            pages: i32::try_from(report.pages).unwrap_or(i32::MAX),
            bytes: i64::try_from(report.bytes).unwrap_or(i64::MAX),
            errors: i32::try_from(report.errors).unwrap_or(i32::MAX),
            duration_ms: i64::try_from(report.duration.as_millis()).unwrap_or(i64::MAX),
            rtt_us: report.rtt.map(Rtt::as_micros),
        }
    }
}

async fn insert(conn: &mut PgConnection, agent: AgentId, report: &Report) -> Result<(), Error> {
    let stored = Stored::from(report);
    sqlx::query!(
        r#"
        insert into outcomes (task_id, token, agent_id, kind, budget, pages, bytes, errors, started_at, duration_ms,
                              rtt_us, message)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
        "#,
        report.task.get(),
        report.token.get(),
        agent.get(),
        stored.kind,
        stored.budget,
        stored.pages,
        stored.bytes,
        stored.errors,
        report.started_at,
        stored.duration_ms,
        stored.rtt_us,
        report.message,
    )
    .execute(conn)
    .await?;
    Ok(())
}

async fn end_task(conn: &mut PgConnection, report: &Report) -> Result<(), Error> {
    let failure = match report.ending {
        Ending::Complete | Ending::Truncated(_) => None,
        Ending::Blocked | Ending::Unreachable => Some(format!("{}: {}", report.ending.kind(), report.message)),
    };
    sqlx::query!(
        r#"
        with ended as (
            update leases set state = 'completed', ended_at = now() where task_id = $1 and token = $2
        )
        update tasks
        set state = case when $3::text is null then 'done'::task_state else 'failed'::task_state end,
            reason = $3, state_since = now()
        where id = $1
        "#,
        report.task.get(),
        report.token.get(),
        failure,
    )
    .execute(conn)
    .await?;
    Ok(())
}

impl Ending {
    /// The word in the store and in reports.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Truncated(_) => "truncated",
            Self::Blocked => "blocked",
            Self::Unreachable => "unreachable",
        }
    }

    const fn budget(self) -> Option<&'static str> {
        match self {
            Self::Truncated(Budget::Pages) => Some("pages"),
            Self::Truncated(Budget::Bytes) => Some("bytes"),
            Self::Truncated(Budget::Duration) => Some("duration"),
            Self::Truncated(Budget::Depth) => Some("depth"),
            Self::Complete | Self::Blocked | Self::Unreachable => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::model::SessionId;
    use crate::store::{fixtures, leases, sessions};

    fn report(task: TaskId, token: i64, ending: Ending) -> Report {
        Report {
            task,
            token: LeaseToken::new(token),
            ending,
            pages: 3,
            bytes: 1000,
            errors: 1,
            started_at: DateTime::<Utc>::UNIX_EPOCH,
            duration: Duration::from_secs(2),
            rtt: Rtt::try_from_micros(20_000).ok(),
            message: "no route".into(),
        }
    }

    async fn leased(conn: &mut PgConnection) -> (AgentId, SessionId, TaskId) {
        let agent = fixtures::agent(conn, "a").await;
        let session = fixtures::session(conn, agent).await;
        let batch = fixtures::batch(conn, "b", "random").await;
        let site = fixtures::site(conn, "a.cn").await;
        let task = fixtures::assigned(conn, batch, site, agent).await;
        leases::grant(conn, agent, session).await.expect("grant");
        (agent, session, task)
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_outcome_is_stored_once(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let (agent, _, task) = leased(&mut conn).await;
        let first = report(task, 1, Ending::Truncated(Budget::Pages));
        assert!(matches!(record(&mut conn, agent, &first).await.expect("record"), Answer::Accepted(_)));
        assert_eq!(fixtures::state(&mut conn, task).await, "done");
        assert_eq!(record(&mut conn, agent, &first).await.expect("record"), Answer::Duplicate);
        let contradicting = [
            report(task, 1, Ending::Complete),
            Report { pages: 4, ..first.clone() },
            Report { bytes: 1001, ..first.clone() },
            Report { errors: 0, ..first.clone() },
            Report { rtt: None, ..first.clone() },
        ];
        for contradicting in &contradicting {
            let answer = record(&mut conn, agent, contradicting).await.expect("record");
            assert_eq!(answer, Answer::Refused(Refusal::Contradiction), "{contradicting:?}");
        }
        let counted = refusals::of_agent(&mut conn, agent).await.expect("read");
        assert_eq!((counted.len(), counted[0].kind.as_str(), counted[0].times), (1, "contradiction", 5));
        let kind: String =
            sqlx::query_scalar("select kind from outcomes").fetch_one(&mut *conn).await.expect("one row");
        assert_eq!(kind, "truncated");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_released_lease_may_complete_until_a_newer_grant_exists(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let (agent, session, task) = leased(&mut conn).await;
        sessions::close(&mut conn, session).await.expect("close");
        leases::release_of_ended_sessions(&mut conn, fixtures::MAX_CRASHES).await.expect("release");
        let mut tx = sqlx::Connection::begin(&mut *conn).await.expect("begin");
        let late = record(&mut tx, agent, &report(task, 1, Ending::Complete)).await.expect("record");
        assert!(matches!(late, Answer::Accepted(_)));
        tx.rollback().await.expect("rollback");

        let session = fixtures::session(&mut conn, agent).await;
        assert_eq!(leases::grant(&mut conn, agent, session).await.expect("grant")[0].token.get(), 2);
        let late = record(&mut conn, agent, &report(task, 1, Ending::Complete)).await.expect("record");
        assert_eq!(late, Answer::Refused(Refusal::OldToken));
        assert_eq!(fixtures::state(&mut conn, task).await, "leased");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn nobody_completes_anothers_lease_or_an_unknown_task(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let (_, _, task) = leased(&mut conn).await;
        let thief = fixtures::agent(&mut conn, "thief").await;
        for (task, token, refusal) in [
            (task, 1, Refusal::ForeignLease),
            (task, 2, Refusal::ForgedToken),
            (task, -1, Refusal::ForgedToken),
            (TaskId::new(999), 1, Refusal::UnknownTask),
        ] {
            let answer = record(&mut conn, thief, &report(task, token, Ending::Complete)).await.expect("record");
            assert_eq!(answer, Answer::Refused(refusal));
        }
        let counted = refusals::of_agent(&mut conn, thief).await.expect("read");
        assert_eq!(counted.iter().map(|count| count.times).sum::<u64>(), 4, "{counted:?}");
        assert_eq!(fixtures::state(&mut conn, task).await, "leased");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn absurd_numbers_do_not_break_the_reports(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let agent = fixtures::agent(&mut conn, "liar").await;
        let session = fixtures::session(&mut conn, agent).await;
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        for host in ["a.cn", "b.cn"] {
            let site = fixtures::site(&mut conn, host).await;
            let task = fixtures::assigned(&mut conn, batch, site, agent).await;
            leases::grant(&mut conn, agent, session).await.expect("grant");
            let absurd = Report { pages: u32::MAX, bytes: u64::MAX, ..report(task, 1, Ending::Complete) };
            record(&mut conn, agent, &absurd).await.expect("record");
        }
        let most = i64::MAX.unsigned_abs();
        let progress = crate::store::batches::progress(&mut conn, batch).await.expect("the progress");
        assert_eq!((progress.complete, progress.bytes), (2, most));
        let agents = crate::store::reports::agents(&mut conn, None).await.expect("the agents' report");
        assert_eq!(agents[0].bytes, most);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_unreachable_site_fails_with_the_reason(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let (agent, _, task) = leased(&mut conn).await;
        record(&mut conn, agent, &report(task, 1, Ending::Unreachable)).await.expect("record");
        let (state, reason): (String, String) =
            sqlx::query_as("select state::text, reason from tasks").fetch_one(&mut *conn).await.expect("one row");
        assert_eq!((state.as_str(), reason.as_str()), ("failed", "unreachable: no route"));
    }
}
