//! Describes a finished fit that is to become the newest embedding.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::gnp::Embedding;

/// A finished fit that is to become the newest embedding.
#[derive(Debug, Clone, Copy)]
pub struct NewEmbedding<'a> {
    pub embedding: &'a Embedding,
    /// When the mesh was read.
    pub as_of: DateTime<Utc>,
    /// The reason for the fit, as shown to operators.
    pub reason: &'a str,
    /// The median error of the fit over the mesh; `None` if the mesh has no measurements.
    pub mesh_error: Option<f64>,
    /// The median distance by which agents' coordinates moved since the previous embedding, to
    /// which this embedding was aligned.
    pub median_move: Option<Duration>,
}
