//! `landfall batches cancel`: cancels every site of a batch that has not ended.

use clap::Args;
use landfall_proto::v1::CancelTasksRequest;

use crate::cli::ConnectionArgs;
use crate::cli::sites::cancel::cancel;

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
