//! Defines the reasons why no embedding can be fitted, and checks the landmarks and dimensions.

use std::collections::BTreeSet;

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

/// Checks that the landmarks differ, and are enough for this many dimensions.
pub(in crate::gnp) fn check(landmarks: &[AgentId], dimensions: usize) -> Result<(), FitError> {
    let there = landmarks.len();
    if there < 2 {
        return Err(FitError::TooFewLandmarks { there });
    }
    if dimensions == 0 {
        return Err(FitError::NoDimension);
    }
    if dimensions >= there {
        return Err(FitError::TooManyDimensions { dimensions, needed: dimensions.saturating_add(1), there });
    }
    let mut seen = BTreeSet::new();
    match landmarks.iter().find(|landmark| !seen.insert(**landmark)) {
        Some(&landmark) => Err(FitError::RepeatedLandmark { landmark }),
        None => Ok(()),
    }
}
