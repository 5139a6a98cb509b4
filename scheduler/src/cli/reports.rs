//! `landfall report`: what was done, by task and by agent. Over time: `throughput`.

use clap::Subcommand;
use landfall_proto::json::{self, Word as _};
use landfall_proto::v1::{self, AgentsReportRequest, ReasonKind, Wait};
use prost_types::{Duration, Timestamp};
use serde::Serialize;

use super::ConnectionArgs;
use super::agents::level_cell;
use super::client::Client;
use super::output::{self, Column, Format, FormatArgs, Row, count_cell, millis_cell, size_cell, text_cell};
use super::service;
use super::tasks::TasksArgs;
use super::throughput::ThroughputArgs;
use crate::exit::print;

#[derive(Debug, Subcommand)]
pub(super) enum ReportCommand {
    /// Which agent crawled each site of a batch, and why that one
    #[command(after_help = "\
Examples:
  landfall report assignments --batch autumn --format csv > autumn.csv
  landfall report assignments --batch autumn --state failed --reason timed-out")]
    Assignments {
        #[command(flatten)]
        tasks: TasksArgs,
        /// Rows at most; 0: all
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
        /// Agents at most; 0: all
        #[arg(long, value_name = "N", default_value_t = 0)]
        limit: u64,
        #[command(flatten)]
        format: FormatArgs<v1::AgentRow>,
    },
    /// How a batch grows, by agent and by strategy, and how long it will still take
    Throughput(ThroughputArgs),
}

impl ReportCommand {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        match self {
            Self::Throughput(args) => args.run(connection).await,
            Self::Assignments { tasks, limit, format: FormatArgs { format, wide } } => {
                tasks.print::<AssignmentRow>(limit, format, &wide.view(), connection).await
            }
            Self::Agents { batch, agent, limit, format: FormatArgs { format, wide } } => {
                let client = Client::connect(connection).await?;
                let (batch, agent) = (batch.unwrap_or_default(), agent.unwrap_or_default());
                let report =
                    client.answer(client.reports().agents(AgentsReportRequest { batch, agent, limit }).await)?;
                output::print_rows(&report.agents, format, &wide.view())?;
                if format == Format::Table { print(&output::more(report.more)) } else { Ok(()) }
            }
        }
    }
}

/// One task, as printed.
#[derive(Debug, Default, Serialize)]
pub(super) struct AssignmentRow {
    site: String,
    origin: String,
    state: String,
    reason: String,
    agent: String,
    city: String,
    carrier: String,
    strategy: String,
    /// By distance, from 1; none when unknown.
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
    /// 0 to 1: how sure it is that the site stands in several places; none when it is not suspected.
    anycast_confidence: Option<f64>,
    /// Of the site, by everybody who measured it.
    probes: u64,
    confirming_probes: u64,
    /// Sent to the site to measure it, over all measurements.
    requests: u64,
    /// The newest of the site in this batch, from 1.
    round: u32,
    /// The kind of reason for which it failed or was cancelled; empty otherwise.
    #[serde(serialize_with = "json::kind::<ReasonKind, _>")]
    reason_kind: i32,
    /// What it waits for, why it has its agent, and why not by the batch's strategy: a word each, or empty.
    #[serde(rename = "wait_cause", serialize_with = "json::wait")]
    wait: Option<Wait>,
    cause: &'static str,
    fallback: &'static str,
}

impl From<v1::AssignmentRow> for AssignmentRow {
    fn from(row: v1::AssignmentRow) -> Self {
        let why = row.why.unwrap_or_default();
        Self {
            wait: row.wait,
            fallback: why.fallback().word(),
            cause: why.cause().word(),
            reason_kind: row.reason_kind,
            site: row.site,
            origin: row.origin,
            state: row.state,
            reason: row.reason,
            agent: row.agent,
            city: row.city,
            carrier: row.carrier,
            strategy: row.strategy,
            rank: row.rank,
            predicted: row.predicted,
            measured: row.measured,
            crawled: row.crawled,
            assignments: row.assignments,
            outcome: row.outcome,
            pages: row.pages,
            bytes: row.bytes,
            errors: row.errors,
            started_at: row.started_at,
            duration: row.duration,
            note: row.note,
            anycast_confidence: row.anycast_confidence,
            probes: row.probes,
            confirming_probes: row.confirming_probes,
            requests: row.requests,
            round: row.round,
        }
    }
}

impl Row for AssignmentRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("site", |row, _| row.site.clone()),
        // What a crawl came to says more than that it is done.
        ("state", |row, _| (if row.state == "done" { &row.outcome } else { &row.state }).clone()),
        ("agent", |row, _| text_cell(&row.agent)),
        (">rtt ms", |row, _| millis_cell(row.crawled)),
        (">pages", |row, _| count_cell(row.pages)),
        ("~reason", |row, _| text_cell(if row.reason.is_empty() { &row.note } else { &row.reason })),
        ("+outcome", |row, _| text_cell(&row.outcome)),
        ("+strategy", |row, _| text_cell(&row.strategy)),
        ("+>rank", |row, _| count_cell(row.rank)),
        ("+>predicted ms", |row, _| millis_cell(row.predicted)),
        ("+>measured ms", |row, _| millis_cell(row.measured)),
        ("+>probes", |row, _| count_cell(row.probes)),
        ("+>requests", |row, _| count_cell(row.requests)),
        ("+>size", |row, _| size_cell(row.bytes)),
        ("+>anycast", |row, _| output::float_cell(row.anycast_confidence, 2)),
    ];
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
        ("+service", |row, _| service::words(row.service(), "see landfall agents list")),
        ("+>load", |row, _| level_cell(row.load_level)),
    ];
}
