//! Background tasks: each an idempotent function of what is stored, run by period or by signal.
//!
//! A task gets its transactions through its role alone ([`leadership::Leader`]), so that it changes nothing where another scheduler has
//! that role. A failing pass is logged once and the next tick tries again; nothing retries inside a pass. A panicking task ends
//! the process: the supervisor in `run` joins every task and reports which one it was.

pub mod assign;
pub mod fit;
pub mod leadership;
pub mod locate;
pub mod measure;
pub mod prune;
pub mod reap;
pub mod recrawl;
#[cfg(test)]
mod trial;
#[cfg(test)]
mod waiting_costs;

use std::future::Future;
use std::time::Duration;

use rand::TryRng;
use rand::rngs::SysRng;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::wake::Wakes;

use leadership::NotLeader;

/// The least rest between two passes, however often they are asked for. A fleet at work reports dozens of times a
/// second, and every pass looks at everything that is due: one pass answers all of these reports.
const LEAST_REST: Duration = Duration::from_millis(100);

/// How long nothing is signalled before a scheduler counts as quiet.
const QUIET_AFTER: Duration = Duration::from_secs(15);
/// How many times longer a pass's period is then. What only time changes waits as much longer: the end of a pause, a recrawl that is due.
const QUIET_STRETCH: u32 = 5;

/// How often a pass runs without a signal.
#[derive(Debug, Clone, Copy)]
pub enum Period {
    /// Always with this period.
    Steady(Duration),
    /// With a longer period while nothing is signalled, so that an idle scheduler costs next to nothing.
    Relaxed(Duration),
}

impl Period {
    /// The period once nothing was signalled for `quiet`.
    fn after(self, quiet: Duration) -> Duration {
        match self {
            Self::Steady(period) => period,
            Self::Relaxed(period) if quiet < QUIET_AFTER => period,
            Self::Relaxed(period) => period * QUIET_STRETCH,
        }
    }
}

/// Runs `run_once` at once, then whenever `wake` is signalled or `period` has passed, until `shutdown`.
///
/// After a pass it rests for `LEAST_REST`, and for as long as the pass took: a task that has much to look at keeps the
/// database busy for half of the time at most. A signal that comes meanwhile is answered after the rest. The first
/// pass waits a random part of `period / 10`, so that schedulers started together do not work in lockstep.
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
    // Without randomness from the system the phase is merely the same for all.
    let phase = SysRng.try_next_u32().map_or(0.0, |bits| f64::from(bits) / f64::from(u32::MAX) / 10.0);
    let mut next = tokio::time::Instant::now() + period.after(wakes.quiet_for()).mul_f64(phase);
    loop {
        // A signal during the pass or the rest is not lost: it is kept until somebody waits for it.
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = wake.notified() => {}
            () = tokio::time::sleep_until(next) => {}
        }
        let began = tokio::time::Instant::now();
        // One that would wait for a silent database is given up: each is a function of what is stored.
        if let Some(Err(error)) = wakes.database.while_it_answers(run_once()).await
            && !error.is::<NotLeader>()
        {
            tracing::error!(task = name, error = format!("{error:#}"), "a pass failed; the next tick tries again");
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
        // The fourth pass rests now; nothing else would begin a fifth for an hour.
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
