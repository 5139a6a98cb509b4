//! Outcomes: the reports of finished crawls, at most one per task. An outcome is accepted, is a
//! duplicate, or is refused; an accepted one ends its task, and its discovered hosts are stored.
//!
//! An outcome is accepted only with the task's newest token and from the agent that received this
//! token. A repeated outcome is a duplicate if it equals the accepted outcome; otherwise it is
//! refused as a contradiction. An outcome with another token, or from another agent, is refused
//! too. A refusal is counted and changes nothing else.
//! An outcome waits for no lock of its task, because a transaction records those of many agents.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::site_name::SiteName;
use crate::model::{AgentId, Blocker, Budget, CrawlEnding, LeaseToken, OutcomeKind, Rtt, SiteId, TaskId};
use crate::store::agents::refusals::{self, Refusal};
use crate::store::batches::constraints_and_quotas;
use crate::store::leases::{self, Completed};
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::schema::histories;
use crate::store::sites::open_circuits;
use crate::store::tasks::holds;
use crate::store::types::whole;
use crate::store::{Error, Locked, Tx};

/// Records outcomes of one or several agents. Returns the answers in the order of the reports.
pub async fn record_all(tx: &mut Tx<'_>, reports: &[(AgentId, &OutcomeReport)]) -> Result<Vec<OutcomeAnswer>, Error> {
    let mut answers = Vec::with_capacity(reports.len());
    let mut rest = reports;
    let mut locked = lock(tx, reports).await?;
    while !rest.is_empty() {
        // If two reports are about the same task, the second report is judged only after the first
        // has been recorded.
        let mut tasks = HashSet::new();
        let distinct = rest.iter().take_while(|(_, report)| tasks.insert(report.task)).count();
        let (now, later) = rest.split_at(distinct);
        answers.extend(record_distinct(tx, &mut locked, now).await?);
        rest = later;
    }
    Ok(answers)
}

/// Records outcomes of different tasks, and ends the tasks.
async fn record_distinct(
    tx: &mut Tx<'_>,
    locked: &mut HashMap<Locked<TaskId>, ReportedTask>,
    reports: &[(AgentId, &OutcomeReport)],
) -> Result<Vec<OutcomeAnswer>, Error> {
    let (verdicts, on_hold) = judge(tx, locked, reports).await?;
    let accepted: Vec<(AgentId, &OutcomeReport)> = reports
        .iter()
        .zip(&verdicts)
        .filter(|(_, verdict)| matches!(verdict, OutcomeAnswer::Accepted { .. }))
        .map(|(reported, _)| *reported)
        .collect();
    if !accepted.is_empty() {
        insert(tx, &accepted).await?;
        replace(tx, locked, &accepted).await?;
        if !on_hold.is_empty() {
            holds::end(tx, &on_hold).await?;
        }
        end_tasks(tx, locked, &accepted).await?;
        break_circuits(tx, locked, &accepted).await?;
        let fetched = accepted.iter().filter_map(|(agent, report)| {
            let (task, _) = locked.get_key_value(&report.task).filter(|(_, task)| task.limited)?;
            Some((*task, *agent, report.bytes))
        });
        let fetched: Vec<_> = fetched.collect();
        if !fetched.is_empty() {
            constraints_and_quotas::add_spending(tx, &fetched).await?;
        }
    }
    for (_, report) in accepted {
        if let Some(task) = locked.get_mut(&report.task) {
            task.open = false;
        }
    }
    for ((agent, report), verdict) in reports.iter().zip(&verdicts) {
        if let OutcomeAnswer::Refused(refusal) = *verdict {
            let detail = format!("task {}, token {}: {refusal}", report.task, report.token);
            refusals::count(tx, *agent, refusal, &detail).await?;
        }
    }
    Ok(verdicts)
}

