//! `landfall report`: what was done, by task and by agent. Over time: `throughput`.

use clap::Subcommand;
use landfall_proto::v1::{self, AgentsReportRequest};
use serde::Serialize;

use super::ConnectionArgs;
use super::client::Client;
use super::output::{self, Format, FormatArgs, Row, Time, View};
use super::service::Service;
use super::tasks::{self, TasksArgs};
use super::throughput::ThroughputArgs;
use crate::exit::print;
use crate::model::Why;

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
        format: FormatArgs<AgentRow>,
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
                let asked = client.reports().agents(AgentsReportRequest { batch, agent, limit }).await;
                let report = asked.map_err(|status| client.refusal(&status))?.into_inner();
                let rows: Vec<AgentRow> = report.agents.into_iter().map(AgentRow::from).collect();
                output::print_rows(&rows, format, &wide.view())?;
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
    rank: Option<u32>,
    predicted_ms: Option<f64>,
    measured_ms: Option<f64>,
    crawled_ms: Option<f64>,
    assignments: u32,
    outcome: String,
    pages: u32,
    bytes: u64,
    errors: u32,
    started_at: Option<Time>,
    duration_ms: Option<f64>,
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
    reason_kind: String,
    /// What it waits for, why it has its agent, and why not by the batch's strategy: a word each, or empty.
    wait_cause: String,
    cause: String,
    fallback: String,
}

impl From<v1::AssignmentRow> for AssignmentRow {
    fn from(row: v1::AssignmentRow) -> Self {
        let reason_kind = tasks::reason_word(row.reason_kind());
        let why = row.why.and_then(|why| Why::try_from(why).ok());
        let fallback = why.as_ref().and_then(|why| why.fallback.as_ref());
        Self {
            wait_cause: tasks::wait_word(row.wait.as_ref()),
            fallback: fallback.map(|fallback| fallback.cause.name()).unwrap_or_default().to_owned(),
            cause: why.as_ref().map(|why| why.cause.name()).unwrap_or_default().to_owned(),
            reason_kind,
            site: row.site,
            origin: row.origin,
            state: row.state,
            reason: row.reason,
            agent: row.agent,
            city: row.city,
            carrier: row.carrier,
            strategy: row.strategy,
            rank: (row.rank != 0).then_some(row.rank),
            predicted_ms: output::millis(row.predicted.as_ref()),
            measured_ms: output::millis(row.measured.as_ref()),
            crawled_ms: output::millis(row.crawled.as_ref()),
            assignments: row.assignments,
            outcome: row.outcome,
            pages: row.pages,
            bytes: row.bytes,
            errors: row.errors,
            started_at: output::time(row.started_at.as_ref()),
            duration_ms: output::millis(row.duration.as_ref()),
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
    const COLUMNS: &'static [&'static str] = &[
        "site",
        "state",
        "agent",
        ">rtt ms",
        ">pages",
        "~reason",
        "+outcome",
        "+strategy",
        "+>rank",
        "+>predicted ms",
        "+>measured ms",
        "+>probes",
        "+>requests",
        "+>size",
        "+>anycast",
    ];

    fn cells(&self, _: &View) -> Vec<String> {
        // What a crawl came to says more than that it is done.
        let state = if self.state == "done" { &self.outcome } else { &self.state };
        vec![
            self.site.clone(),
            state.clone(),
            output::text_cell(&self.agent),
            output::millis_cell(self.crawled_ms),
            output::count_cell(self.pages),
            output::text_cell(if self.reason.is_empty() { &self.note } else { &self.reason }),
            output::text_cell(&self.outcome),
            output::text_cell(&self.strategy),
            output::text_cell(&self.rank.map(|rank| rank.to_string()).unwrap_or_default()),
            output::millis_cell(self.predicted_ms),
            output::millis_cell(self.measured_ms),
            output::count_cell(self.probes),
            output::count_cell(self.requests),
            output::size_cell(self.bytes),
            output::text_cell(&self.anycast_confidence.map(|sure| format!("{sure:.2}")).unwrap_or_default()),
        ]
    }
}

/// What one agent did, as printed.
#[derive(Debug, Default, Serialize)]
pub(super) struct AgentRow {
    agent: String,
    city: String,
    carrier: String,
    landmark: bool,
    connected: bool,
    service: Service,
    assigned: u64,
    complete: u64,
    truncated: u64,
    failed: u64,
    pages: u64,
    bytes: u64,
    mean_rtt_ms: Option<f64>,
    load_level: Option<i64>,
}

impl From<v1::AgentRow> for AgentRow {
    fn from(row: v1::AgentRow) -> Self {
        Self {
            service: row.service().into(),
            agent: row.agent,
            city: row.city,
            carrier: row.carrier,
            landmark: row.landmark,
            connected: row.connected,
            assigned: row.assigned,
            complete: row.complete,
            truncated: row.truncated,
            failed: row.failed,
            pages: row.pages,
            bytes: row.bytes,
            mean_rtt_ms: output::millis(row.mean_rtt.as_ref()),
            load_level: row.load_level,
        }
    }
}

impl Row for AgentRow {
    const COLUMNS: &'static [&'static str] = &[
        "agent",
        "city",
        ">assigned",
        ">complete",
        ">truncated",
        ">failed",
        ">pages",
        ">size",
        ">rtt ms",
        "+carrier",
        "+landmark",
        "+service",
        "+>load",
    ];

    fn cells(&self, _: &View) -> Vec<String> {
        vec![
            self.agent.clone(),
            self.city.clone(),
            output::count_cell(self.assigned),
            output::count_cell(self.complete),
            output::count_cell(self.truncated),
            output::count_cell(self.failed),
            output::count_cell(self.pages),
            output::size_cell(self.bytes),
            output::millis_cell(self.mean_rtt_ms),
            self.carrier.clone(),
            output::yes_cell(self.landmark),
            self.service.words("see landfall agents list"),
            super::agents::level_cell(self.load_level),
        ]
    }
}
