//! Runs one session after another until the agent stops: decides when, after which delay and with
//! which scheduler the agent tries again, and which errors are final.
//!
//! The delay doubles with each attempt, from a floor up to a ceiling. The actual delay is random,
//! from half of the computed delay to the whole delay, so that agents that were disconnected at the
//! same time do not reconnect at the same time.

use std::time::Duration;

use rand::{Rng, RngExt};
use tokio_util::sync::CancellationToken;

use super::active_session::ActiveSession;
use super::known_schedulers::Schedulers;
use super::opening::{AgentReplaced, SessionConfig, SessionEnd, connect};
use super::permits_and_events::WorkEvent;
use super::work::Work;
use crate::machine::clock::BootTime;
use crate::metrics::METRICS;

/// Runs sessions until the agent is stopped. Fails if another machine was enrolled under the same
/// name, because no later attempt could succeed then.
pub async fn run(
    config: &SessionConfig,
    mut work: Work,
    stop: &CancellationToken,
    rng: &mut impl Rng,
) -> Result<(), AgentReplaced> {
    let mut backoff = Backoff::of_sessions();
    let mut failures: u32 = 0;
    let mut yields = false;
    let mut schedulers = config.schedulers.clone();
    loop {
        let mut welcomed = false;
        let ended = one_session(config, &mut schedulers, &mut work, stop, rng, yields, &mut welcomed).await;
        METRICS.session_ended(ended.failure());
        work.deadline.silence().session_ended();
        work.abandon_orders();
        // After any error, move on to the next scheduler, or stay if there is only one.
        schedulers.move_on();
        if welcomed {
            backoff.reset();
            (failures, yields) = (0, false);
        }
        match &ended {
            SessionEnd::Stopped => return Ok(()),
            SessionEnd::Replaced(replaced) => {
                work.give_up();
                return Err(replaced.clone());
            }
            SessionEnd::Refused(_) => tracing::error!(error = %ended, "session not opened; trying again"),
            SessionEnd::Superseded(_) => {
                yields = true;
                // The other process that runs as this agent will start these crawls again, so this
                // process must not report their leases as held.
                work.give_up();
                tracing::error!(error = %ended, "another process runs as this agent");
            }
            _ if failures == 0 => tracing::warn!(error = %ended, "session ended; trying again"),
            _ => tracing::debug!(error = %ended, failures, "session not opened; trying again"),
        }
        failures = failures.saturating_add(1);
        // Only the operator can fix these two errors, so retry slowly.
        let unhurried = matches!(ended, SessionEnd::Refused(_) | SessionEnd::Superseded(_));
        let wait = if unhurried { UNHURRIED } else { backoff.wait(rng) };
        // The events during this wait need not be reported. Outcomes are in the outbox, and the
        // next session does not report the leases of crawls that ended without an outcome.
        if meanwhile(&mut work, stop, &mut Vec::new(), tokio::time::sleep(wait)).await.is_none() {
            return Ok(());
        }
    }
}

/// Awaits a future while the work continues. Returns `None` if the agent must stop. Crawls that end
/// without an outcome meanwhile are added to `ended`.
pub(super) async fn meanwhile<T>(
    work: &mut Work,
    stop: &CancellationToken,
    ended: &mut Vec<WorkEvent>,
    future: impl Future<Output = T>,
) -> Option<T> {
    let mut future = std::pin::pin!(future);
    loop {
        tokio::select! {
            output = &mut future => return Some(output),
            () = stop.cancelled() => return None,
            event = work.next() => ended.extend(Some(event).filter(|event| event.ends().is_some())),
        }
    }
}

async fn one_session(
    config: &SessionConfig,
    schedulers: &mut Schedulers,
    work: &mut Work,
    stop: &CancellationToken,
    rng: &mut impl Rng,
    yields: bool,
    welcomed: &mut bool,
) -> SessionEnd {
    let registered = BootTime::now();
    let mut meanwhile_ended = Vec::new();
    let connecting = connect(config, schedulers.current(), work.held(), yields);
    let (inbound, outbound, welcome) = match meanwhile(work, stop, &mut meanwhile_ended, connecting).await {
        None => return SessionEnd::Stopped,
        Some(Err(ended)) => return ended,
        Some(Ok(opened)) => opened,
    };
    *welcomed = true;
    let (name, incarnation) = (&config.register.name, welcome.incarnation);
    tracing::info!(agent.name = name, incarnation, "connected to the scheduler");
    schedulers.learn(&welcome.other_scheduler_urls);
    let mut serving = ActiveSession::new(outbound, &welcome, registered, work, rng);
    serving.report_ended(meanwhile_ended, &welcome);
    match serving.serve(inbound, work, stop, rng).await {
        Ok(inbound) => serving.drain(inbound, work, rng).await,
        Err(ended) => ended,
    }
}

/// The first delay between two attempts to connect, before it is randomly shortened by up to half.
const RECONNECT_FLOOR: Duration = Duration::from_millis(250);
/// Maximum delay between two attempts to connect. All agents reconnect to a restarted scheduler
/// within this time, so that it can grant leases within ten seconds. At this delay (3.75 s on
/// average), a thousand disconnected agents make 270 attempts a second.
const RECONNECT_CEILING: Duration = Duration::from_secs(5);
/// The delay after an error that only the operator can fix. The delay is short in tests.
const UNHURRIED: Duration = if cfg!(test) { Duration::from_millis(300) } else { Duration::from_secs(15) };

#[derive(Debug, Clone)]
pub struct Backoff {
    floor: Duration,
    ceiling: Duration,
    next: Duration,
}

impl Backoff {
    /// The delays of an agent that connects to its schedulers.
    pub const fn of_sessions() -> Self {
        Self::new(RECONNECT_FLOOR, RECONNECT_CEILING)
    }

    /// `floor` must be above zero, and at most `ceiling`.
    const fn new(floor: Duration, ceiling: Duration) -> Self {
        Self { floor, ceiling, next: floor }
    }

    /// Returns the delay before the next attempt, and doubles the delay for the attempt after that.
    pub fn wait(&mut self, rng: &mut impl Rng) -> Duration {
        let whole = self.next;
        self.next = whole.saturating_mul(2).min(self.ceiling);
        whole.mul_f64(rng.random_range(0.5..=1.0))
    }

    /// Resets the delay to the floor. Call it after a success.
    pub const fn reset(&mut self) {
        self.next = self.floor;
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::ChaCha8Rng;

    use super::*;

    #[test]
    fn waits_double_to_the_ceiling_and_restart_after_a_reset() {
        let second = Duration::from_secs(1);
        let mut backoff = Backoff::new(second, 8 * second);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for whole in [1, 2, 4, 8, 8, 8] {
            let wait = backoff.wait(&mut rng);
            assert!(wait >= whole * second / 2 && wait <= whole * second, "{wait:?} of {whole} s");
        }
        backoff.reset();
        assert!(backoff.wait(&mut rng) <= second);
    }
}
