//! Defines the reasons why no embedding can be fitted.

use crate::gnp::locate::simplex::SimplexError;
use crate::model::AgentId;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    #[error("a map needs at least 2 landmarks, there are {there}")]
    TooFewLandmarks { there: usize },
    #[error("landmark {landmark} was given twice")]
    RepeatedLandmark { landmark: AgentId },
    #[error("a map needs at least 1 dimension")]
    NoDimension,
    #[error("{dimensions} dimensions need at least {needed} landmarks, there are {there}")]
    TooManyDimensions {
        dimensions: usize,
        /// Minimum number of landmarks: the number of dimensions plus one.
        needed: usize,
        there: usize,
    },
    #[error("landmark {landmark} has no measured distance to any other landmark")]
    UnmeasuredLandmark { landmark: AgentId },
    #[error("landmark {landmark} is joined to landmark {first} by no chain of measurements")]
    Disconnected { landmark: AgentId, first: AgentId },
    #[error("fit the map")]
    Solver(#[from] SimplexError),
}
