//! Records accepted outcomes, ends their tasks, opens circuits, and counts refusals.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::{AgentId, Blocker, Budget, CrawlEnding, SiteId, TaskId};
use crate::store::Error;
use crate::store::agents::refusals;
use crate::store::batches::quotas;
use crate::store::leases::outcomes::acceptance::{OutcomeAnswer, StoredFigures, judge};
use crate::store::leases::outcomes::locked_task::{LockedTask, lock};
use crate::store::leases::outcomes::outcome_report::OutcomeReport;
use crate::store::leases::{self, Completed};
use crate::store::rows::Statement;
use crate::store::sites::open_circuits;
use crate::store::tasks::holds;
use crate::store::types::whole;

use super::hosts;

/// Records outcomes of one or several agents. Returns the answers in the order of the reports. Run
/// in a transaction, because the tasks' rows must stay locked.
pub async fn record_all(
    conn: &mut PgConnection,
    reports: &[(AgentId, &OutcomeReport)],
) -> Result<Vec<OutcomeAnswer>, Error> {
    let mut answers = Vec::with_capacity(reports.len());
    let mut rest = reports;
    let mut locked = lock(conn, reports).await?;
    while !rest.is_empty() {
        // If two reports are about the same task, the second report is judged only after the first
        // has been recorded.
        let mut tasks = HashSet::new();
        let distinct = rest.iter().take_while(|(_, report)| tasks.insert(report.task)).count();
        let (now, later) = rest.split_at(distinct);
        answers.extend(record_distinct(conn, &mut locked, now).await?);
        rest = later;
    }
    Ok(answers)
}

/// Records outcomes of different tasks, and ends the tasks.
async fn record_distinct(
    conn: &mut PgConnection,
    locked: &mut HashMap<TaskId, LockedTask>,
    reports: &[(AgentId, &OutcomeReport)],
) -> Result<Vec<OutcomeAnswer>, Error> {
    let (verdicts, on_hold) = judge(conn, locked, reports).await?;
    let accepted: Vec<(AgentId, &OutcomeReport)> = reports
        .iter()
        .zip(&verdicts)
        .filter(|(_, verdict)| matches!(verdict, OutcomeAnswer::Accepted { .. }))
        .map(|(reported, _)| *reported)
        .collect();
    if !accepted.is_empty() {
        insert(conn, &accepted).await?;
        hosts::replace(conn, locked, &accepted).await?;
        if !on_hold.is_empty() {
            holds::end(conn, &on_hold).await?;
        }
        end_tasks(conn, &accepted).await?;
        break_circuits(conn, locked, &accepted).await?;
        let limited = accepted.iter().filter(|(_, report)| locked.get(&report.task).is_some_and(|task| task.limited));
        let fetched: Vec<_> = limited.map(|(agent, report)| (report.task, *agent, report.bytes)).collect();
        if !fetched.is_empty() {
            quotas::add_spending(conn, &fetched).await?;
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
            refusals::count(conn, *agent, refusal, &detail).await?;
        }
    }
    Ok(verdicts)
}

/// Opens the circuits of sites whose crawls were ended by the breaker.
async fn break_circuits(
    conn: &mut PgConnection,
    locked: &HashMap<TaskId, LockedTask>,
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

async fn end_tasks(conn: &mut PgConnection, reports: &[(AgentId, &OutcomeReport)]) -> Result<(), Error> {
    let completed = reports.iter().map(|(_, report)| Completed {
        task: report.task,
        token: report.token,
        failure: report
            .ending
            .reason()
            .map(|kind| (format!("{}: {}", report.ending.kind().name(), report.message), kind.name())),
    });
    leases::complete(conn, &completed.collect::<Vec<_>>()).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{LeaseToken, Rtt, SessionId};
    use crate::store::agents::refusals::Refusal;
    use crate::store::agents::sessions;
    use crate::store::fixtures::{self, Conn, LeasedTask};

    fn report(task: TaskId, token: i64, ending: CrawlEnding) -> OutcomeReport {
        let rtt = Rtt::try_from_micros(20_000).ok();
        OutcomeReport { rtt, ..fixtures::report(task, LeaseToken::new(token), ending) }
    }

    async fn leased(conn: &mut PgConnection) -> (AgentId, SessionId, TaskId) {
        let LeasedTask { agent, session, task, .. } = fixtures::leased(conn, "a").await;
        (agent, session, task)
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_outcome_is_stored_once(mut conn: Conn) {
        let (agent, _, task) = leased(&mut conn).await;
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
        let (agent, session, first) = leased(&mut conn).await;
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
        let (agent, session, task) = leased(&mut conn).await;
        sessions::close(&mut conn, session).await.expect("close");
        fixtures::reap(&mut conn).await;
        let mut tx = sqlx::Connection::begin(&mut *conn).await.expect("begin");
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
        let (_, _, task) = leased(&mut conn).await;
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
        let agents = crate::store::reports::agents(&mut conn, None).await.expect("the agents' report");
        assert_eq!(agents[0].bytes, most);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_unreachable_site_fails_with_the_reason(mut conn: Conn) {
        let (agent, _, task) = leased(&mut conn).await;
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
}
