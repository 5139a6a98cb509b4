//! The same objective as the plain tier's, written down as one first would, around argmin: the measure of what the
//! scheduler's own solvers gained.

use std::collections::BTreeMap;

use anyhow::Context;
use argmin::core::{CostFunction, Executor};
use argmin::solver::neldermead::NelderMead;
use landfall_scheduler::gnp::Embedding;
use landfall_scheduler::model::AgentId;
use nalgebra::DVector;

use super::Measured;

/// The map, as a person would hold it.
pub(super) struct Problem {
    agents: BTreeMap<AgentId, DVector<f64>>,
    /// The median distance between agents, milliseconds.
    scale: f64,
}

struct Host<'a> {
    problem: &'a Problem,
    measured: &'a Measured,
}

impl Problem {
    pub(super) fn new(map: &Embedding) -> anyhow::Result<Self> {
        let agents: BTreeMap<AgentId, DVector<f64>> =
            map.agents().iter().map(|(&id, agent)| (id, DVector::from_column_slice(&agent.coordinate))).collect();
        let mut distances = Vec::new();
        for a in map.agents().values() {
            for b in map.agents().values().filter(|b| b.coordinate != a.coordinate) {
                distances.push(map.predict(a, b)?.as_millis_f64());
            }
        }
        distances.sort_by(f64::total_cmp);
        let scale = distances.get(distances.len() / 2).copied().context("a map of two agents")?;
        Ok(Self { agents, scale })
    }

    /// The cost of a host's place, from a start at the agent that measured the least.
    pub(super) fn place(&self, measured: &Measured) -> anyhow::Result<f64> {
        let (nearest, _) = measured.iter().min_by_key(|(_, rtt)| *rtt).context("a measured host")?;
        let start = self.agents.get(nearest).context("a placed landmark")?.clone();
        let mut corners = vec![start.clone()];
        for axis in 0..start.len() {
            let mut corner = start.clone();
            corner[axis] += 0.1 * self.scale;
            corners.push(corner);
        }
        let host = Host { problem: self, measured };
        let tolerance = 6e-4 * host.cost(&start)?;
        let solver = NelderMead::new(corners).with_sd_tolerance(tolerance)?;
        let result = Executor::new(host, solver).configure(|state| state.max_iters(400)).run()?;
        Ok(result.state.best_cost)
    }
}

impl CostFunction for Host<'_> {
    type Param = DVector<f64>;
    type Output = f64;

    fn cost(&self, point: &DVector<f64>) -> Result<f64, argmin::core::Error> {
        let dimensions = point.len() - 1;
        let line = |other: &DVector<f64>| (point.rows(0, dimensions) - other.rows(0, dimensions)).norm();
        let soft = 0.005 * self.problem.scale;
        let mut cost = 0.0;
        for (agent, rtt) in self.measured {
            let agent = &self.problem.agents[agent];
            let computed = line(agent) + point[dimensions].abs() + agent[dimensions];
            let size = ((computed + soft) / (rtt.as_millis_f64() + soft)).ln().abs();
            cost += if size <= 0.1 { size * size } else { 0.1 * (2.0 * size - 0.1) };
        }
        let nearest = self.problem.agents.values().map(line).fold(f64::INFINITY, f64::min);
        let reach = 0.1 * self.problem.scale;
        Ok(cost + 0.005 * (nearest * nearest / (reach * reach)).ln_1p())
    }
}
