//! `landfall batches remove`: a batch and all that hangs on it, a step at a time.

use clap::Args;
use landfall_proto::v1::RemoveBatchRequest;

use super::ConnectionArgs;
use super::client::Client;
use super::output::counted;
use crate::exit::print;

/// Of so many tasks it is told how far it is.
const TOLD_EVERY: u64 = 20_000;

#[derive(Debug, Args)]
pub(super) struct RemoveArgs {
    /// The batch
    #[arg(value_name = "NAME")]
    batch: String,
    /// Cancel what has not ended; without this a batch that is under way is refused
    #[arg(long)]
    cancel: bool,
}

impl RemoveArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { batch, cancel } = self;
        let client = Client::connect(connection).await?;
        let mut stream =
            client.answer(client.sites().remove_batch(RemoveBatchRequest { batch: batch.clone(), cancel }).await)?;
        let mut told = 0;
        loop {
            let broke = |why| anyhow::anyhow!("{why}; the same command goes on with it");
            let progress = match stream.message().await {
                Ok(Some(progress)) => progress,
                Ok(None) => return Err(broke("the scheduler ended the stream".to_owned())),
                Err(status) => return Err(broke(client.refusal(&status).to_string())),
            };
            if progress.done {
                let tasks = counted(progress.removed, "task");
                return print(&format!("batch {batch} is removed, {tasks} with it; its sites stay known\n"));
            }
            if progress.removed >= told + TOLD_EVERY {
                told = progress.removed;
                eprintln!("{told}/{} tasks removed", progress.tasks);
            }
        }
    }
}
