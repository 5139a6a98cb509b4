//! Shows the progress of `lab demo`: one line per stage, with a moving bar if the output is a
//! terminal.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use sqlx::PgPool;

use crate::evidence::figures::float;

/// Time between two updates of a bar.
const DRAWN_EVERY: Duration = Duration::from_millis(250);
const WIDTH: usize = 24;

/// Measures and prints the time of each stage of a run.
#[derive(Debug)]
pub(super) struct Stages {
    began: Instant,
    stage: Instant,
    moving: bool,
}

impl Stages {
    pub(super) fn begin() -> Self {
        let now = Instant::now();
        Self { began: now, stage: now, moving: std::io::stdout().is_terminal() }
    }

    /// The time since the first stage began.
    pub(super) fn took(&self) -> Duration {
        self.began.elapsed()
    }

    /// Prints the time of the current stage `what`, and begins the next stage.
    pub(super) fn done(&mut self, what: &str) {
        let seconds = self.stage.elapsed().as_secs_f64();
        let erase = if self.moving { "\r\x1b[K" } else { "" };
        println!("{erase}{} {seconds:6.1} s", line(what, 1.0));
        self.stage = Instant::now();
    }

    /// Runs the work of a stage. Meanwhile the function draws a bar whose length is the result of
    /// `query` as a fraction of `all`.
    pub(super) async fn follow<T>(
        &mut self,
        what: &str,
        (pool, query, all): (PgPool, &'static str, usize),
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let mut work = std::pin::pin!(work);
        let mut tick = tokio::time::interval(DRAWN_EVERY);
        let ended = loop {
            tokio::select! {
                ended = &mut work => break ended,
                _ = tick.tick(), if self.moving => {
                    // If the database does not answer, the bar shows 0.
                    let asked = sqlx::query_scalar::<_, i64>(query).fetch_one(&pool).await;
                    draw(what, asked.ok().and_then(|count| usize::try_from(count).ok()).unwrap_or(0), all);
                }
            }
        }?;
        self.done(what);
        Ok(ended)
    }
}

fn draw(what: &str, count: usize, all: usize) {
    let share = float(count) / float(all.max(1));
    print!("\r\x1b[K{} {count} of {all}", line(what, share.min(1.0)));
    // An error is ignored, because a missing bar does no harm.
    drop(std::io::stdout().flush());
}

/// A stage's name and its bar, of which the fraction `share` is full.
fn line(what: &str, share: f64) -> String {
    let full = (1..=WIDTH).filter(|part| float(*part) <= share * float(WIDTH)).count();
    format!("  {what:<44} [{}{}]", "#".repeat(full), ".".repeat(WIDTH - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_full_as_the_stage_has_come() {
        assert!(line("crawling", 0.0).ends_with(&format!("[{}]", ".".repeat(WIDTH))));
        assert!(line("crawling", 0.5).ends_with(&format!("[{}{}]", "#".repeat(WIDTH / 2), ".".repeat(WIDTH / 2))));
        assert!(line("crawling", 1.0).ends_with(&format!("[{}]", "#".repeat(WIDTH))));
    }
}
