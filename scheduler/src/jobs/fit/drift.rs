//! The drift of a map: how much worse it fits newer round trips than those from which it was made.

use std::collections::BTreeSet;

use crate::gnp::{Embedding, Mesh, Quality};
use crate::model::AgentId;
use crate::store::embeddings::{self, Newest};
use crate::store::{Error, Tx, measurements};

/// Drift (the growth of the map's error since the fit) is judged if at least `1 / FRESH_SHARE` of
/// the measured pairs of agents are newer than the fit. Fewer pairs could all have been measured
/// during one minute of unusual delays, which is not drift.
const FRESH_SHARE: usize = 4;
/// Minimum number of newer pairs for judging drift. A median over fewer pairs would mean little.
const FEWEST_FRESH: usize = 10;
/// The map has drifted only if its median error over the newer pairs is at least this many times
/// its median error at the fit.
const DRIFT_FACTOR: f64 = 1.5;
/// The map has drifted only if its median error has also risen by at least this much. The fit error
/// of a steady network is near zero, so `DRIFT_FACTOR` alone would be reached too easily.
const DRIFT_ABOVE: f64 = 0.01;

/// What the map's drift is measured from.
pub(super) struct DriftInput {
    embedding: Embedding,
    mesh: Mesh,
    /// Median error of the map at its fit.
    fitted: f64,
    /// The pairs of agents measured after the fit.
    fresh: BTreeSet<(AgentId, AgentId)>,
}

impl DriftInput {
    /// `None` if the embedding is no longer the newest.
    pub(super) async fn read(tx: &mut Tx<'_>, newest: &Newest) -> Result<Option<Self>, Error> {
        let fresh = embeddings::pairs_measured_since(tx, newest.created_at).await?;
        let Some(embedding) = embeddings::latest(tx).await? else { return Ok(None) };
        if embedding.epoch() != newest.epoch {
            return Ok(None);
        }
        let mesh: Mesh = measurements::mesh(tx).await?.into_iter().collect();
        Ok(Some(Self { embedding, mesh, fitted: newest.mesh_error, fresh }))
    }

    /// Measures the drift; `None` if too little was measured after the fit.
    pub(super) fn measure(&self) -> Option<Drift> {
        Drift::between(&self.embedding, &self.mesh, self.fitted, |pair| self.fresh.contains(&pair))
    }
}

/// How well the newest embedding predicts the round trips measured after its fit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Drift {
    /// Median error over the pairs measured after the fit, as in `gnp::Quality`.
    pub(super) now: f64,
    /// Median error over the mesh on which the embedding was fitted.
    pub(super) fitted: f64,
}

impl Drift {
    pub(super) fn between(
        embedding: &Embedding,
        mesh: &Mesh,
        fitted: f64,
        is_fresh: impl Fn((AgentId, AgentId)) -> bool,
    ) -> Option<Self> {
        let all = Quality::of(embedding, mesh).residuals().len();
        let fresh = Quality::among(embedding, mesh, |a, b| is_fresh((a, b)));
        let enough = fresh.residuals().len() >= FEWEST_FRESH.max(all.div_ceil(FRESH_SHARE));
        fresh.median_error().filter(|_| enough).map(|now| Self { now, fitted })
    }

    pub(super) fn is_large(self) -> bool {
        self.now >= self.fitted * DRIFT_FACTOR && self.now >= self.fitted + DRIFT_ABOVE
    }
}

/// Whether enough pairs of agents may have been measured since the fit to judge the drift. The row
/// counts suffice, and the mesh need not be read, because a pair has at most two rows in the mesh,
/// and a pair measured since the fit has at least one row newer than the fit.
pub(super) fn may_be_enough(newest: &Newest) -> bool {
    let counted = |rows: i64| usize::try_from(rows).unwrap_or(0);
    let (newer, rows) = (counted(newest.newer_rows), counted(newest.mesh_rows));
    newer >= FEWEST_FRESH && newer * FRESH_SHARE * 2 >= rows
}
