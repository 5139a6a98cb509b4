//! Holds the measured distances between the agents of a fit.

use crate::gnp::Mesh;
use crate::gnp::distance::distance;
use crate::gnp::locate::with_switches::Descent;
use crate::gnp::objective::{Anchor, relative_error, root_mean, softening};
use crate::model::{AgentId, Rtt};

use super::error::FitError;
use super::shortest_chains;

/// The agents that a chain of measurements connects to the landmarks, landmarks first, and their
/// distances in milliseconds.
#[derive(Debug)]
pub(in crate::gnp) struct Measured {
    pub(in crate::gnp) agents: Vec<AgentId>,
    /// For each agent, the indices of the agents whose distance to it was measured, and these
    /// distances.
    pub(in crate::gnp) rows: Vec<Vec<(usize, f64)>>,
    /// For measured pairs, the measured distance. For other pairs, the length of the shortest chain
    /// of measurements.
    pub(in crate::gnp) filled: Vec<Vec<f64>>,
}

impl Measured {
    pub(in crate::gnp) fn joined(mesh: &Mesh, landmarks: &[AgentId]) -> Result<Self, FitError> {
        for &landmark in landmarks {
            if !landmarks.iter().any(|&other| other != landmark && mesh.distance(landmark, other).is_some()) {
                return Err(FitError::UnmeasuredLandmark { landmark });
            }
        }
        let others = mesh.agents().into_iter().filter(|agent| !landmarks.contains(agent));
        let everyone: Vec<AgentId> = landmarks.iter().copied().chain(others).collect();
        let all = Self::of(everyone, |a, b| mesh.distance(a, b).map(Rtt::as_millis_f64));
        let joined: Vec<usize> = (0..all.agents.len()).filter(|&i| all.filled[0][i].is_finite()).collect();
        if let Some(&landmark) = landmarks.iter().find(|landmark| !joined.iter().any(|&i| all.agents[i] == **landmark))
        {
            return Err(FitError::Disconnected { landmark, first: landmarks[0] });
        }
        let agents = joined.iter().map(|&i| all.agents[i]).collect();
        Ok(Self::of(agents, |a, b| mesh.distance(a, b).map(Rtt::as_millis_f64)))
    }

    fn of(agents: Vec<AgentId>, measured: impl Fn(AgentId, AgentId) -> Option<f64>) -> Self {
        let row = |&a: &AgentId| -> Vec<(usize, f64)> {
            agents.iter().enumerate().filter_map(|(j, &b)| Some((j, measured(a, b)?))).collect()
        };
        let rows: Vec<_> = agents.iter().map(row).collect();
        let filled = shortest_chains::fill(&rows);
        Self { agents, rows, filled }
    }

    pub(super) fn first(&self, count: usize) -> Self {
        let cut = |row: &Vec<(usize, f64)>| row.iter().copied().filter(|&(j, _)| j < count).collect();
        Self {
            agents: self.agents[..count].to_vec(),
            rows: self.rows[..count].iter().map(cut).collect(),
            filled: self.filled[..count].iter().map(|row| row[..count].to_vec()).collect(),
        }
    }

    /// The scale: the median measured distance in milliseconds; 1 if nothing was measured. Step
    /// lengths and the random shifts of starting points are given as shares of the scale.
    pub(in crate::gnp) fn scale(&self) -> f64 {
        let mut all: Vec<f64> = self.rows.iter().flatten().map(|&(_, measured)| measured).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(1.0)
    }

    pub(super) fn anchors<'a>(&self, agent: usize, points: &'a [Vec<f64>]) -> Vec<Anchor<'a>> {
        self.rows[agent].iter().map(|&(j, measured)| Anchor { coordinate: &points[j], measured }).collect()
    }

    /// Keeps only the agents whose indices satisfy `wanted`.
    pub(super) fn only(&self, wanted: impl Fn(usize) -> bool) -> Self {
        let kept: Vec<usize> = (0..self.agents.len()).filter(|&i| wanted(i)).collect();
        let renumbered = |j: usize| kept.binary_search(&j).ok();
        let row = |i: &usize| self.rows[*i].iter().filter_map(|&(j, d)| Some((renumbered(j)?, d))).collect();
        let filled = |i: &usize| kept.iter().map(|&j| self.filled[*i][j]).collect();
        Self {
            agents: kept.iter().map(|&i| self.agents[i]).collect(),
            rows: kept.iter().map(row).collect(),
            filled: kept.iter().map(filled).collect(),
        }
    }

    pub(super) fn cost(&self, points: &[Vec<f64>], descent: Descent) -> f64 {
        let softening = softening(descent.scale);
        (0..points.len()).map(|i| descent.loss.of(&points[i], &self.anchors(i, points), softening)).sum()
    }

    pub(super) fn rms_relative_error(&self, points: &[Vec<f64>]) -> f64 {
        root_mean(self.rows.iter().enumerate().flat_map(|(i, row)| {
            row.iter().map(move |&(j, measured)| relative_error(distance(&points[i], &points[j]), measured).powi(2))
        }))
    }
}
