//! `landfall batches list|cancel|remove`: lists the batches, cancels every site of a batch that has
//! not ended, and removes a batch.

use clap::Args;
use landfall_proto::json::Word as _;
use landfall_proto::v1::{
    Batch, BatchState, CancelTasksRequest, ListBatchesRequest, ListBatchesResponse, RemoveBatchRequest,
};

use crate::app::exit::{self, print};
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::filters::{TimeArgs, one_of, timestamp};
use crate::cli::output::progress_bar::Bar;
use crate::cli::output::{self, Column, FormatArgs, Row, View, counted};
use crate::cli::pages::pages;
use crate::cli::sites::cancel_retry_and_circuits::cancel;
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
            state: state.unwrap_or(BatchState::Unspecified).into(),
            since: time.since.map(timestamp),
            until: time.until.map(timestamp),
            ..ListBatchesRequest::default()
        };
        let ask = async |client: &Client| batches(client, &request, limit).await;
        let text = |listed: &ListBatchesResponse, view: &View| format.text(&listed.batches, none, listed.more, view);
        watch.print(connection, &format, ask, text).await
    }
}

/// At most `limit` batches; 0 means all.
pub(in crate::cli) async fn batches(
    client: &Client,
    request: &ListBatchesRequest,
    limit: u64,
) -> anyhow::Result<ListBatchesResponse> {
    pages(limit, async |limit, page_token| {
        let request = ListBatchesRequest { limit, page_token, ..*request };
        client.answer(client.sites().list_batches(request).await)
    })
    .await
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

#[derive(Debug, Args)]
pub(in crate::cli) struct CancelArgs {
    /// The batch
    #[arg(value_name = "NAME")]
    batch: String,
}

impl CancelArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        cancel(CancelTasksRequest { batch: self.batch, sites: Vec::new(), all: true }, connection).await
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall report assignments --batch autumn -o csv > autumn.csv && landfall batches remove autumn
  landfall batches remove mistake --cancel

It removes a thousand sites at a time so that other work continues. If the command is interrupted, the removal goes on; run the
command again to follow it. Until it ends, nothing can be submitted to the batch. Sites whose circuit this batch opened can be
crawled by other batches again.")]
pub(in crate::cli) struct RemoveArgs {
    /// The batch
    #[arg(value_name = "NAME")]
    batch: String,
    /// Cancel sites that have not ended; without this flag a batch with such sites is not removed
    #[arg(long)]
    cancel: bool,
}

impl RemoveArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { batch, cancel } = self;
        let client = Client::connect(connection).await?;
        let mut stream =
            client.answer(client.sites().remove_batch(RemoveBatchRequest { batch: batch.clone(), cancel }).await)?;
        let mut bar = None;
        let removal = async {
            loop {
                let broke = |why| anyhow::anyhow!("{why}; run the same command again to follow the removal");
                let progress = match stream.message().await {
                    Ok(Some(progress)) => progress,
                    Ok(None) => return Err(broke("the scheduler ended the stream".to_owned())),
                    Err(status) => return Err(broke(client.refusal(&status).to_string())),
                };
                bar.get_or_insert_with(|| Bar::counted(progress.tasks, "sites")).set_position(progress.removed);
                if progress.done {
                    return Ok(progress.removed);
                }
            }
        };
        let goes_on = || "the removal goes on: run the same command again to follow it".to_owned();
        let removed = exit::unless_interrupted(removal, goes_on).await?;
        drop(bar);
        print(&format!("batch {batch} and its {} are removed; its sites stay known\n", counted(removed, "task")))
    }
}
