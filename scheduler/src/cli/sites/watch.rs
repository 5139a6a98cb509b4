//! `landfall sites watch`: follows a batch to its end, and reports failed sites.

use clap::Args;

use crate::app::exit;
use crate::cli::ConnectionArgs;
use crate::cli::batches::follow::{tell, to_end};
use crate::cli::connection::Client;

#[derive(Debug, Args)]
pub(in crate::cli) struct WatchArgs {
    /// The batch
    #[arg(long, value_name = "NAME")]
    batch: String,
}

impl WatchArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        watch(&Client::connect(connection).await?, &self.batch).await
    }
}

/// Follows a batch to its end, and reports failed sites.
pub(super) async fn watch(client: &Client, batch: &str) -> anyhow::Result<()> {
    let mut last = None;
    let goes_on = || format!("the batch continues: `landfall sites watch --batch {batch}` follows it");
    exit::unless_interrupted(to_end(client, batch, &mut last), goes_on).await?;
    tell(&[(batch.to_owned(), last.unwrap_or_default())])
}
