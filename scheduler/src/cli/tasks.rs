//! Which tasks of a batch are asked for, how they come, and `landfall sites list`.

use clap::Args;
use landfall_proto::json::{self, Word as _};
use landfall_proto::v1::{self, AssignmentsRequest};
use prost_types::Timestamp;
use serde::Serialize;

use super::client::Client;
use super::output::{self, Column, Format, FormatArgs, Printed, Printer, Row, View};
use super::{ConnectionArgs, one_of};
use crate::exit::print;
use crate::model::{ReasonKind, TaskState};

/// Rows that are printed at once; by the first so many a table is laid out.
const PAGE: usize = 500;
/// Rows of a table, unless told otherwise.
const TABLE: u64 = 100;

/// What narrows a list of tasks.
#[derive(Debug, Args)]
pub(super) struct TasksArgs {
    /// The batch
    #[arg(long, value_name = "NAME")]
    batch: String,
    /// Only sites in this state; may be said again
    #[arg(long, value_name = "STATE", value_parser = one_of(TaskState::ALL.iter().copied(), TaskState::name))]
    state: Vec<TaskState>,
    /// Only sites that failed or were cancelled for this reason; may be said again
    #[arg(long, value_name = "KIND", value_parser = one_of(ReasonKind::ALL.iter().copied(), ReasonKind::name))]
    reason: Vec<ReasonKind>,
    /// Only sites for which this agent was chosen last
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
}

impl TasksArgs {
    /// Prints what is asked for as it comes.
    pub(super) async fn print<R: Printed + From<v1::AssignmentRow>>(
        self,
        limit: u64,
        format: Format,
        view: &View,
        connection: &ConnectionArgs,
    ) -> anyhow::Result<()> {
        let request = AssignmentsRequest {
            batch: self.batch,
            states: self.state.into_iter().map(|state| v1::TaskState::from(state).into()).collect(),
            reasons: self.reason.into_iter().map(|kind| v1::ReasonKind::from(kind).into()).collect(),
            agent: self.agent.unwrap_or_default(),
            limit,
        };
        let client = Client::connect(connection).await?;
        let mut stream = client.answer(client.reports().assignments(request).await)?;
        let mut printer = Printer::new(format, view);
        let (mut rows, mut more): (Vec<R>, u64) = (Vec::new(), 0);
        while let Some(row) = stream.message().await.map_err(|status| client.refusal(&status))? {
            more = row.more;
            rows.push(row.into());
            if rows.len() == PAGE {
                print(&printer.page(&rows)?)?;
                rows.clear();
            }
        }
        if !rows.is_empty() {
            print(&printer.page(&rows)?)?;
        }
        match format {
            Format::Table if printer.is_empty() => print("no site of the batch is like that\n"),
            Format::Table => print(&output::more(more)),
            Format::Json | Format::Csv => print(&printer.end()?),
        }
    }
}

/// The flags of `sites list`.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    tasks: TasksArgs,
    /// Sites at most; 0: all [default: 100 in a table, otherwise all]
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    #[command(flatten)]
    format: FormatArgs<SiteRow>,
}

impl ListArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let FormatArgs { format, wide } = self.format;
        let limit = self.limit.unwrap_or(if format == Format::Table { TABLE } else { 0 });
        self.tasks.print::<SiteRow>(limit, format, &wide.view(), connection).await
    }
}

/// A site of a batch, as listed.
#[derive(Debug, Default, Serialize)]
pub(super) struct SiteRow {
    site: String,
    origin: String,
    state: String,
    #[serde(serialize_with = "json::time")]
    state_since: Option<Timestamp>,
    agent: String,
    pages: u32,
    bytes: u64,
    /// The kind of reason for which it failed or was cancelled; empty otherwise.
    #[serde(serialize_with = "json::kind::<v1::ReasonKind, _>")]
    reason_kind: i32,
    reason: String,
    /// What it waits for in a word; empty where it has an agent or has ended.
    #[serde(rename = "wait_cause", serialize_with = "json::wait")]
    wait: Option<v1::Wait>,
    /// The newest of the site in this batch, from 1.
    round: u32,
}

impl From<v1::AssignmentRow> for SiteRow {
    fn from(row: v1::AssignmentRow) -> Self {
        Self {
            site: row.site,
            origin: row.origin,
            state: row.state,
            state_since: row.state_since,
            agent: row.agent,
            pages: row.pages,
            bytes: row.bytes,
            reason_kind: row.reason_kind,
            reason: row.reason,
            wait: row.wait,
            round: row.round,
        }
    }
}

impl Row for SiteRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("site", |row, _| row.site.clone()),
        ("state", |row, _| row.state.clone()),
        ("since", |row, view| view.when(row.state_since)),
        ("agent", |row, _| output::text_cell(&row.agent)),
        (">pages", |row, _| output::count_cell(row.pages)),
        ("~why", |row, _| output::text_cell(&row.reason)),
        ("+kind", |row, _| output::text_cell(v1::ReasonKind::try_from(row.reason_kind).unwrap_or_default().word())),
        ("+>size", |row, _| output::size_cell(row.bytes)),
        ("+>round", |row, _| row.round.to_string()),
    ];
}