/// Opens the circuits of sites whose crawls were ended by the breaker.
async fn break_circuits(
    conn: &mut PgConnection,
    locked: &HashMap<Locked<TaskId>, ReportedTask>,
    accepted: &[(AgentId, &OutcomeReport)],
) -> Result<(), Error> {
    let ended = accepted.iter().filter(|(_, report)| report.ending == CrawlEnding::Blocked(Some(Blocker::Breaker)));
    let ended = ended.filter_map(|(agent, report)| {
        let task = locked.get(&report.task)?;
        Some((task.site, *agent, report.message.as_str()))
    });
    let ended: Vec<(SiteId, AgentId, &str)> = ended.collect();
    if ended.is_empty() { Ok(()) } else { open_circuits::open(conn, &ended).await }
}

async fn insert(conn: &mut PgConnection, reported: &[(AgentId, &OutcomeReport)]) -> Result<(), Error> {
    let agents: Vec<i64> = reported.iter().map(|(agent, _)| agent.get()).collect();
    let reports: Vec<&OutcomeReport> = reported.iter().map(|(_, report)| *report).collect();
    let stored: Vec<StoredFigures> = reports.iter().copied().map(StoredFigures::from).collect();
    let tasks: Vec<i64> = reports.iter().map(|report| report.task.get()).collect();
    let tokens: Vec<i64> = reports.iter().map(|report| report.token.get()).collect();
    let kinds: Vec<&str> = stored.iter().map(|stored| stored.kind.name()).collect();
    let budgets: Vec<Option<&str>> = stored.iter().map(|stored| stored.budget.map(Budget::name)).collect();
    let pages: Vec<i32> = stored.iter().map(|stored| stored.pages).collect();
    let bytes: Vec<i64> = stored.iter().map(|stored| stored.bytes).collect();
    let errors: Vec<i32> = stored.iter().map(|stored| stored.errors).collect();
    let started: Vec<DateTime<Utc>> = reports.iter().map(|report| report.started_at).collect();
    let durations: Vec<i64> = stored.iter().map(|stored| stored.duration_ms).collect();
    let rtts: Vec<Option<i64>> = stored.iter().map(|stored| stored.rtt_us).collect();
    let messages: Vec<&str> = reports.iter().map(|report| report.message.as_str()).collect();
    let refetched: Vec<i32> = reports.iter().map(|report| whole(report.refetched)).collect();
    let trapped: Vec<i32> = reports.iter().map(|report| whole(report.trapped)).collect();
    sqlx::query!(
        r#"
        insert into outcomes (agent_id, task_id, token, kind, budget, pages, bytes, errors, started_at, duration_ms, rtt_us,
                              message, refetched, trapped)
        select agent_id, task_id, token, kind::outcome_kind, budget::crawl_budget, pages, bytes, errors, started_at, duration_ms,
               rtt_us, message, refetched, trapped
        from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::integer[], $7::bigint[], $8::integer[],
                    $9::timestamptz[], $10::bigint[], $11::bigint[], $12::text[], $13::integer[], $14::integer[])
             as reported (agent_id, task_id, token, kind, budget, pages, bytes, errors, started_at, duration_ms, rtt_us, message,
                          refetched, trapped)
        "#,
        &agents,
        &tasks,
        &tokens,
        &kinds as _,
        &budgets as _,
        &pages,
        &bytes,
        &errors,
        &started,
        &durations,
        &rtts as _,
        &messages as _,
        &refetched,
        &trapped,
    )
    .run(conn)
    .await
}

async fn end_tasks(
    tx: &mut Tx<'_>,
    locked: &HashMap<Locked<TaskId>, ReportedTask>,
    reports: &[(AgentId, &OutcomeReport)],
) -> Result<(), Error> {
    let completed = reports.iter().filter_map(|(_, report)| {
        let (task, _) = locked.get_key_value(&report.task)?;
        let kind = report.ending.reason();
        let failure = kind.map(|kind| (format!("{}: {}", report.ending.kind().name(), report.message), kind.name()));
        Some(Completed { task: *task, token: report.token, failure })
    });
    leases::complete(tx, &completed.collect::<Vec<_>>()).await
}

