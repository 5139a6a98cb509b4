//! Computes the embedding of a fit that is due.

use std::time::Duration;

use crate::gnp::{self, Embedding, FitError, Mesh, PlainSwitches, Quality};
use crate::jobs::fit::fittable_landmarks::MeshState;
use crate::model::EmbeddingEpoch;
use crate::store::embeddings::{NewEmbedding, Newest};
use crate::store::measurements::MeshMeasurement;

pub(super) struct DueFit {
    pub(super) reason: String,
    pub(super) switches: PlainSwitches,
    pub(super) epoch: EmbeddingEpoch,
    pub(super) dimensions: usize,
    pub(super) mesh_state: MeshState,
    pub(super) mesh: Vec<MeshMeasurement>,
    pub(super) newest: Option<Newest>,
    pub(super) former: Option<Embedding>,
}

pub(super) struct FinishedFit {
    pub(super) reason: String,
    pub(super) embedding: Embedding,
    mesh_error: Option<f64>,
    median_move: Option<Duration>,
}

impl DueFit {
    /// Fits the embedding. If the fit fails, returns the mesh on which it failed.
    pub(super) fn solve(self) -> Result<FinishedFit, (FitError, Vec<MeshMeasurement>)> {
        let (mesh, landmarks): (Mesh, _) = (self.mesh.iter().copied().collect(), &self.mesh_state.landmarks);
        // The epoch is the seed, so a fit can be repeated exactly. A retry after a failure has a
        // new epoch, so it uses another seed.
        let seed = self.epoch.get().unsigned_abs();
        let Self { switches, epoch, dimensions, .. } = self;
        let fitted = gnp::fit_with(switches, self.former.as_ref(), epoch, &mesh, landmarks, dimensions, seed);
        let embedding = match fitted {
            Ok(embedding) => embedding,
            Err(error) => return Err((error, self.mesh)),
        };
        let mesh_error = Quality::of(&embedding, &mesh).median_error();
        let median_move = self.former.as_ref().and_then(|former| embedding.median_move_from(former));
        Ok(FinishedFit { reason: self.reason, embedding, mesh_error, median_move })
    }
}

impl FinishedFit {
    pub(super) fn fitted(&self, as_of: chrono::DateTime<chrono::Utc>) -> NewEmbedding<'_> {
        let Self { reason, embedding, mesh_error, median_move } = self;
        NewEmbedding { embedding, as_of, reason, mesh_error: *mesh_error, median_move: *median_move }
    }
}
