//! Decides whether an outcome is accepted, is a duplicate, or is refused, and why.

use std::collections::HashMap;

use sqlx::PgConnection;

use crate::model::{AgentId, Budget, OutcomeKind, Rtt, SiteId, TaskId};
use crate::store::Error;
use crate::store::agents::refusals::Refusal;
use crate::store::leases::outcomes::locked_task::LockedTask;
use crate::store::leases::outcomes::outcome_report::OutcomeReport;
use crate::store::rows::Rows;
use crate::store::schema::restores;
use crate::store::types::whole;

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
}

/// Judges reports on different tasks. Also returns the tasks that end now but still have a hold. A
/// task that ends may have a hold if its lease was released, or if its agent never requested a
/// permit for the address to which the task was admitted.
pub(super) async fn judge(
    conn: &mut PgConnection,
    locked: &HashMap<TaskId, LockedTask>,
    reports: &[(AgentId, &OutcomeReport)],
) -> Result<(Vec<OutcomeAnswer>, Vec<TaskId>), Error> {
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
    let floor = if leases.len() == reports.len() { 0 } else { restores::floor(conn).await? };
    let odd = |number, otherwise| OutcomeAnswer::Refused(restores::blame(number, floor, otherwise));
    let verdict = |(agent, report): &(AgentId, &OutcomeReport)| {
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
    let on_hold = ends.map(|((_, report), _)| report.task).filter(on_hold).collect();
    Ok((verdicts, on_hold))
}

/// A report's numbers as stored. A number above a column's range becomes the column's maximum.
pub(super) struct StoredFigures {
    pub(super) kind: OutcomeKind,
    pub(super) budget: Option<Budget>,
    pub(super) pages: i32,
    pub(super) bytes: i64,
    pub(super) errors: i32,
    pub(super) duration_ms: i64,
    pub(super) rtt_us: Option<i64>,
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