/// The scheduler's answer to a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutcomeAnswer {
    Accepted {
        site: SiteId,
        /// Whether the lease was active until now, so that a slot of the agent becomes free.
        freed: bool,
        /// Whether other tasks wait until this lease ends, because its site's address permits no
        /// further crawl.
        waited_for: bool,
    },
    /// The same outcome has already been recorded.
    Duplicate,
    /// The outcome is not recorded, but counted as a refusal. If the outcome contradicts a recorded
    /// outcome, the recorded outcome stays.
    Refused(Refusal),
    /// Another transaction has locked the task. Nothing was recorded: report it again later.
    Busy,
}

/// Judges reports on different tasks. Also returns the tasks that end now but still have a hold. A
/// task that ends may have a hold if its lease was released, or if its agent never requested a
/// permit for the address to which the task was admitted.
async fn judge(
    conn: &mut PgConnection,
    locked: &HashMap<Locked<TaskId>, ReportedTask>,
    reports: &[(AgentId, &OutcomeReport)],
) -> Result<(Vec<OutcomeAnswer>, Vec<Locked<TaskId>>), Error> {
    // Skipped tasks that exist are locked by another transaction.
    let mut busy = Vec::new();
    let skipped = reports.iter().map(|(_, report)| report.task).filter(|task| !locked.contains_key(task));
    let skipped: Vec<TaskId> = skipped.collect();
    if !skipped.is_empty() {
        busy = sqlx::query_scalar!("select id from tasks where id = any($1)", &skipped as _).all(conn).await?;
    }
    let (ids, tokens): (Vec<i64>, Vec<i64>) =
        reports.iter().map(|(_, report)| (report.task.get(), report.token.get())).unzip();
    // This statement is separate from [`lock`], so that it sees grants and outcomes of transactions
    // that had locked one of these tasks before.
    let rows = sqlx::query!(
        r#"
        select l.task_id, l.agent_id, l.state = 'active' as "active!",
               exists (select from task_holds h where h.cause = 'address' and not h.admitted and h.address = l.address) as "waited_for!",
               exists (select from task_holds h where h.task_id = l.task_id) as "on_hold!",
               o.token as "accepted?", o.kind as "kind?", o.budget, o.pages as "pages?: i32", o.bytes as "bytes?: i64",
               o.errors as "errors?: i32", o.duration_ms as "duration_ms?: i64", o.rtt_us as "rtt_us?: i64"
        from unnest($1::bigint[], $2::bigint[]) as asked (task_id, token)
        join leases l on l.task_id = asked.task_id and l.token = asked.token
        left join outcomes o on o.task_id = l.task_id
        "#,
        &ids,
        &tokens,
    )
    .all(conn)
    .await?;
    let leases: HashMap<TaskId, _> = rows.into_iter().map(|row| (row.task_id, row)).collect();
    let floor = if leases.len() == reports.len() { 0 } else { histories::floor(conn).await? };
    let odd = |number, otherwise| OutcomeAnswer::Refused(histories::blame(number, floor, otherwise));
    let verdict = |(agent, report): &(AgentId, &OutcomeReport)| {
        if busy.contains(&report.task) {
            return OutcomeAnswer::Busy;
        }
        let Some(task) = locked.get(&report.task) else { return odd(report.task.get(), Refusal::UnknownTask) };
        let Some(known) = leases.get(&report.task) else { return odd(report.token.get(), Refusal::ForgedToken) };
        if known.agent_id != *agent {
            return OutcomeAnswer::Refused(Refusal::ForeignLease);
        }
        let stored = StoredFigures::from(*report);
        match known.accepted {
            Some(token) if token == report.token => {
                let same = known.kind == Some(stored.kind)
                    && known.budget == stored.budget
                    && known.pages == Some(stored.pages)
                    && known.bytes == Some(stored.bytes)
                    && known.errors == Some(stored.errors)
                    && known.duration_ms == Some(stored.duration_ms)
                    && known.rtt_us == stored.rtt_us;
                if same { OutcomeAnswer::Duplicate } else { OutcomeAnswer::Refused(Refusal::Contradiction) }
            }
            _ if task.token != report.token => OutcomeAnswer::Refused(Refusal::OldToken),
            _ if !task.open => OutcomeAnswer::Refused(Refusal::EndedTask),
            _ => OutcomeAnswer::Accepted { site: task.site, freed: known.active, waited_for: known.waited_for },
        }
    };
    let verdicts: Vec<OutcomeAnswer> = reports.iter().map(verdict).collect();
    let ends = reports.iter().zip(&verdicts).filter(|(_, verdict)| matches!(verdict, OutcomeAnswer::Accepted { .. }));
    let on_hold = |task: &TaskId| leases.get(task).is_some_and(|lease| lease.on_hold);
    let on_hold = ends.map(|((_, report), _)| report.task).filter(on_hold);
    let on_hold = on_hold.filter_map(|task| Some(*locked.get_key_value(&task)?.0)).collect();
    Ok((verdicts, on_hold))
}

