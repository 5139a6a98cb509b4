//! `landfall batches wait`: follows batches to their end or until a time limit, shows and describes
//! their progress meanwhile, and prints a summary.

use std::io::IsTerminal;
use std::pin::pin;
use std::time::Duration;

use clap::Args;
use humantime::{format_duration, parse_duration};
use indicatif::ProgressBar;
use landfall_proto::json::moment;
use landfall_proto::v1::{BatchProgress, Estimate, WatchBatchRequest};
use tonic::Status;

use crate::app::exit::{self, Code, print};
use crate::cli::ConnectionArgs;
use crate::cli::connection::{self, Client};
use crate::cli::output::progress_bar::Bar;
use crate::cli::output::{counted, fetched, number, relative};
use crate::machine::clock::now;

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  landfall batches wait autumn winter --timeout 30m && landfall report agents --batch autumn"
)]
pub(in crate::cli) struct WaitArgs {
    /// The batches
    #[arg(value_name = "NAME", required = true)]
    batches: Vec<String>,
    /// Time limit, 1s or more, such as 30m or 2h [default: none]
    #[arg(long, value_name = "TIME", value_parser = timeout)]
    timeout: Option<Duration>,
}

fn timeout(text: &str) -> Result<Duration, String> {
    let parsed = parse_duration(text).map_err(|error| error.to_string())?;
    if parsed < Duration::from_secs(1) { Err("must be 1s or more".to_owned()) } else { Ok(parsed) }
}

impl WaitArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        exit::unless_interrupted(self.wait(connection), || "the batches continue".to_owned()).await
    }

    async fn wait(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let mut waiting = None;
        let waited = async {
            let client = Client::connect(connection).await?;
            let mut over = Vec::new();
            for batch in &self.batches {
                let (_, last) = waiting.insert((batch.as_str(), None));
                to_end(&client, batch, last).await?;
                over.push((batch.clone(), last.take().unwrap_or_default()));
            }
            tell(&over)
        };
        let Some(timeout) = self.timeout else { return waited.await };
        if let Ok(waited) = tokio::time::timeout(timeout, waited).await {
            return waited;
        }
        let left = match &waiting {
            Some((batch, Some(progress))) => {
                let open = total(progress).saturating_sub(ended(progress));
                format!("{open} of {} sites of batch {batch} have not ended", total(progress))
            }
            Some((batch, None)) => format!("the scheduler has not reported on batch {batch}"),
            None => "no scheduler answered".to_owned(),
        };
        Err(exit::ended(Code::TimedOut, format!("{left} after {}", format_duration(timeout))))
    }
}

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

/// Shows the progress on standard error, so that standard output contains only the summary.
enum ProgressDisplay {
    Bar(Bar),
    Lines,
}

impl ProgressDisplay {
    fn new() -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines;
        }
        Self::Bar(Bar::new(ProgressBar::new(0), "[{elapsed_precise}] {bar:30} {pos}/{len} {msg}"))
    }

    fn show(&self, progress: &BatchProgress, last: Option<&BatchProgress>) {
        match self {
            Self::Bar(bar) => {
                bar.set_length(total(progress));
                bar.set_position(ended(progress));
                bar.set_message(line(progress));
            }
            // No line is printed if only the estimate changed, because the estimate changes
            // with every message.
            Self::Lines if last.map(unestimated) == Some(unestimated(progress)) => {}
            Self::Lines => eprintln!("{}/{} {}", number(ended(progress)), number(total(progress)), line(progress)),
        }
    }

    /// Prints a message without disturbing the progress bar.
    fn say(&self, sentence: &str) {
        match self {
            Self::Bar(bar) => bar.suspend(|| eprintln!("{sentence}")),
            Self::Lines => eprintln!("{sentence}"),
        }
    }
}

fn unestimated(progress: &BatchProgress) -> BatchProgress {
    BatchProgress { estimate: None, ..progress.clone() }
}

pub(in crate::cli) fn ended(progress: &BatchProgress) -> u64 {
    progress.complete + progress.truncated + progress.failed + progress.cancelled
}

pub(in crate::cli) fn total(progress: &BatchProgress) -> u64 {
    let BatchProgress { submitted, measuring, located, assigned, leased, .. } = progress;
    submitted + measuring + located + assigned + leased + ended(progress)
}

