//! Shows the progress of a batch that is followed: as a bar on a terminal, otherwise as one line
//! per change.

use std::io::IsTerminal;

use indicatif::ProgressBar;
use landfall_proto::v1::BatchProgress;

use super::progress_text::{ended, line, total};
use crate::cli::output::number;
use crate::cli::output::progress_bar::Bar;

/// Shows the progress on standard error, so that standard output contains only the summary.
pub(super) enum ProgressDisplay {
    Bar(Bar),
    Lines,
}

impl ProgressDisplay {
    pub(super) fn new() -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines;
        }
        Self::Bar(Bar::new(ProgressBar::new(0), "[{elapsed_precise}] {bar:30} {pos}/{len} {msg}"))
    }

    pub(super) fn show(&self, progress: &BatchProgress, last: Option<&BatchProgress>) {
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
    pub(super) fn say(&self, sentence: &str) {
        match self {
            Self::Bar(bar) => bar.suspend(|| eprintln!("{sentence}")),
            Self::Lines => eprintln!("{sentence}"),
        }
    }
}

fn unestimated(progress: &BatchProgress) -> BatchProgress {
    BatchProgress { estimate: None, ..progress.clone() }
}
