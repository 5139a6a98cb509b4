//! Displays the progress of `crawl` on standard error: on a terminal as one line that is updated,
//! otherwise as a new line every few seconds.

use std::io::IsTerminal as _;
use std::time::{Duration, SystemTime};

use chrono::{DateTime, Utc};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::watch;
use tokio::time::{Instant, interval};

use crate::crawl::CrawlProgress;
use crate::machine::clock;
use crate::warc::Store;

/// Interval between updates of the line on a terminal.
const REDRAW: Duration = Duration::from_millis(250);
/// Interval between new lines if standard error is not a terminal.
const LINE: Duration = Duration::from_secs(10);

/// Shows a crawl's progress until this future is dropped.
pub(super) async fn show(progress: watch::Receiver<CrawlProgress>, store: Option<Store>) {
    let terminal = std::io::stderr().is_terminal();
    let bar = terminal.then(ProgressBar::new_spinner);
    if let (Some(bar), Ok(style)) = (&bar, ProgressStyle::with_template("{spinner} {wide_msg}")) {
        bar.set_style(style);
    }
    let bar = bar.map(ClearOnDrop);
    let began = Instant::now();
    let before = progress.borrow().pages;
    let mut ticks = interval(if terminal { REDRAW } else { LINE });
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let now = *progress.borrow();
        let fetched = f64::from(now.pages.saturating_sub(before));
        let rate = fetched / began.elapsed().as_secs_f64().max(0.001);
        let line = line(&now, rate, store.as_ref().and_then(Store::paused), clock::wall());
        match &bar {
            Some(ClearOnDrop(bar)) => {
                bar.set_message(line);
                bar.tick();
            }
            None => eprintln!("{line}"),
        }
    }
}

/// A progress bar that is cleared when dropped.
struct ClearOnDrop(ProgressBar);

impl Drop for ClearOnDrop {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn line(progress: &CrawlProgress, rate: f64, full: Option<String>, now: SystemTime) -> String {
    let CrawlProgress { pages, bytes, queued, errors, paused_until } = *progress;
    let state = match (full, paused_until.filter(|until| *until > now)) {
        (Some(reason), _) => format!("paused: {reason}"),
        (None, Some(until)) => format!("paused until {}", DateTime::<Utc>::from(until).format("%H:%M:%S UTC")),
        (None, None) => "crawling".to_owned(),
    };
    format!("{pages} pages ({} MiB), {queued} queued, {rate:.1} pages/s, {errors} errors; {state}", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_line_shows_the_cause_of_a_pause() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let progress = CrawlProgress { pages: 7, bytes: 3 << 20, queued: 12, errors: 1, paused_until: Some(at(61)) };
        let counts = "7 pages (3 MiB), 12 queued, 1.5 pages/s, 1 errors;";
        assert_eq!(line(&progress, 1.5, None, at(60)), format!("{counts} paused until 00:01:01 UTC"));
        assert_eq!(line(&progress, 1.5, None, at(61)), format!("{counts} crawling"));
        assert_eq!(line(&progress, 1.5, Some("no room".to_owned()), at(60)), format!("{counts} paused: no room"));
    }
}
