//! Which tasks of a batch are asked for, how they come, and `landfall sites list`.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use landfall_proto::v1::{self, AssignmentsRequest};
use serde::Serialize;

use super::ConnectionArgs;
use super::client::Client;
use super::output::{self, Format, FormatArgs, Printer, Row, Time, View};
use crate::exit::print;
use crate::model::{ReasonKind, TaskState, WaitCause};

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
    #[arg(long, value_name = "STATE", value_parser = states())]
    state: Vec<TaskState>,
    /// Only sites that failed or were cancelled for this reason; may be said again
    #[arg(long, value_name = "KIND", value_parser = reasons())]
    reason: Vec<ReasonKind>,
    /// Only sites for which this agent was chosen last
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
}

fn states() -> impl TypedValueParser<Value = TaskState> {
    let words = PossibleValuesParser::new(TaskState::ALL.iter().map(|state| state.name()));
    words.map(|word| TaskState::named(&word).expect("a possible value"))
}

fn reasons() -> impl TypedValueParser<Value = ReasonKind> {
    let words = PossibleValuesParser::new(ReasonKind::ALL.iter().map(|kind| kind.name()));
    words.map(|word| ReasonKind::named(&word).expect("a possible value"))
}

impl TasksArgs {
    /// Prints what is asked for as it comes.
    pub(super) async fn print<R: Row + From<v1::AssignmentRow>>(
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
        let asked = client.reports().assignments(request).await;
        let mut stream = asked.map_err(|status| client.refusal(&status))?.into_inner();
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
    state_since: Option<Time>,
    agent: String,
    pages: u32,
    bytes: u64,
    /// The kind of reason for which it failed or was cancelled; empty otherwise.
    reason_kind: String,
    reason: String,
    /// What it waits for in a word; empty where it has an agent or has ended.
    wait_cause: String,
    /// The newest of the site in this batch, from 1.
    round: u32,
}

impl From<v1::AssignmentRow> for SiteRow {
    fn from(row: v1::AssignmentRow) -> Self {
        Self {
            reason_kind: reason_word(row.reason_kind()),
            state_since: output::time(row.state_since.as_ref()),
            site: row.site,
            origin: row.origin,
            state: row.state,
            agent: row.agent,
            pages: row.pages,
            bytes: row.bytes,
            wait_cause: wait_word(row.wait.as_ref()),
            reason: row.reason,
            round: row.round,
        }
    }
}

/// The word for a kind of reason; empty where there is none.
pub(super) fn reason_word(kind: v1::ReasonKind) -> String {
    ReasonKind::try_from(kind).map(ReasonKind::name).unwrap_or_default().to_owned()
}

/// The word for what a task waits for; empty where it waits for nothing.
pub(super) fn wait_word(wait: Option<&v1::Wait>) -> String {
    wait.and_then(|wait| WaitCause::try_from(wait.cause()).ok()).map(WaitCause::name).unwrap_or_default().to_owned()
}

impl Row for SiteRow {
    const COLUMNS: &'static [&'static str] =
        &["site", "state", "since", "agent", ">pages", "~why", "+kind", "+>size", "+>round"];

    fn cells(&self, view: &View) -> Vec<String> {
        vec![
            self.site.clone(),
            self.state.clone(),
            view.when(self.state_since),
            output::text_cell(&self.agent),
            output::count_cell(self.pages),
            output::text_cell(&self.reason),
            output::text_cell(&self.reason_kind),
            output::size_cell(self.bytes),
            self.round.to_string(),
        ]
    }
}
