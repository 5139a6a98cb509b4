//! Follows the change of a whole batch, which goes on if the command is interrupted.

use std::time::Duration;

use landfall_proto::v1::{BatchChange, WatchChangeRequest};
use tonic::Status;

use crate::app::exit;
use crate::cli::connection::{self, Client};
use crate::cli::output::progress_bar::Bar;

/// Maximum number of consecutive attempts to follow a change again after the stream broke, if no
/// attempt receives a message.
const FOLLOWED_AGAIN_AT_MOST: u32 = 20;
/// The pause before another attempt.
const PAUSE: Duration = Duration::from_secs(2);

/// Follows the unfinished change of a whole batch to its end, and shows how far it is. The change
/// goes on if the command is interrupted.
pub(in crate::cli) async fn to_end(client: &Client, batch: &str, begun: BatchChange) -> anyhow::Result<BatchChange> {
    let shown = format!("`landfall batches show {batch}` shows how far it is");
    exit::unless_interrupted(follow(client, batch, begun), || format!("the change of the batch goes on: {shown}")).await
}

async fn follow(client: &Client, batch: &str, begun: BatchChange) -> anyhow::Result<BatchChange> {
    let mut client = client.clone();
    let bar = Bar::counted(begun.sites, "sites");
    bar.set_position(begun.read);
    let mut attempts = 0;
    loop {
        let request = WatchChangeRequest { batch: batch.to_owned() };
        let followed = async {
            let mut stream = client.sites().watch_change(request).await?.into_inner();
            while let Some(change) = stream.message().await? {
                attempts = 0;
                bar.set_position(change.read);
                if change.finished {
                    return Ok(change);
                }
            }
            Err(Status::unavailable("the scheduler ended the stream before the change was finished"))
        };
        let status = match followed.await {
            Ok(change) => return Ok(change),
            Err(status) => status,
        };
        if attempts == FOLLOWED_AGAIN_AT_MOST || !connection::broke(&status) {
            return Err(client.refusal(&status));
        }
        attempts += 1;
        tokio::time::sleep(PAUSE).await;
        client.move_on().await;
    }
}
