//! `landfall sites list`, and the filters and printing for all lists of a batch's tasks.

use clap::Args;
use landfall_proto::json::{self, Word as _};
use landfall_proto::v1::{self, AssignmentsRequest, ShowBatchRequest};
use prost_types::Timestamp;
use serde::Serialize;

use crate::cli::ConnectionArgs;
use crate::cli::batches::wait_and_progress::total;
use crate::cli::connection::Client;
use crate::cli::filters::{PlaceArgs, TimeArgs, one_of, timestamp};
use crate::cli::output::formats::{is_watched, print_rows, uncounted_bar};
use crate::cli::output::progress_bar::Bar;
use crate::cli::output::{self, Column, Format, FormatArgs, PrintedRow, Row, Tone};
use crate::model::{ReasonKind, TaskState};

/// Maximum number of rows in a table if no limit is given.
const TABLE: u64 = 100;

/// What narrows a list of tasks.
#[derive(Debug, Args)]
pub(in crate::cli) struct TasksArgs {
    /// The batch
    #[arg(long, value_name = "NAME")]
    batch: String,
    /// Only sites in this state; may be repeated
    #[arg(long, value_name = "STATE", value_parser = one_of(TaskState::ALL.iter().copied(), TaskState::name))]
    state: Vec<TaskState>,
    /// Only sites that failed or were cancelled for this reason; may be repeated
    #[arg(long, value_name = "KIND", value_parser = one_of(ReasonKind::ALL.iter().copied(), ReasonKind::name))]
    reason: Vec<ReasonKind>,
    /// Only sites for which this agent was chosen last
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    #[command(flatten)]
    places: PlaceArgs,
    #[command(flatten)]
    time: TimeArgs,
}

impl TasksArgs {
    /// Prints the requested tasks as they arrive.
    pub(in crate::cli) async fn print<R: PrintedRow>(
        self,
        row: fn(v1::AssignmentRow) -> R,
        limit: u64,
        format: &FormatArgs<R>,
        connection: &ConnectionArgs,
    ) -> anyhow::Result<()> {
        let request = AssignmentsRequest {
            batch: self.batch,
            states: self.state.into_iter().map(|state| v1::TaskState::from(state).into()).collect(),
            reasons: self.reason.into_iter().map(|kind| v1::ReasonKind::from(kind).into()).collect(),
            agent: self.agent.unwrap_or_default(),
            limit,
            cities: self.places.city,
            carriers: self.places.carrier,
            countries: self.places.country,
            since: self.time.since.map(timestamp),
            until: self.time.until.map(timestamp),
        };
        let client = Client::connect(connection).await?;
        let bar = bar(&client, &request).await;
        let stream = client.answer(client.reports().assignments(request).await)?;
        let row = |message: v1::AssignmentRow| {
            let more = message.more;
            (row(message), more)
        };
        print_rows(&client, stream, bar, row, "no site of the batch matches\n", format).await
    }
}

/// A progress bar. The total number of rows is known only if the whole batch is listed.
async fn bar(client: &Client, request: &AssignmentsRequest) -> Bar {
    let whole = AssignmentsRequest { batch: request.batch.clone(), ..AssignmentsRequest::default() };
    if !is_watched() || *request != whole {
        return uncounted_bar();
    }
    let shown = client.sites().show_batch(ShowBatchRequest { batch: whole.batch }).await.ok();
    match shown.and_then(|shown| shown.into_inner().progress) {
        Some(progress) => Bar::counted(total(&progress), "rows"),
        None => uncounted_bar(),
    }
}

/// The flags of `sites list`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall sites list --batch autumn --state failed
  landfall sites list --batch autumn --reason name-not-found --reason timed-out -o csv
  landfall sites list --batch autumn --state leased --agent harbin-cernet")]
pub(in crate::cli) struct ListArgs {
    #[command(flatten)]
    tasks: TasksArgs,
    /// Maximum number of sites; 0: all [default: 100 in a table, otherwise all]
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    #[command(flatten)]
    format: FormatArgs<SiteRow>,
}

impl ListArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let limit = self.limit.unwrap_or(if self.format.format() == Format::Table { TABLE } else { 0 });
        self.tasks.print(SiteRow, limit, &self.format, connection).await
    }
}

/// A site of a batch, as a row of the list.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(in crate::cli) struct SiteRow(#[serde(with = "SiteFields")] pub(in crate::cli) v1::AssignmentRow);

/// The fields that are printed as JSON and CSV.
#[derive(Serialize)]
#[serde(remote = "v1::AssignmentRow")]
struct SiteFields {
    site: String,
    origin: String,
    state: String,
    #[serde(serialize_with = "json::time")]
    state_since: Option<Timestamp>,
    agent: String,
    pages: u32,
    bytes: u64,
    #[serde(serialize_with = "json::kind::<v1::ReasonKind, _>")]
    reason_kind: i32,
    reason: String,
    #[serde(rename = "wait_cause", serialize_with = "json::wait")]
    wait: Option<v1::Wait>,
    round: u32,
}

impl Row for SiteRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("site", |row, _| row.0.site.clone()),
        ("!state", |row, _| row.0.state.clone()),
        ("since", |row, view| view.when(row.0.state_since)),
        ("agent", |row, _| output::text_cell(&row.0.agent)),
        (">pages", |row, _| output::count_cell(row.0.pages)),
        ("~why", |row, _| output::text_cell(&row.0.reason)),
        ("+kind", |row, _| output::text_cell(row.0.reason_kind().word())),
        ("+>size", |row, _| output::size_cell(row.0.bytes)),
        ("+>round", |row, _| row.0.round.to_string()),
    ];

    fn tone(&self) -> Tone {
        task_tone(&self.0)
    }
}

/// The tone of a task, by its state and outcome.
pub(in crate::cli) fn task_tone(row: &v1::AssignmentRow) -> Tone {
    match TaskState::named(&row.state) {
        Some(TaskState::Done) if row.outcome == "truncated" => Tone::Pausing,
        Some(TaskState::Done) => Tone::Good,
        Some(TaskState::Failed) => Tone::Bad,
        _ => Tone::Plain,
    }
}
