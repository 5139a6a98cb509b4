//! `landfall batches list`: lists the batches.

use clap::Args;
use landfall_proto::json::Word as _;
use landfall_proto::v1::{Batch, BatchState, ListBatchesRequest, ListBatchesResponse};

use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::filters::{TimeArgs, one_of, timestamp};
use crate::cli::output::{self, Column, FormatArgs, Row, View};
use crate::cli::watch_flag::WatchFlag;

/// Which batches are listed: those that meet every flag.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  landfall batches list --state open --since 2026-11-01")]
pub(in crate::cli) struct ListArgs {
    /// Only batches in this state: open until every site has ended, then ended
    #[arg(long, value_name = "STATE", value_parser = one_of([BatchState::Open, BatchState::Ended], BatchState::word))]
    state: Option<BatchState>,
    #[command(flatten)]
    time: TimeArgs,
    /// Maximum number of batches; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    limit: u64,
    #[command(flatten)]
    format: FormatArgs<Batch>,
    #[command(flatten)]
    watch: WatchFlag,
}

impl ListArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { state, time, limit, format, watch } = self;
        let none = match (state, time.are_unset()) {
            (None, true) => "no batches yet: landfall sites submit FILE --batch NAME\n",
            _ => "no batch matches\n",
        };
        let request = ListBatchesRequest {
            limit,
            state: state.unwrap_or(BatchState::Unspecified).into(),
            since: time.since.map(timestamp),
            until: time.until.map(timestamp),
        };
        let ask = async |client: &Client| client.answer(client.sites().list_batches(request).await);
        let text = |listed: &ListBatchesResponse, view: &View| format.text(&listed.batches, none, listed.more, view);
        watch.print(connection, &format, ask, text).await
    }
}

impl Row for Batch {
    const COLUMNS: &'static [Column<Self>] = &[
        ("name", |row, _| row.name.clone()),
        ("strategy", |row, _| row.strategy.clone()),
        (">open", |row, _| output::count_cell(row.open)),
        (">done", |row, _| output::count_cell(row.done)),
        (">failed", |row, _| output::count_cell(row.failed)),
        (">cancelled", |row, _| output::count_cell(row.cancelled)),
        ("created", |row, view| view.when(row.created_at)),
    ];
}
