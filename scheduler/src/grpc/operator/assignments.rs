//! Lists the sites of a batch, each with its state, the chosen agent and the outcome: `landfall
//! sites list` and `landfall report assignments`.

use futures_util::Stream;
use landfall_proto::v1;
use tonic::Status;

use crate::Scheduler;
use crate::model::TaskState;
use crate::store;
use crate::store::reports::{self, AssignmentRow};
use crate::strategy::explain;

use super::convert::filters::{Places, TimeRange, reasons};
use super::convert::{InvalidField, duration, rtt, timestamp};
use super::named;
use super::paging::messages;

pub(super) async fn rows(
    scheduler: Scheduler,
    request: v1::AssignmentsRequest,
) -> Result<impl Stream<Item = Result<v1::AssignmentRow, Status>> + Send + use<>, Status> {
    let places = Places::new(&request.cities, &request.carriers, &request.countries);
    let time = TimeRange::new(request.since, request.until)?;
    let mut conn = store::acquire(&scheduler.pool).await?;
    let wanted = reports::TaskFilter {
        batch: named::batch(&mut conn, &request.batch).await?.id,
        states: states(&request.states)?,
        reasons: reasons(&request.reasons)?,
        agents: named::agents_at(&mut conn, &request.agent, &places).await?,
        since: time.since,
        until: time.until,
    };
    drop(conn);
    let pages = reports::AssignmentPages::new(wanted);
    let message = |row, more| v1::AssignmentRow { more, ..v1::AssignmentRow::from(row) };
    Ok(messages(scheduler, pages, request.limit, message))
}

fn states(asked: &[i32]) -> Result<Vec<TaskState>, InvalidField> {
    let known = |value: &i32| TaskState::try_from(v1::TaskState::try_from(*value).ok()?).ok();
    let unknown = |value: &i32| InvalidField::new("states", format!("{value} is not a task state"));
    asked.iter().map(|value| known(value).ok_or_else(|| unknown(value))).collect()
}

impl From<AssignmentRow> for v1::AssignmentRow {
    fn from(row: AssignmentRow) -> Self {
        let mut message = Self {
            wait: row.waits.as_ref().map(Into::into),
            why: row.choice.as_ref().map(|choice| (&choice.why).into()),
            site: row.site,
            origin: row.origin.unwrap_or_default(),
            state: row.state.name().to_owned(),
            reason: explain::reason(
                row.reason,
                row.waits.as_ref(),
                row.choice.as_ref().map(|choice| &choice.why),
                row.message,
            ),
            assignments: row.assignments,
            anycast_confidence: row.anycast,
            probes: row.probes,
            confirming_probes: row.confirming_probes,
            requests: row.requests,
            round: row.round,
            reason_kind: row.reason_kind.map_or(v1::ReasonKind::Unspecified, Into::into).into(),
            state_since: Some(timestamp(row.state_since)),
            ..Self::default()
        };
        if let Some(choice) = row.choice {
            message.agent = choice.agent;
            message.city = choice.city;
            message.carrier = choice.carrier;
            message.strategy = choice.strategy.to_string();
            message.note = explain::note(&choice.why).unwrap_or_default();
            message.rank = choice.rank.unwrap_or_default();
            message.predicted = rtt(choice.predicted);
            message.measured = rtt(choice.measured);
        }
        if let Some(outcome) = row.outcome {
            message.outcome = outcome.kind.name().to_owned();
            message.pages = outcome.pages;
            message.bytes = outcome.bytes;
            message.errors = outcome.errors;
            message.started_at = Some(timestamp(outcome.started_at));
            message.duration = Some(duration(outcome.duration));
            message.crawled = rtt(outcome.rtt);
        }
        message
    }
}
