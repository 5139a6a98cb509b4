//! Finds pairs of landmarks whose round trips to a host are too short for light, if the host has one
//! location.

use crate::model::geo::{Position, great_circle_km, least_round_trip};
use crate::model::{AgentId, Rtt};

use super::evidence::AnycastEvidence;

/// The confidence that a host has several locations if a pair of landmarks is too fast for light.
const CONFIDENCE: f64 = 1.0;

/// Compares the sum of two landmarks' round trips to the host with the time that light needs for a
/// round trip between the landmarks. Returns the confidence, and the evidence of the pair of
/// landmarks whose sum is farthest below the time that light needs; `None` if no pair's sum is too
/// short.
pub(super) fn evidence(placed: &[(AgentId, Rtt, Position)]) -> Option<(f64, AnycastEvidence)> {
    let pairs = placed.iter().enumerate().flat_map(|(i, a)| placed[..i].iter().map(move |b| (b, a)));
    let short = pairs.filter_map(|(&(a, to_a, at), &(b, to_b, bt))| {
        let sum = to_a.as_duration() + to_b.as_duration();
        let least = least_round_trip(at, bt);
        let sum_rtt = Rtt::try_new(sum).ok()?;
        let evidence = AnycastEvidence::Light {
            pair: (a, b),
            sum: sum_rtt,
            way_km: great_circle_km(at, bt),
            least_ms: least.as_secs_f64() * 1e3,
        };
        (sum < least).then(|| (least.saturating_sub(sum), evidence))
    });
    short.max_by_key(|(short, _)| *short).map(|(_, evidence)| (CONFIDENCE, evidence))
}
