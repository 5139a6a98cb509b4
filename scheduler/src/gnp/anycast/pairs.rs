//! Finds pairs of landmarks whose round trips to a host add up to less than the pair's distance.
//!
//! In a real network, one unusually short round trip from a landmark makes the sums of many of the
//! landmark's pairs too short, so most hosts have a pair whose sum is too short. To limit the
//! effect of one round trip, each landmark counts in only one pair. Pairs are matched greedily, the
//! smallest ratio of sum to distance first. The result is the sum of the absolute logarithms of
//! these ratios.

use crate::model::{AgentId, Rtt};

use crate::gnp::Mesh;
use crate::gnp::distance::round_trip;

/// A pair is counted in [`ShortPairs::far_below`] if the sum of its two round trips to the host is
/// below this share of the pair's distance.
const FAR_BELOW: f64 = 0.8;
/// Milliseconds added to the sum of a pair's two round trips and to the pair's distance, so that
/// errors of a millisecond are not taken as evidence if two landmarks are in one building.
const SOFTENING_MS: f64 = 2.0;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ShortPairs {
    /// The total of `ln(distance / sum)` over the matched pairs of landmarks, where `sum` is the sum
    /// of the two landmarks' round trips to the site. Only pairs whose sum is below their distance
    /// are matched, so no term is negative.
    pub(super) total: f64,
    pub(super) far_below: usize,
    /// The pair with the smallest ratio of sum to distance: its landmarks, the sum of their round
    /// trips, and their distance.
    pub(super) shortest: Option<((AgentId, AgentId), Rtt, Rtt)>,
}

/// Matches the landmarks that measured a host into pairs.
pub(super) fn short(mesh: &Mesh, measured: &[(AgentId, Rtt)]) -> ShortPairs {
    let mut pairs: Vec<(f64, AgentId, AgentId, f64, Rtt)> = Vec::new();
    for (i, &(a, to_a)) in measured.iter().enumerate() {
        for &(b, to_b) in &measured[..i] {
            let Some(apart) = mesh.distance(a, b) else { continue };
            let sum = to_a.as_millis_f64() + to_b.as_millis_f64();
            let ratio = ((sum + SOFTENING_MS) / (apart.as_millis_f64() + SOFTENING_MS)).ln();
            if ratio < 0.0 {
                pairs.push((ratio, a.min(b), a.max(b), sum, apart));
            }
        }
    }
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let mut used: Vec<AgentId> = Vec::new();
    let mut short = ShortPairs { total: 0.0, far_below: 0, shortest: None };
    for (ratio, a, b, sum, apart) in pairs {
        if used.contains(&a) || used.contains(&b) {
            continue;
        }
        used.extend([a, b]);
        short.total -= ratio;
        short.far_below += usize::from(sum < FAR_BELOW * apart.as_millis_f64());
        short.shortest.get_or_insert(((a, b), round_trip(sum), apart));
    }
    short
}
