//! `landfall batches remove`: removes a batch, and prints how many of its tasks are removed.

use clap::Args;
use landfall_proto::v1::RemoveBatchRequest;

use crate::app::exit::print;
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::output::counted;

/// Number of removed tasks between two lines of progress.
const TOLD_EVERY: u64 = 20_000;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall report assignments --batch autumn -o csv > autumn.csv && landfall batches remove autumn
  landfall batches remove mistake --cancel

It removes a thousand sites at a time so that other work continues. If it is interrupted, run it again to continue; until it
ends, nothing can be submitted to the batch. Sites whose circuit this batch opened can be crawled by other batches again.")]
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
        let mut told = 0;
        loop {
            let broke = |why| anyhow::anyhow!("{why}; run the same command again to continue");
            let progress = match stream.message().await {
                Ok(Some(progress)) => progress,
                Ok(None) => return Err(broke("the scheduler ended the stream".to_owned())),
                Err(status) => return Err(broke(client.refusal(&status).to_string())),
            };
            if progress.done {
                let tasks = counted(progress.removed, "task");
                return print(&format!("batch {batch} and its {tasks} are removed; its sites stay known\n"));
            }
            if progress.removed >= told + TOLD_EVERY {
                told = progress.removed;
                eprintln!("{told}/{} tasks removed", progress.tasks);
            }
        }
    }
}
