//! Follows a batch to its end, and prints a summary.
//!
//! A broken stream is opened again, at another scheduler if there are several, because the batch
//! continues while a scheduler restarts.

use std::pin::pin;
use std::time::Duration;

use landfall_proto::json::moment;
use landfall_proto::v1::{BatchProgress, WatchBatchRequest};
use tonic::Status;

use super::progress_display::ProgressDisplay;
use super::progress_text::{ended, states, total};
use crate::app::exit::{self, print};
use crate::cli::connection::{self, Client};
use crate::cli::output::{counted, relative};
use crate::machine::clock::now;

/// Maximum number of consecutive attempts to open a broken stream again, if no attempt receives a
/// message.
const REOPENED_AT_MOST: u32 = 20;
/// The pause before a broken stream is opened again.
const REOPEN_PAUSE: Duration = Duration::from_secs(2);
/// Time without an answer after which the command prints that it is waiting.
const SILENCE: Duration = Duration::from_secs(2);

/// Follows a batch until the newest round of every site has ended. Recrawls that begin later are
/// not awaited.
pub(in crate::cli) async fn to_end(
    client: &Client,
    batch: &str,
    last: &mut Option<BatchProgress>,
) -> anyhow::Result<()> {
    let mut client = client.clone();
    let display = ProgressDisplay::new();
    let mut reopened = 0;
    loop {
        let status = match follow(&client, batch, &display, last, &mut reopened).await {
            Ok(()) => break,
            Err(status) => status,
        };
        if reopened == REOPENED_AT_MOST || !connection::broke(&status) {
            return Err(client.refusal(&status));
        }
        if reopened == 0 {
            display.say(&format!("{}; retrying every {REOPEN_PAUSE:?}", client.refusal(&status)));
        }
        reopened += 1;
        tokio::time::sleep(REOPEN_PAUSE).await;
        client.move_on().await;
    }
    Ok(())
}

/// Prints the results of batches; returns an error if sites failed.
pub(in crate::cli) fn tell(ended: &[(String, BatchProgress)]) -> anyhow::Result<()> {
    for (batch, progress) in ended {
        print(&summary(full_name(batch, progress), progress))?;
    }
    let failed: Vec<(&str, u64)> = ended
        .iter()
        .map(|(batch, progress)| (full_name(batch, progress), progress.failed))
        .filter(|(_, sites)| *sites > 0)
        .collect();
    let Some((first, _)) = failed.first() else { return Ok(()) };
    let counts: Vec<String> =
        failed.iter().map(|(batch, sites)| format!("{} of batch {batch}", counted(*sites, "site"))).collect();
    Err(exit::ended(
        exit::Code::SitesFailed,
        format!("{} failed: `landfall batches show {first}` says why", counts.join(", ")),
    ))
}

/// The batch's full name, from the scheduler, because the user may have typed only a prefix.
fn full_name<'a>(given: &'a str, progress: &'a BatchProgress) -> &'a str {
    if progress.batch.is_empty() { given } else { &progress.batch }
}

/// Reads one stream until it ends or breaks, and shows the progress.
async fn follow(
    client: &Client,
    batch: &str,
    display: &ProgressDisplay,
    last: &mut Option<BatchProgress>,
    reopened: &mut u32,
) -> Result<(), Status> {
    let mut sites = client.sites();
    let mut opening = pin!(sites.watch_batch(WatchBatchRequest { batch: batch.to_owned() }));
    let opened = match tokio::time::timeout(SILENCE, &mut opening).await {
        Ok(opened) => opened,
        Err(_) => {
            display.say(&format!(
                "no answer yet from the scheduler at {}: it or its database is busy or unavailable",
                client.url()
            ));
            opening.await
        }
    };
    let mut stream = opened?.into_inner();
    while let Some(progress) = stream.message().await? {
        *reopened = 0;
        display.show(&progress, last.as_ref());
        *last = Some(progress);
    }
    // When a scheduler stops, the stream may end without an error although the batch has not ended.
    match last {
        Some(progress) if ended(progress) == total(progress) => Ok(()),
        _ => Err(Status::unavailable("the scheduler ended the stream before the batch was done")),
    }
}

fn summary(batch: &str, progress: &BatchProgress) -> String {
    let mut summary = format!("batch {batch}: {}\n", states(progress));
    if let Some(next) = moment(progress.next_recrawl) {
        summary.push_str(&format!("the next recrawl is due {}\n", relative(next, now())));
    }
    summary
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_counts_truncated_apart() {
        let progress = BatchProgress { complete: 200, truncated: 2, failed: 1, ..BatchProgress::default() };
        assert_eq!(summary("autumn", &progress), "batch autumn: 200 complete, 2 truncated, 1 failed\n");
    }
}