/// Describes the number of tasks in each state, and the estimated remaining time.
pub(super) fn line(progress: &BatchProgress) -> String {
    let left = progress.estimate.as_ref().map(left).filter(|left| !left.is_empty());
    left.map_or(states(progress), |left| format!("{}; {left}", states(progress)))
}

/// Describes the estimated remaining time of a batch, or why there is no estimate.
pub(in crate::cli) fn left(estimate: &Estimate) -> String {
    let time = estimate.left.and_then(|left| Duration::try_from(left).ok());
    let about = time.map(|time| format!("about {} left for {}", rough(time), counted(estimate.sites, "site")));
    let parts: Vec<String> =
        about.into_iter().chain((!estimate.note.is_empty()).then(|| estimate.note.clone())).collect();
    parts.join("; ")
}

/// The estimated remaining time as a cell of a table, or why there is no estimate.
pub(crate) fn left_cell(estimate: &Estimate) -> String {
    let time = estimate.left.and_then(|left| Duration::try_from(left).ok());
    time.map_or_else(|| estimate.note.clone(), |time| format!("about {}", rough(time)))
}

/// Rounds a duration up: to seconds, above an hour to minutes, above a day to hours.
fn rough(time: Duration) -> String {
    let unit = match time.as_secs() {
        0..3_600 => 1,
        3_600..86_400 => 60,
        _ => 3_600,
    };
    let units = time.as_secs().div_ceil(unit).max(1);
    humantime::format_duration(Duration::from_secs(units.saturating_mul(unit))).to_string()
}

/// Lists the states that have tasks, with the number of tasks in each state.
pub(in crate::cli) fn states(progress: &BatchProgress) -> String {
    let named = [
        ("submitted", progress.submitted),
        ("measuring", progress.measuring),
        ("located", progress.located),
        ("assigned", progress.assigned),
        ("leased", progress.leased),
        ("complete", progress.complete),
        ("truncated", progress.truncated),
        ("failed", progress.failed),
        ("cancelled", progress.cancelled),
    ];
    let mut parts: Vec<String> = named
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{} {name}", number(*count)))
        .collect();
    if parts.is_empty() {
        parts.push("no site".to_owned());
    }
    let states = parts.join(", ") + &fetched(progress.pages, progress.bytes);
    if progress.waiting_for.is_empty() { states } else { format!("{states}; {}", progress.waiting_for) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_counts_truncated_apart() {
        let progress = BatchProgress { complete: 200, truncated: 2, failed: 1, ..BatchProgress::default() };
        assert_eq!(summary("autumn", &progress), "batch autumn: 200 complete, 2 truncated, 1 failed\n");
    }

    #[test]
    fn a_line_says_what_holds_anything_and_what_is_waited_for() {
        let progress = BatchProgress {
            measuring: 3,
            complete: 1,
            truncated: 1,
            pages: 12,
            bytes: 3_400,
            waiting_for: "no agent is connected".to_owned(),
            ..BatchProgress::default()
        };
        assert_eq!((ended(&progress), total(&progress)), (2, 5));
        assert_eq!(states(&progress), "3 measuring, 1 complete, 1 truncated, 12 pages, 3.4 kB; no agent is connected");
    }

    #[test]
    fn what_is_left_is_said_roughly_and_with_what_is_not_in_it() {
        let estimate = |seconds, note: &str| Estimate {
            left: Some(prost_types::Duration { seconds, nanos: 1 }),
            sites: 20,
            note: note.to_owned(),
            ..Estimate::default()
        };
        assert_eq!(left(&estimate(0, "")), "about 1s left for 20 sites");
        assert_eq!(left(&estimate(130, "so; and so")), "about 2m 10s left for 20 sites; so; and so");
        assert_eq!(left(&estimate(2 * 86_400 + 61, "")), "about 2days 1h left for 20 sites");
        let none = Estimate { note: "no estimate yet: no site has ended".to_owned(), ..Estimate::default() };
        let progress = BatchProgress { leased: 1, estimate: Some(none), ..BatchProgress::default() };
        assert_eq!(line(&progress), "1 leased; no estimate yet: no site has ended");
    }
}
