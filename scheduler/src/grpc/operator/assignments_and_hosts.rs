//! Streams the long reports, which are read from the database page by page: the sites of a batch,
//! each with the chosen agent and the outcome, and the hosts to which its pages link.

use std::future::Future;

use futures_util::{Stream, StreamExt, stream};
use landfall_proto::v1;
use sqlx::PgConnection;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::convert::{InvalidField, Places, TimeRange, duration, reasons, rtt, timestamp, whole};
use super::named;
use crate::Scheduler;
use crate::model::TaskState;
use crate::store;
use crate::store::reports::hosts::{self, HostPages, HostRow};
use crate::store::reports::{self, AssignmentPages, AssignmentRow};
use crate::strategy::explain;

pub(super) async fn assignments(
    scheduler: Scheduler,
    request: v1::AssignmentsRequest,
) -> Result<impl Stream<Item = Result<v1::AssignmentRow, Status>> + Send + use<>, Status> {
    let places = Places::new(&request.cities, &request.carriers, &request.countries);
    let time = TimeRange::new(request.since, request.until)?;
    let mut conn = scheduler.operators.read("find tasks to report").await?;
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

pub(super) async fn hosts(
    scheduler: Scheduler,
    request: v1::HostsRequest,
) -> Result<impl Stream<Item = Result<v1::HostRow, Status>> + Send + use<>, Status> {
    let time = TimeRange::new(request.since, request.until)?;
    let mut conn = scheduler.operators.read("find hosts to report").await?;
    let wanted = hosts::HostFilter {
        batch: named::batch(&mut conn, &request.batch).await?.id,
        min_sites: request.min_sites,
        unlisted: request.unlisted,
        since: time.since,
        until: time.until,
    };
    drop(conn);
    let pages = HostPages::new(wanted);
    let message = |row, more| v1::HostRow { more, ..v1::HostRow::from(row) };
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

impl From<HostRow> for v1::HostRow {
    fn from(row: HostRow) -> Self {
        let HostRow { host, sites, example, found_at, listed } = row;
        Self { host, sites, example, found_at: Some(timestamp(found_at)), listed, more: 0 }
    }
}

/// Number of rows of the first page, which is small so that output appears at once. Further pages
/// have [`PAGE`] rows.
const FIRST_PAGE: u32 = 100;
const PAGE: u32 = 4_000;

/// A report that is read page by page.
pub(super) trait Pages: Send + 'static {
    type Row: Send + 'static;

    /// At most `limit` further rows; empty after the last row.
    fn next(
        &mut self,
        conn: &mut PgConnection,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Self::Row>, store::Error>> + Send;

    /// Number of rows that have not been read yet.
    fn behind(&self, conn: &mut PgConnection) -> impl Future<Output = Result<u64, store::Error>> + Send;
}

impl Pages for AssignmentPages {
    type Row = AssignmentRow;

    async fn next(&mut self, conn: &mut PgConnection, limit: u32) -> Result<Vec<AssignmentRow>, store::Error> {
        self.next(conn, limit).await
    }

    async fn behind(&self, conn: &mut PgConnection) -> Result<u64, store::Error> {
        self.behind(conn).await
    }
}

impl Pages for HostPages {
    type Row = HostRow;

    async fn next(&mut self, conn: &mut PgConnection, limit: u32) -> Result<Vec<HostRow>, store::Error> {
        self.next(conn, limit).await
    }

    async fn behind(&self, conn: &mut PgConnection) -> Result<u64, store::Error> {
        self.behind(conn).await
    }
}

/// Some rows, and the number of rows that the limit omits after them.
type Page<R> = (Vec<R>, u64);

/// The rows as messages, at most `limit`; 0 means all. `message` converts a row and the number of
/// rows that the limit omits after it, which is 0 except for the last row. At most three pages are
/// in memory: one is sent, one waits in the channel, and one is read. No database connection is
/// kept between two pages.
pub(super) fn messages<P: Pages, M: Send + 'static>(
    scheduler: Scheduler,
    pages: P,
    limit: u64,
    message: fn(P::Row, u64) -> M,
) -> impl Stream<Item = Result<M, Status>> + Send {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        if let Err(error) = read(&scheduler, pages, limit, &sender).await {
            // The client may be gone, so a failure to send is ignored.
            drop(sender.send(Err(error.into())).await);
        }
    });
    // Each row becomes a message only when it is sent, so that a page is not in memory twice.
    ReceiverStream::new(receiver).flat_map(move |page: Result<Page<P::Row>, Status>| {
        let (rows, more, failed) = match page {
            Ok((rows, more)) => (rows, more, None),
            Err(status) => (Vec::new(), 0, Some(Err(status))),
        };
        let last = rows.len().saturating_sub(1);
        let messages = rows.into_iter().enumerate();
        let messages = messages.map(move |(index, row)| Ok(message(row, if index == last { more } else { 0 })));
        stream::iter(messages.chain(failed))
    })
}

async fn read<P: Pages>(
    scheduler: &Scheduler,
    mut pages: P,
    limit: u64,
    sender: &mpsc::Sender<Result<Page<P::Row>, Status>>,
) -> Result<(), store::Error> {
    let (mut size, mut left) = (FIRST_PAGE, if limit == 0 { u64::MAX } else { limit });
    loop {
        let mut page = scheduler.operators.snapshot("read a page of a report").await?;
        let rows = pages.next(&mut page, size.min(u32::try_from(left).unwrap_or(u32::MAX))).await?;
        drop(page);
        left -= whole(rows.len());
        let mut more = 0;
        if left == 0 {
            let mut conn = scheduler.operators.read("count the rest of a report").await?;
            more = pages.behind(&mut conn).await?;
        }
        if rows.is_empty() || sender.send(Ok((rows, more))).await.is_err() || left == 0 {
            return Ok(());
        }
        size = PAGE;
    }
}
