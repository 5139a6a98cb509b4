//! Runs a job periodically and on signals. A quiet scheduler runs its jobs less often. A failed
//! pass is logged once, and the next pass tries again; there are no retries inside a pass.

use std::future::Future;
use std::time::Duration;

use rand::TryRng;
use rand::rngs::SysRng;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::leadership::NotLeader;
use crate::store;
use crate::wake::Wakes;

/// The minimum rest between two passes. Busy agents report dozens of times a second. Because of the
/// rest, one pass handles all reports that arrived since the last pass.
const LEAST_REST: Duration = Duration::from_millis(100);

/// Time without a signal after which a scheduler counts as quiet.
const QUIET_AFTER: Duration = Duration::from_secs(15);
/// A quiet scheduler multiplies the period of a pass by this factor. A change that sends no signal,
/// such as the end of a site's pause, is noticed up to this many periods late.
const QUIET_STRETCH: u32 = 5;

/// The time after which a pass runs even without a signal.
#[derive(Debug, Clone, Copy)]
pub enum Period {
    /// The same period at all times.
    Steady(Duration),
    /// A longer period while the scheduler is quiet, so that an idle scheduler uses almost no
    /// processor time.
    Relaxed(Duration),
}

impl Period {
    /// The period to use. `quiet` is the time since the last signal.
    fn after(self, quiet: Duration) -> Duration {
        match self {
            Self::Steady(period) => period,
            Self::Relaxed(period) if quiet < QUIET_AFTER => period,
            Self::Relaxed(period) => period * QUIET_STRETCH,
        }
    }
}

/// Runs `run_once` soon after the start, then whenever `wake` is signalled or `period` has passed,
/// until `shutdown`.
///
/// After each pass, the job rests for as long as the pass took, but at least for `LEAST_REST`, so
/// that a job with much work occupies the database at most half of the time. A signal that comes
/// during the rest is handled after the rest. The first pass waits a random part of `period / 10`,
/// so that schedulers started together do not run their passes at the same time.
pub async fn run_periodic<F, Fut>(
    name: &'static str,
    period: Period,
    wake: &Notify,
    wakes: &Wakes,
    shutdown: CancellationToken,
    mut run_once: F,
) where
    F: FnMut() -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    // If the system provides no random number, the first pass begins at once, which is harmless.
    let phase = SysRng.try_next_u32().map_or(0.0, |bits| f64::from(bits) / f64::from(u32::MAX) / 10.0);
    let mut next = tokio::time::Instant::now() + period.after(wakes.quiet_for()).mul_f64(phase);
    loop {
        // `Notify` keeps a signal that arrives while the job runs a pass or rests.
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = wake.notified() => {}
            () = tokio::time::sleep_until(next) => {}
        }
        let began = tokio::time::Instant::now();
        // A pass that would wait for an unresponsive database, or could store nothing, is dropped.
        // Nothing is lost, because the next pass starts from the stored state.
        if let Some(Err(error)) = wakes.database.while_it_accepts_changes(run_once()).await
            && !error.is::<NotLeader>()
        {
            let passes = error.chain().any(|cause| cause.downcast_ref().is_some_and(store::Error::passes));
            let error = format!("{error:#}");
            if passes {
                tracing::warn!(task = name, error, "a background job was interrupted by the database; it is retried");
            } else {
                tracing::error!(task = name, error, "a background job failed; it is retried");
            }
        }
        let period = period.after(wakes.quiet_for());
        let rest = began.elapsed().max(LEAST_REST).min(period);
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(rest) => {}
        }
        next = tokio::time::Instant::now() + (period - rest);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::watch;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_flood_of_signals_is_answered_by_few_passes_and_the_last_is_not_lost() {
        let (wake, stop, (passed, mut passes)) = (Arc::new(Notify::new()), CancellationToken::new(), watch::channel(0));
        let (woken, stopped) = (Arc::clone(&wake), stop.clone());
        let running = tokio::spawn(async move {
            let pass = || async {
                passed.send_modify(|passes| *passes += 1);
                Ok(())
            };
            let period = Period::Steady(Duration::from_secs(3600));
            run_periodic("test", period, &woken, &Wakes::default(), stopped, pass).await;
        });
        let began = Instant::now();
        while *passes.borrow() < 4 {
            wake.notify_one();
            tokio::task::yield_now().await;
        }
        assert!(began.elapsed() >= 3 * LEAST_REST, "four passes within {:?}", began.elapsed());
        // The job now rests after its fourth pass. Without the signal below, the fifth pass would
        // not begin for an hour.
        wake.notify_one();
        let fifth = tokio::time::timeout(Duration::from_secs(20), passes.wait_for(|passes| *passes == 5)).await;
        fifth.expect("the signal was answered").expect("the task runs");
        stop.cancel();
        running.await.expect("no panic");
    }

    #[test]
    fn passes_come_less_often_while_nothing_is_signalled() {
        let second = Duration::from_secs(1);
        let (relaxed, steady) = (Period::Relaxed(second), Period::Steady(second));
        assert_eq!([relaxed, steady].map(|period| period.after(QUIET_AFTER - second)), [second, second]);
        assert_eq!([relaxed, steady].map(|period| period.after(QUIET_AFTER)), [second * QUIET_STRETCH, second]);
    }
}
