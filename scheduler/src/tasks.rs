//! Background tasks: each an idempotent function of what is stored, run by period or by signal.
//!
//! A failing pass is logged once and the next tick tries again; nothing retries inside a pass. A panicking task ends
//! the process: the supervisor in `run` joins every task and reports which one it was.

pub mod fit;
mod fleet;
pub mod locate;
pub mod measure;
#[cfg(test)]
mod trial;

use std::future::Future;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
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
    let phase = ChaCha8Rng::from_os_rng_or_zero().random_range(0.0..0.1);
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

/// A generator for phases and jitter, which need no replay.
trait FromOs {
    fn from_os_rng_or_zero() -> Self;
}

impl FromOs for ChaCha8Rng {
    fn from_os_rng_or_zero() -> Self {
        let mut seed = [0_u8; 32];
        // Without randomness from the system the phase is merely the same for all.
        if let Ok(mut source) = std::fs::File::open("/dev/urandom") {
            let read = std::io::Read::read_exact(&mut source, &mut seed);
            if read.is_err() {
                seed = [0; 32];
            }
        }
        Self::from_seed(seed)
    }
}
