//! Computes the times at which parts of a body arrive, by simulating TCP Reno in rounds of one
//! round trip each.
//!
//! The first window is ten segments. In slow start, the window doubles in each round. A loss halves
//! the window and ends slow start. After slow start, the window grows by one segment per round. The
//! maximum window is the number of segments that the link can transmit in one round trip. A lost
//! segment is sent again in the next round. [`crate::world::response_delays`] adds the round trips
//! of the handshake and the request.

use std::time::Duration;

use rand::{Rng, RngExt};

/// Size of a full segment in bytes.
pub const SEGMENT: usize = 1460;
const INITIAL_WINDOW: usize = 10;
/// Minimum window after a loss, in segments.
const LEAST_WINDOW: usize = 2;

#[derive(Debug, Clone, Copy)]
pub struct Path {
    pub rtt: Duration,
    /// The probability that a packet is lost, 0 to 1.
    pub loss: f64,
    pub bytes_per_s: f64,
}

/// The number of bytes that arrive in each round. The bytes of the first round arrive together with
/// the header of the response.
pub fn rounds(body: usize, path: Path, rng: &mut impl Rng) -> Vec<usize> {
    let most = (whole(path.bytes_per_s * path.rtt.as_secs_f64()) / SEGMENT).max(LEAST_WINDOW);
    let mut window = INITIAL_WINDOW.min(most);
    let mut slow_start_until = usize::MAX;
    let mut left = body;
    let mut arrivals = Vec::new();
    while left > 0 {
        let sent = left.min(window * SEGMENT);
        let segments = sent.div_ceil(SEGMENT);
        let lost = (0..segments).filter(|_| path.loss > 0.0 && rng.random_bool(path.loss)).count();
        let arrived = sent - (lost * SEGMENT).min(sent);
        arrivals.push(arrived);
        left -= arrived;
        if lost > 0 {
            window = (window / 2).max(LEAST_WINDOW);
            slow_start_until = window;
        } else if window < slow_start_until {
            window = (window * 2).min(most);
        } else {
            window = (window + 1).min(most);
        }
    }
    arrivals
}

/// Rounds a non-negative float down to an integer. Large values saturate.
fn whole(bytes: f64) -> usize {
    let micros = Duration::try_from_secs_f64(bytes / 1e6).map_or(u128::from(u32::MAX), |scaled| scaled.as_micros());
    usize::try_from(micros).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::ChaCha8Rng;

    fn path(rtt_ms: u64, loss: f64) -> Path {
        Path { rtt: Duration::from_millis(rtt_ms), loss, bytes_per_s: 2.5e6 }
    }

    fn count(body: usize, path: Path) -> usize {
        rounds(body, path, &mut ChaCha8Rng::seed_from_u64(1)).len()
    }

    #[test]
    fn without_loss_the_window_doubles_until_the_rate_holds_it() {
        let arrivals = rounds(100_000, path(100, 0.0), &mut ChaCha8Rng::seed_from_u64(1));
        assert_eq!(arrivals, [14_600, 29_200, 56_200]);
        // At 2.5 MB/s, a link transmits 171 whole segments in a round of 100 ms.
        let arrivals = rounds(2_000_000, path(100, 0.0), &mut ChaCha8Rng::seed_from_u64(1));
        assert_eq!(arrivals[3], 80 * SEGMENT);
        assert!(arrivals.iter().all(|round| *round <= 171 * SEGMENT), "{arrivals:?}");
    }

    #[test]
    fn a_small_page_comes_in_one_round_and_nothing_in_none() {
        assert_eq!(count(12_000, path(50, 0.0)), 1);
        assert_eq!(count(0, path(50, 0.0)), 0);
    }

    #[test]
    fn loss_costs_rounds_and_every_byte_still_arrives() {
        let lossy = rounds(2_000_000, path(100, 0.01), &mut ChaCha8Rng::seed_from_u64(3));
        assert_eq!(lossy.iter().sum::<usize>(), 2_000_000);
        assert!(lossy.len() > 2 * count(2_000_000, path(100, 0.0)), "{} rounds", lossy.len());
    }

    #[test]
    fn on_a_short_path_the_rate_is_the_limit() {
        // At 2.5 MB/s, a link transmits 3 segments in a round of 2 ms.
        assert_eq!(count(43_800, path(2, 0.0)), 10);
    }
}
