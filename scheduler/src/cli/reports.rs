//! `landfall report`: shows results by task and by agent. The module `throughput` shows
//! results over time.

pub(super) mod accuracy;
pub(super) mod events;
pub(super) mod failures;
mod hosts;
mod html;
mod page;
pub(super) mod plan;
pub(super) mod throughput;

use clap::{Args, Subcommand};
use landfall_proto::json::{self, Word as _};
use landfall_proto::v1::{self, AgentsReportRequest, ReasonKind, Wait};
use prost_types::{Duration, Timestamp};
use serde::Serialize;

use self::accuracy::AccuracyArgs;
use self::failures::FailuresArgs;
use self::hosts::HostsArgs;
use self::html::HtmlArgs;
use self::throughput::ThroughputArgs;
use super::ConnectionArgs;
use super::agents::{level_cell, service_tone, service_words};
use super::client::Client;
use super::filters::{PlaceArgs, TimeArgs, timestamp};
use super::output::{self, Column, FormatArgs, Row, Tone, View, count_cell, millis_cell, size_cell, text_cell};
use super::repeat::WatchFlag;
use super::sites::tasks::TasksArgs;
use crate::model::{ReportGroup, TaskState};

#[derive(Debug, Subcommand)]
pub(super) enum ReportCommand {
    /// Which agent crawled each site of a batch, and why
    #[command(after_help = "\
Examples:
  landfall report assignments --batch autumn --format csv > autumn.csv
  landfall report assignments --batch autumn --state failed --reason timed-out")]
    Assignments {
        #[command(flatten)]
        tasks: TasksArgs,
        /// Maximum number of rows; 0: all
        #[arg(long, value_name = "N", default_value_t = 0)]
        limit: u64,
        #[command(flatten)]
        format: FormatArgs<AssignmentRow>,
    },
    /// What each agent did
    Agents {
        /// Only this batch
        #[arg(long, value_name = "NAME")]
        batch: Option<String>,
        /// Only this agent
        #[arg(long, value_name = "NAME")]
        agent: Option<String>,
        #[command(flatten)]
        places: PlaceArgs,
        /// Maximum number of agents; 0: all
        #[arg(long, value_name = "N", default_value_t = 0)]
        limit: u64,
        #[command(flatten)]
        format: FormatArgs<v1::AgentRow>,
        #[command(flatten)]
        watch: WatchFlag,
    },
    /// A batch's progress by agent and by strategy, and its remaining time
    Throughput(ThroughputArgs),
    /// How well predicted round trips agreed with measured ones, by city, carrier, agent or day
    Accuracy(AccuracyArgs),
    /// How many sites failed, by reason, agent, city, carrier, day or batch
    Failures(FailuresArgs),
    /// The other sites to which a batch's sites link
    Hosts(HostsArgs),
    /// Write a page with plots of progress, throughput, failures, accuracy and the agents' shares
    Html(HtmlArgs),
}

impl ReportCommand {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        match self {
            Self::Throughput(args) => args.run(connection).await,
            Self::Accuracy(args) => args.run(connection).await,
            Self::Failures(args) => args.run(connection).await,
            Self::Hosts(args) => args.run(connection).await,
            Self::Html(args) => args.run(connection).await,
            Self::Assignments { tasks, limit, format } => tasks.print(AssignmentRow, limit, &format, connection).await,
            Self::Agents { batch, agent, places, limit, format, watch } => {
                let none = if places.are_any() { "" } else { "no agent matches\n" };
                let PlaceArgs { city: cities, carrier: carriers, country: countries } = places;
                let (batch, agent) = (batch.unwrap_or_default(), agent.unwrap_or_default());
                let request = AgentsReportRequest { batch, agent, limit, cities, carriers, countries };
                let ask = async |client: &Client| client.answer(client.reports().agents(request.clone()).await);
                let text = |report: &v1::AgentsReportResponse, view: &View| {
                    format.text(&report.agents, none, report.more, view)
                };
                watch.print(connection, &format, ask, text).await
            }
        }
    }
}

/// Selects crawls by their agent, or failed sites by the agent that was chosen last for them.
#[derive(Debug, Args)]
struct CrawlArgs {
    /// Only this batch
    #[arg(long, value_name = "NAME")]
    batch: Option<String>,
    /// Only this agent
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    #[command(flatten)]
    places: PlaceArgs,
    #[command(flatten)]
    time: TimeArgs,
}

impl CrawlArgs {
    fn filter(self) -> v1::CrawlFilter {
        v1::CrawlFilter {
            batch: self.batch.unwrap_or_default(),
            agent: self.agent.unwrap_or_default(),
            cities: self.places.city,
            carriers: self.places.carrier,
            countries: self.places.country,
            since: self.time.since.map(timestamp),
            until: self.time.until.map(timestamp),
        }
    }
}

/// Converts the properties by which rows are grouped to the protocol's type; `usual` applies if the
/// user gave none.
fn groups(asked: &[ReportGroup], usual: &[ReportGroup]) -> Vec<i32> {
    let groups = if asked.is_empty() { usual } else { asked };
    groups.iter().map(|group| v1::ReportGroup::from(*group).into()).collect()
}

/// A task as a row of the report.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(super) struct AssignmentRow(#[serde(with = "AssignmentFields")] pub(super) v1::AssignmentRow);

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

pub(super) fn task_tone(row: &v1::AssignmentRow) -> Tone {
    match TaskState::named(&row.state) {
        Some(TaskState::Done) if row.outcome == "truncated" => Tone::Pausing,
        Some(TaskState::Done) => Tone::Good,
        Some(TaskState::Failed) => Tone::Bad,
        _ => Tone::Plain,
    }
}

impl Row for v1::AgentRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("agent", |row, _| row.agent.clone()),
        ("city", |row, _| row.city.clone()),
        (">assigned", |row, _| count_cell(row.assigned)),
        (">complete", |row, _| count_cell(row.complete)),
        (">truncated", |row, _| count_cell(row.truncated)),
        (">failed", |row, _| count_cell(row.failed)),
        (">pages", |row, _| count_cell(row.pages)),
        (">size", |row, _| size_cell(row.bytes)),
        (">rtt ms", |row, _| millis_cell(row.mean_rtt)),
        ("+carrier", |row, _| row.carrier.clone()),
        ("+landmark", |row, _| output::yes_cell(row.landmark)),
        ("+!service", |row, _| service_words(row.service(), "see landfall agents list")),
        ("+>load", |row, _| level_cell(row.load_level)),
    ];

    fn tone(&self) -> Tone {
        service_tone(self.service())
    }
}