/// A report's numbers as stored. A number above a column's range becomes the column's maximum.
struct StoredFigures {
    kind: OutcomeKind,
    budget: Option<Budget>,
    pages: i32,
    bytes: i64,
    errors: i32,
    duration_ms: i64,
    rtt_us: Option<i64>,
}

impl From<&OutcomeReport> for StoredFigures {
    fn from(report: &OutcomeReport) -> Self {
        Self {
            kind: report.ending.kind(),
            budget: report.ending.budget(),
            pages: whole(report.pages),
            bytes: whole(report.bytes),
            errors: whole(report.errors),
            duration_ms: whole(report.duration.as_millis()),
            rtt_us: report.rtt.map(Rtt::as_micros),
        }
    }
}

/// An agent's report of a finished crawl.
#[derive(Debug, Clone)]
pub struct OutcomeReport {
    pub task: TaskId,
    pub token: LeaseToken,
    pub ending: CrawlEnding,
    pub pages: u32,
    /// Number of body bytes received.
    pub bytes: u64,
    pub errors: u32,
    /// When the crawl began, by the agent's clock.
    pub started_at: DateTime<Utc>,
    pub duration: Duration,
    /// The median time to the first byte on warm connections.
    pub rtt: Option<Rtt>,
    /// A sentence from the agent; may be empty.
    pub message: String,
    /// Number of pages fetched again because the previous agent's checkpoint did not include them.
    pub refetched: u32,
    /// Number of links skipped because they lead into traps.
    pub trapped: u32,
    /// The other sites to which pages link.
    pub hosts: Vec<SiteName>,
}

/// What the judgement of a report needs to know about its task.
struct ReportedTask {
    site: SiteId,
    token: LeaseToken,
    open: bool,
    /// Whether the task's batch has a quota.
    limited: bool,
    round: u32,
}

/// Locks the tasks' rows in the order of their identifiers, like every transaction that ends
/// leases. Skips tasks that another transaction has locked.
async fn lock(
    tx: &mut Tx<'_>,
    reports: &[(AgentId, &OutcomeReport)],
) -> Result<HashMap<Locked<TaskId>, ReportedTask>, Error> {
    let ids: Vec<i64> = reports.iter().map(|(_, report)| report.task.get()).collect();
    let rows = sqlx::query!(
        r#"
        select id, site_id, round, token, state in ('assigned', 'leased', 'located') as "open!",
               batch_id in (select c.batch_id from batch_constraints c where c.constraints ->> 'bytes_per_day' is not null) as "limited!"
        from tasks where id = any($1)
        order by id
        for update skip locked
        "#,
        &ids,
    )
    .all(tx)
    .await?;
    let locked = rows.into_iter().map(|row| {
        let (site, token) = (row.site_id, row.token);
        (Locked::by(tx, row.id), ReportedTask { site, token, open: row.open, limited: row.limited, round: row.round.0 })
    });
    Ok(locked.collect())
}

