//! Background tasks: each an idempotent function of what is stored, run by period or by signal.
//!
//! A failing pass is logged once and the next tick tries again; nothing retries inside a pass. A panicking task ends
//! the process: the supervisor in `run` joins every task and reports which one it was.

pub mod assign;
pub mod fit;
mod fleet;
pub mod locate;
pub mod measure;
pub mod reap;
#[cfg(test)]
mod trial;

use std::future::Future;
use std::time::Duration;

use rand::TryRng;
use rand::rngs::SysRng;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Runs `run_once` at once, then whenever `wake` is signalled or `period` has passed, until `shutdown`.
///
/// The first pass waits a random part of `period / 10`, so that schedulers started together do not work in lockstep.
pub async fn run_periodic<F, Fut>(
    name: &'static str,
    period: Duration,
    wake: &Notify,
    shutdown: CancellationToken,
    mut run_once: F,
) where
    F: FnMut() -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    // Without randomness from the system the phase is merely the same for all.
    let phase = SysRng.try_next_u32().map_or(0.0, |bits| f64::from(bits) / f64::from(u32::MAX) / 10.0);
    let mut next = tokio::time::Instant::now() + period.mul_f64(phase);
    loop {
        // Registered before the pass, so that a signal during the pass is not lost.
        let woken = wake.notified();
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = woken => {}
            () = tokio::time::sleep_until(next) => {}
        }
        if let Err(error) = run_once().await {
            tracing::error!(task = name, error = format!("{error:#}"), "a pass failed; the next tick tries again");
        }
        next = tokio::time::Instant::now() + period;
    }
}
