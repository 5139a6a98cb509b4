//! The mesh: the round trips that agents measured to each other. Computes the distance between two
//! coordinates, and converts distances to round trips.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{AgentId, Rtt};

/// Measured round trips from agent to agent. A pair may be measured in both directions, in one,
/// or not at all.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mesh {
    rows: BTreeMap<AgentId, BTreeMap<AgentId, Rtt>>,
}

impl Mesh {
    pub fn new() -> Self {
        Self::default()
    }

    /// Records the round trip that `prober` measured to `target`, and replaces an earlier one.
    /// Ignores a round trip from an agent to itself.
    pub fn insert(&mut self, prober: AgentId, target: AgentId, rtt: Rtt) {
        if prober != target {
            self.rows.entry(prober).or_default().insert(target, rtt);
        }
    }

    pub fn measured(&self, prober: AgentId, target: AgentId) -> Option<Rtt> {
        self.rows.get(&prober)?.get(&target).copied()
    }

    /// The distance of a pair: the geometric mean of the measurements in the two directions, or the
    /// measurement in the only measured direction.
    pub fn distance(&self, a: AgentId, b: AgentId) -> Option<Rtt> {
        match (self.measured(a, b), self.measured(b, a)) {
            (Some(there), Some(back)) => Some(round_trip((there.as_millis_f64() * back.as_millis_f64()).sqrt())),
            (one, other) => one.or(other),
        }
    }

    /// All agents that measured another agent or were measured by one.
    pub fn agents(&self) -> BTreeSet<AgentId> {
        let targets = self.rows.values().flat_map(BTreeMap::keys);
        self.rows.keys().chain(targets).copied().collect()
    }

    /// The number of agents that measured this agent; 0 if its beacon cannot be reached.
    pub fn reached_by(&self, target: AgentId) -> usize {
        self.rows.values().filter(|row| row.contains_key(&target)).count()
    }

    /// Returns a copy without the measurements that `probers` made. Other agents' measurements of
    /// `probers` stay.
    pub fn without_reports_of(&self, probers: &BTreeSet<AgentId>) -> Self {
        let rows = self.rows.iter().filter(|(prober, _)| !probers.contains(prober));
        Self { rows: rows.map(|(&prober, row)| (prober, row.clone())).collect() }
    }

    /// Returns the measurements between these agents.
    pub fn among(&self, agents: &BTreeSet<AgentId>) -> Self {
        let kept = |row: &BTreeMap<AgentId, Rtt>| -> BTreeMap<AgentId, Rtt> {
            row.iter().filter(|(target, _)| agents.contains(target)).map(|(&target, &rtt)| (target, rtt)).collect()
        };
        let rows = self.rows.iter().filter(|(prober, _)| agents.contains(prober));
        Self { rows: rows.map(|(&prober, row)| (prober, kept(row))).collect() }
    }

    /// The number of measurements. The two directions of a pair are two measurements.
    pub fn len(&self) -> usize {
        self.rows.values().map(BTreeMap::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// The distance between two coordinates in milliseconds: `|x - y| + height(x) + height(y)`.
/// Absolute values of the heights are used, because the simplex may make a height negative.
pub(super) fn distance(a: &[f64], b: &[f64]) -> f64 {
    let dimensions = a.len().min(b.len()).saturating_sub(1);
    let square: f64 = a.iter().zip(b).take(dimensions).map(|(p, q)| (p - q) * (p - q)).sum();
    square.sqrt() + a[dimensions].abs() + b[dimensions].abs()
}

/// Predicts the round trip between two coordinates of one embedding, in milliseconds. Both
/// coordinates must have the same number of components. Unlike
/// [`Embedding::predict`](crate::gnp::Embedding::predict), this function checks nothing, because hot
/// paths call it.
pub(crate) fn predicted_ms(a: &[f64], b: &[f64]) -> f64 {
    held(distance(a, b))
}

/// Converts milliseconds to a round trip, clamped to the range from one microsecond to
/// [`Rtt::MAX`].
pub(super) fn round_trip(millis: f64) -> Rtt {
    Rtt::try_from_millis_f64(held(millis)).expect("clamped into the range of a round trip")
}

/// Clamps milliseconds to the range of a round trip.
fn held(millis: f64) -> f64 {
    let longest = Rtt::MAX.as_secs_f64() * 1e3;
    if millis.is_nan() { longest } else { millis.clamp(1e-3, longest) }
}

#[cfg(test)]
mod tests {
    use crate::gnp::fixture::{agent, rtt as ms};

    use super::*;

    #[test]
    fn a_pair_measured_both_ways_has_the_geometric_mean() {
        let (a, b, c) = (agent(1), agent(2), agent(3));
        let mut mesh = Mesh::new();
        mesh.insert(a, b, ms(10.0));
        mesh.insert(b, a, ms(40.0));
        mesh.insert(c, a, ms(7.0));
        mesh.insert(a, a, ms(1.0));
        assert_eq!(mesh.distance(a, b), Some(ms(20.0)));
        assert_eq!(mesh.distance(b, a), Some(ms(20.0)));
        assert_eq!(mesh.distance(a, c), Some(ms(7.0)));
        assert_eq!(mesh.distance(b, c), None);
        assert_eq!(mesh.len(), 3);
        assert_eq!(mesh.agents().len(), 3);
        assert_eq!(mesh.reached_by(a), 2);
        assert_eq!(mesh.reached_by(c), 0);
    }

    #[test]
    fn distance_adds_both_heights_to_the_straight_line() {
        assert_eq!(distance(&[0.0, 0.0, 1.0], &[3.0, 4.0, 2.0]), 8.0);
        assert_eq!(distance(&[0.0, 0.0, -1.0], &[3.0, 4.0, 2.0]), 8.0);
    }
}