/// Stores the other sites to which the crawled sites link, for each crawled site at most as many as
/// the batch's policy permits. A site's hosts of earlier rounds are removed unless this crawl found
/// them again. A crawl that fetched no page and found no other site changes nothing.
async fn replace(
    conn: &mut PgConnection,
    locked: &HashMap<Locked<TaskId>, ReportedTask>,
    reported: &[(AgentId, &OutcomeReport)],
) -> Result<(), Error> {
    let found = |report: &&OutcomeReport| report.pages > 0 || !report.hosts.is_empty();
    let fetched = || reported.iter().map(|(_, report)| *report).filter(found);
    let links = fetched().flat_map(|report| report.hosts.iter().map(|host| (report.task.get(), host.as_str())));
    let (tasks, hosts): (Vec<i64>, Vec<&str>) = links.unzip();
    let again = |report: &&OutcomeReport| locked.get(&report.task).is_some_and(|task| task.round > 1);
    let again: Vec<TaskId> = fetched().filter(again).map(|report| report.task).collect();
    if !again.is_empty() {
        sqlx::query!(
            r#"
            delete from discovered_hosts d using tasks t
            where t.id = any($1) and d.site_id = t.site_id and d.batch_id = t.batch_id
              and not exists (
                  select from unnest($2::bigint[], $3::text[]) as found (task_id, host)
                  where found.task_id = t.id and found.host = d.host
              )
            "#,
            &again as _,
            &tasks,
            &hosts as _,
        )
        .run(conn)
        .await?;
    }
    if hosts.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        r#"
        insert into discovered_hosts (batch_id, host, site_id)
        select batch_id, host, site_id
        from (
            select t.batch_id, reported.host, t.site_id, b.max_hosts,
                   row_number() over (partition by t.id order by reported.number) as place
            from unnest($1::bigint[], $2::text[]) with ordinality as reported (task_id, host, number)
            join tasks t on t.id = reported.task_id
            join batches b on b.id = t.batch_id
            join sites s on s.id = t.site_id
            where reported.host <> s.name
        ) found
        where place <= max_hosts
        on conflict do nothing
        "#,
        &tasks,
        &hosts as _,
    )
    .run(conn)
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::agents::sessions;
    use crate::store::fixtures::{self, Conn, LeasedTask};

    fn report(task: TaskId, token: i64, ending: CrawlEnding) -> OutcomeReport {
        let rtt = Rtt::try_from_micros(20_000).ok();
        OutcomeReport { rtt, ..fixtures::report(task, LeaseToken::new(token), ending) }
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_outcome_is_stored_once(mut conn: Conn) {
        let LeasedTask { agent, task, .. } = fixtures::leased(&mut conn, "a").await;
        let first = report(task, 1, CrawlEnding::Truncated(Budget::Pages));
        assert!(matches!(fixtures::record(&mut conn, agent, &first).await, OutcomeAnswer::Accepted { .. }));
        assert_eq!(fixtures::state(&mut conn, task).await, "done");
        assert_eq!(fixtures::record(&mut conn, agent, &first).await, OutcomeAnswer::Duplicate);
        let contradicting = [
            report(task, 1, CrawlEnding::Complete),
            OutcomeReport { pages: 4, ..first.clone() },
            OutcomeReport { bytes: 1001, ..first.clone() },
            OutcomeReport { errors: 0, ..first.clone() },
            OutcomeReport { rtt: None, ..first.clone() },
        ];
        for contradicting in &contradicting {
            let answer = fixtures::record(&mut conn, agent, contradicting).await;
            assert_eq!(answer, OutcomeAnswer::Refused(Refusal::Contradiction), "{contradicting:?}");
        }
        let counted = refusals::of_agent(&mut conn, agent).await.expect("read");
        assert_eq!((counted.len(), counted[0].kind, counted[0].times), (1, Refusal::Contradiction, 5));
        let kind: String = fixtures::scalar(&mut conn, "select kind::text from outcomes").await;
        assert_eq!(kind, "truncated");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn outcomes_that_come_together_are_answered_one_by_one_and_in_order(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let LeasedTask { agent, session, task: first, .. } = fixtures::leased(&mut conn, "a").await;
        let batch = fixtures::batch(&mut conn, "second", "random").await;
        let site = fixtures::site(&mut conn, "b.cn").await;
        let second = fixtures::assigned(&mut conn, batch, site, agent).await;
        assert_eq!(fixtures::grant(&mut conn, agent, session).await.len(), 1);
        let reports = [
            report(second, 1, CrawlEnding::Unreachable(None)),
            report(TaskId::new(999), 1, CrawlEnding::Complete),
            report(first, 1, CrawlEnding::Complete),
            report(first, 1, CrawlEnding::Complete),
            report(second, 1, CrawlEnding::Complete),
            report(first, 2, CrawlEnding::Complete),
        ];
        let answers = record_all(&mut conn, &reports.each_ref().map(|report| (agent, report))).await.expect("record");
        assert_eq!(answers[0], OutcomeAnswer::Accepted { site, freed: true, waited_for: false });
        assert_eq!(answers[1], OutcomeAnswer::Refused(Refusal::UnknownTask));
        assert!(matches!(answers[2], OutcomeAnswer::Accepted { .. }));
        assert_eq!(
            answers[3..],
            [
                OutcomeAnswer::Duplicate,
                OutcomeAnswer::Refused(Refusal::Contradiction),
                OutcomeAnswer::Refused(Refusal::ForgedToken)
            ]
        );
        assert_eq!(fixtures::state(&mut conn, first).await, "done");
        assert_eq!(fixtures::state(&mut conn, second).await, "failed");
        let counted = refusals::of_agent(&mut conn, agent).await.expect("read");
        assert_eq!(counted.iter().map(|count| count.times).sum::<u64>(), 3, "{counted:?}");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_released_lease_may_complete_until_a_newer_grant_exists(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let LeasedTask { agent, session, task, .. } = fixtures::leased(&mut conn, "a").await;
        sessions::close(&mut conn, session).await.expect("close");
        fixtures::reap(&mut conn).await;
        let mut tx = Tx::on(&mut conn).await.expect("begin");
        let late = fixtures::record(&mut tx, agent, &report(task, 1, CrawlEnding::Complete)).await;
        assert!(matches!(late, OutcomeAnswer::Accepted { freed: false, .. }), "the slot was free before");
        tx.rollback().await.expect("rollback");

        let session = fixtures::session(&mut conn, agent).await;
        assert_eq!(leases::grant(&mut conn, agent, session).await.expect("grant")[0].token.get(), 2);
        let late = fixtures::record(&mut conn, agent, &report(task, 1, CrawlEnding::Complete)).await;
        assert_eq!(late, OutcomeAnswer::Refused(Refusal::OldToken));
        assert_eq!(fixtures::state(&mut conn, task).await, "leased");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn nobody_completes_anothers_lease_or_an_unknown_task(mut conn: Conn) {
        let task = fixtures::leased(&mut conn, "a").await.task;
        let thief = fixtures::agent(&mut conn, "thief").await;
        for (task, token, refusal) in [
            (task, 1, Refusal::ForeignLease),
            (task, 2, Refusal::ForgedToken),
            (task, -1, Refusal::ForgedToken),
            (TaskId::new(999), 1, Refusal::UnknownTask),
        ] {
            let answer = fixtures::record(&mut conn, thief, &report(task, token, CrawlEnding::Complete)).await;
            assert_eq!(answer, OutcomeAnswer::Refused(refusal));
        }
        let counted = refusals::of_agent(&mut conn, thief).await.expect("read");
        assert_eq!(counted.iter().map(|count| count.times).sum::<u64>(), 4, "{counted:?}");
        assert_eq!(fixtures::state(&mut conn, task).await, "leased");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn absurd_numbers_do_not_break_the_reports(mut conn: Conn) {
        let (agent, session) = fixtures::crawler(&mut conn, "liar").await;
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        for host in ["a.cn", "b.cn"] {
            let site = fixtures::site(&mut conn, host).await;
            let task = fixtures::assigned(&mut conn, batch, site, agent).await;
            fixtures::grant(&mut conn, agent, session).await;
            let absurd = OutcomeReport { pages: u32::MAX, bytes: u64::MAX, ..report(task, 1, CrawlEnding::Complete) };
            fixtures::record(&mut conn, agent, &absurd).await;
        }
        let most = i64::MAX.unsigned_abs();
        let progress = crate::store::batches::progress(&mut conn, batch).await.expect("the progress");
        assert_eq!((progress.complete, progress.bytes), (2, most));
        let agents = crate::store::reports::agents(&mut conn, None, &[agent]).await.expect("the agents' report");
        assert_eq!(agents[0].bytes, most);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_unreachable_site_fails_with_the_reason(mut conn: Conn) {
        let LeasedTask { agent, task, .. } = fixtures::leased(&mut conn, "a").await;
        let unreachable = CrawlEnding::Unreachable(Some(crate::model::ReasonKind::NoConnection));
        fixtures::record(&mut conn, agent, &report(task, 1, unreachable)).await;
        let (state, reason, kind): (String, String, String) =
            sqlx::query_as("select state::text, reason, reason_kind::text from tasks")
                .fetch_one(&mut *conn)
                .await
                .expect("one row");
        let said = (state.as_str(), reason.as_str(), kind.as_str());
        assert_eq!(said, ("failed", "unreachable: no route", "no-connection"));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_sites_newest_crawl_that_fetched_a_page_names_its_hosts(mut conn: Conn) {
        let LeasedTask { agent, session, task, .. } = fixtures::leased(&mut conn, "a").await;
        fixtures::execute(&mut conn, "update batches set policy = policy || '{\"max_hosts\": 2}'").await;
        let hosts = |names: &[&str]| names.iter().map(|name| name.parse().expect("a name")).collect::<Vec<SiteName>>();
        let first =
            OutcomeReport { hosts: hosts(&["c.cn", "a.cn", "b.cn", "d.cn"]), ..report(task, 1, CrawlEnding::Complete) };
        let known = "select string_agg(host, ' ' order by host) from discovered_hosts";
        fixtures::record(&mut conn, agent, &first).await;
        assert_eq!(
            fixtures::scalar::<String>(&mut conn, known).await,
            "b.cn c.cn",
            "the first two that are other sites"
        );
        fixtures::execute(&mut conn, "update discovered_hosts set found_at = now() - interval '9 days'").await;

        for (pages, names, expected) in [(0, &[][..], "b.cn c.cn"), (1, &["b.cn", "d.cn"], "b.cn d.cn")] {
            // A new round of the same site.
            fixtures::execute(&mut conn, "update tasks set retried_at = now() where retried_at is null").await;
            fixtures::execute(
                &mut conn,
                "insert into tasks (batch_id, site_id, round, state) select batch_id, site_id, max(round) + 1, 'located' \
                 from tasks group by batch_id, site_id",
            )
            .await;
            let task: i64 = fixtures::scalar(&mut conn, "select max(id) from tasks").await;
            fixtures::assign(&mut conn, TaskId::new(task), agent).await;
            assert_eq!(fixtures::grant(&mut conn, agent, session).await.len(), 1);
            let again = report(TaskId::new(task), 1, CrawlEnding::Complete);
            let again = OutcomeReport { pages, hosts: hosts(names), ..again };
            assert!(matches!(fixtures::record(&mut conn, agent, &again).await, OutcomeAnswer::Accepted { .. }));
            assert_eq!(fixtures::scalar::<String>(&mut conn, known).await, expected);
        }
        let old = "select host from discovered_hosts where found_at < now() - interval '8 days'";
        assert_eq!(fixtures::scalar::<String>(&mut conn, old).await, "b.cn", "it keeps its first time");
    }
}
