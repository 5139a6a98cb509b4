//! `landfall report assignments|hosts`: lists each task of a batch with its agent and why the agent
//! was chosen, and the other sites to which a batch's sites link.

use clap::Args;
use landfall_proto::json::{self, Word as _};
use landfall_proto::v1::{self, HostRow, HostsRequest, ReasonKind, Wait};
use prost_types::{Duration, Timestamp};
use serde::Serialize;

use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::filters::{TimeArgs, timestamp};
use crate::cli::output::formats::{print_rows, uncounted_bar};
use crate::cli::output::{
    self, Column, FormatArgs, Row, Tone, View, count_cell, millis_cell, size_cell, text_cell, yes_cell,
};
use crate::cli::sites::list::{TasksArgs, task_tone};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall report assignments --batch autumn --format csv > autumn.csv
  landfall report assignments --batch autumn --state failed --reason timed-out")]
pub(in crate::cli) struct AssignmentsArgs {
    #[command(flatten)]
    tasks: TasksArgs,
    /// Maximum number of rows; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    limit: u64,
    #[command(flatten)]
    format: FormatArgs<AssignmentRow>,
}

impl AssignmentsArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        self.tasks.print(AssignmentRow, self.limit, &self.format, connection).await
    }
}

/// A task as a row of the report.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(in crate::cli) struct AssignmentRow(#[serde(with = "AssignmentFields")] pub(in crate::cli) v1::AssignmentRow);

/// The printed fields. Three fields are causes, each one word or empty: why the task waits, why it
/// has its agent, and why the batch's strategy was not applied.
#[derive(Serialize)]
#[serde(remote = "v1::AssignmentRow")]
struct AssignmentFields {
    site: String,
    origin: String,
    state: String,
    reason: String,
    agent: String,
    city: String,
    carrier: String,
    strategy: String,
    #[serde(serialize_with = "json::some")]
    rank: u32,
    #[serde(rename = "predicted_ms", serialize_with = "json::millis")]
    predicted: Option<Duration>,
    #[serde(rename = "measured_ms", serialize_with = "json::millis")]
    measured: Option<Duration>,
    #[serde(rename = "crawled_ms", serialize_with = "json::millis")]
    crawled: Option<Duration>,
    assignments: u32,
    outcome: String,
    pages: u32,
    bytes: u64,
    errors: u32,
    #[serde(serialize_with = "json::time")]
    started_at: Option<Timestamp>,
    #[serde(rename = "duration_ms", serialize_with = "json::millis")]
    duration: Option<Duration>,
    note: String,
    anycast_confidence: Option<f64>,
    probes: u64,
    confirming_probes: u64,
    requests: u64,
    round: u32,
    #[serde(serialize_with = "json::kind::<ReasonKind, _>")]
    reason_kind: i32,
    #[serde(rename = "wait_cause", serialize_with = "json::wait")]
    wait: Option<Wait>,
    #[serde(getter = "cause")]
    cause: &'static str,
    #[serde(getter = "fallback")]
    fallback: &'static str,
}

fn cause(row: &v1::AssignmentRow) -> &'static str {
    row.why.as_ref().map_or("", |why| why.cause().word())
}

fn fallback(row: &v1::AssignmentRow) -> &'static str {
    row.why.as_ref().map_or("", |why| why.fallback().word())
}

impl Row for AssignmentRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("site", |row, _| row.0.site.clone()),
        // Tasks that are done show the outcome of the crawl instead of the state.
        ("!state", |row, _| (if row.0.state == "done" { &row.0.outcome } else { &row.0.state }).clone()),
        ("agent", |row, _| text_cell(&row.0.agent)),
        (">rtt ms", |row, _| millis_cell(row.0.crawled)),
        (">pages", |row, _| count_cell(row.0.pages)),
        ("~reason", |row, _| text_cell(if row.0.reason.is_empty() { &row.0.note } else { &row.0.reason })),
        ("+outcome", |row, _| text_cell(&row.0.outcome)),
        ("+strategy", |row, _| text_cell(&row.0.strategy)),
        ("+>rank", |row, _| count_cell(row.0.rank)),
        ("+>predicted ms", |row, _| millis_cell(row.0.predicted)),
        ("+>measured ms", |row, _| millis_cell(row.0.measured)),
        ("+>probes", |row, _| count_cell(row.0.probes)),
        ("+>requests", |row, _| count_cell(row.0.requests)),
        ("+>size", |row, _| size_cell(row.0.bytes)),
        ("+>anycast", |row, _| output::float_cell(row.0.anycast_confidence, 2)),
    ];

    fn tone(&self) -> Tone {
        task_tone(&self.0)
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall report hosts --batch autumn --min-sites 10
  landfall report hosts --batch autumn --unlisted --quiet | landfall sites submit - --batch winter
  landfall report hosts --batch autumn --format csv > hosts.csv

Hosts are listed by name. --since and --until select links by the time of the outcome that first named them.")]
pub(in crate::cli) struct HostsArgs {
    /// The batch
    #[arg(long, value_name = "NAME")]
    batch: String,
    /// Only hosts to which at least this many sites link
    #[arg(long, value_name = "N", default_value_t = 1)]
    min_sites: u32,
    /// Only hosts that are not yet sites, by name or origin
    #[arg(long)]
    unlisted: bool,
    #[command(flatten)]
    time: TimeArgs,
    /// Maximum number of hosts; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    limit: u64,
    #[command(flatten)]
    format: FormatArgs<HostRow>,
}

impl HostsArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { batch, min_sites, unlisted, time, limit, format } = self;
        let (since, until) = (time.since.map(timestamp), time.until.map(timestamp));
        let request = HostsRequest { batch, min_sites, unlisted, limit, since, until };
        let client = Client::connect(connection).await?;
        let stream = client.answer(client.reports().hosts(request).await)?;
        let row = |row: HostRow| {
            let more = row.more;
            (row, more)
        };
        print_rows(&client, stream, uncounted_bar(), row, "no discovered host matches\n", &format).await
    }
}

impl Row for v1::HostRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("host", |row, _| row.host.clone()),
        (">sites", |row, _| count_cell(row.sites)),
        ("example", |row, _| row.example.clone()),
        ("found", |row, view| view.when(row.found_at)),
        ("listed", |row, _| yes_cell(row.listed)),
    ];

    fn name(&self, _: &View) -> String {
        self.host.clone()
    }
}
