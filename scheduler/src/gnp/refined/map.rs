//! Defines the refined map of one epoch.

use std::collections::BTreeMap;

use crate::gnp::RefinedSwitches;
use crate::model::AgentId;

use super::cloud::Cloud;
use super::kriging::Kriging;

/// The refined map of one epoch.
#[derive(Debug)]
pub struct Refined {
    pub(super) agents: Vec<AgentId>,
    pub(super) index: BTreeMap<AgentId, usize>,
    pub(super) layers: Vec<Layer>,
    pub(super) ingredients: RefinedSwitches,
    /// The softening of logarithms ([`super::gauss_newton::SOFTENING`]), in milliseconds.
    pub(super) softening: f64,
    /// Milliseconds added to a prediction that is compared with a measurement.
    pub(super) penalty: f64,
}

impl Refined {
    /// The agents for which the map can predict: the landmarks, then all other agents.
    pub fn agents(&self) -> &[AgentId] {
        &self.agents
    }
}

/// The kriging and the cloud for one number of dimensions.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) kriging: Option<Kriging>,
    pub(super) cloud: Cloud,
}
