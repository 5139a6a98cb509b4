//! Decides whether the map must be fitted again, and gives the operator the reason. This file is
//! pure, except that it reads the mesh to measure drift: how much the map's error has grown.

use sqlx::PgConnection;

use crate::gnp::{Embedding, Mesh, Quality};
use crate::model::AgentId;
use crate::store::Error;
use crate::store::embeddings::{self, Newest};
use crate::store::measurements;

use super::fittable_landmarks::MeshState;

/// The map is fitted again if at least `1 / NEWER_SHARE` of the mesh's round trips are newer than
/// the last fit.
const NEWER_SHARE: i64 = 4;
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
/// Maximum number of newly joined agents listed by name in the reason for a fit. Further agents are
/// only counted.
const NAMED: usize = 3;

/// How well the newest embedding predicts the round trips measured after its fit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::jobs) struct Drift {
    /// Median error over the pairs measured after the fit, as in `gnp::Quality`.
    now: f64,
    /// Median error over the mesh on which the embedding was fitted.
    fitted: f64,
}

impl Drift {
    /// Measures the drift; `None` if too little was measured after the fit.
    pub(in crate::jobs) async fn survey(conn: &mut PgConnection, newest: &Newest) -> Result<Option<Self>, Error> {
        let fresh = embeddings::pairs_measured_since(conn, newest.created_at).await?;
        let Some(embedding) = embeddings::latest(conn).await? else { return Ok(None) };
        if embedding.epoch() != newest.epoch {
            return Ok(None);
        }
        let mesh: Mesh = measurements::mesh(conn).await?.into_iter().collect();
        Ok(Self::between(&embedding, &mesh, newest.mesh_error, |pair| fresh.contains(&pair)))
    }

    fn between(
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

    fn is_large(self) -> bool {
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

/// Why the map must be fitted again; `None` if it need not be.
pub(in crate::jobs) fn reason(
    mesh_state: &MeshState,
    dimensions: usize,
    newest: Option<&Newest>,
    drift: Option<Drift>,
    asked: bool,
) -> Option<String> {
    let Some(newest) = newest else { return Some("first".to_owned()) };
    if !mesh_state.holds(&newest.landmarks) {
        return Some("landmarks changed".to_owned());
    }
    if !newest.newcomers.is_empty() {
        return Some(joined(&newest.newcomers));
    }
    // The dimensions are compared only if the number of landmarks is unchanged. In a small fleet,
    // an agent may be disconnected for a moment; a fit without it would have too few dimensions.
    if newest.landmarks.len() == mesh_state.landmarks.len() && newest.dimensions != dimensions {
        return Some(format!("dimensions changed from {} to {dimensions}", newest.dimensions));
    }
    if asked {
        return Some("requested by the operator".to_owned());
    }
    if let Some(drift) = drift.filter(|drift| drift.is_large()) {
        return Some(format!("drift {:.0} %, {:.0} % when it was fitted", drift.now * 100.0, drift.fitted * 100.0));
    }
    let renewed = newest.newer_rows > 0 && newest.newer_rows.saturating_mul(NEWER_SHARE) >= newest.mesh_rows;
    (renewed && (newest.aged || !newest.mesh_busy)).then(|| {
        let share = newest.newer_rows.saturating_mul(100) / newest.mesh_rows.max(1);
        format!("{share} % of the mesh was measured again")
    })
}

fn joined(names: &[String]) -> String {
    let named = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    let s = if names.len() == 1 { "" } else { "s" };
    match names.len().saturating_sub(NAMED) {
        0 => format!("agent{s} {named} joined"),
        more => format!("agents {named} and {more} more joined"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::gnp::Placement;
    use crate::model::{EmbeddingEpoch, Rtt};

    /// Eight agents on a line with 10 ms between neighbours, and their mesh with every distance
    /// multiplied by `factor`.
    fn line(factor: f64) -> (Embedding, Mesh) {
        let epoch = EmbeddingEpoch::new(1);
        let mut mesh = Mesh::new();
        let mut placed = BTreeMap::new();
        for i in 0..8_i32 {
            let coordinate = vec![f64::from(i) * 10.0, 0.0];
            placed.insert(AgentId::new(i64::from(i)), Placement { epoch, coordinate, fit_error: 0.0 });
            for j in (0..8_i32).filter(|&j| j != i) {
                let rtt = Rtt::try_from_millis_f64(f64::from((i - j).abs()) * 10.0 * factor).unwrap();
                mesh.insert(AgentId::new(i64::from(i)), AgentId::new(i64::from(j)), rtt);
            }
        }
        let landmarks = (0..4).map(AgentId::new).collect();
        (Embedding::from_parts(epoch, 1, landmarks, placed, 0.0).unwrap(), mesh)
    }

    #[test]
    fn drift_is_seen_when_distances_change_and_not_when_few_were_measured() {
        let (map, slower) = line(1.2);
        let drift = Drift::between(&map, &slower, 0.04, |_| true).expect("everything is fresh");
        assert!((drift.now - 1.2_f64.ln()).abs() < 1e-3 && drift.is_large(), "{drift:?}");
        assert!(!Drift { fitted: 0.15, ..drift }.is_large(), "it never fitted better");
        assert!(!Drift { now: 0.004, fitted: 0.001 }.is_large(), "four times next to nothing");
        assert_eq!(Drift::between(&map, &slower, 0.04, |(a, _)| a == AgentId::new(0)), None, "7 of 28 pairs");
    }

    #[test]
    fn newcomers_are_named_and_many_counted() {
        let names = ["a", "b", "c", "d", "e"].map(str::to_owned);
        assert_eq!(joined(&names[..1]), "agent a joined");
        assert_eq!(joined(&names[..2]), "agents a, b joined");
        assert_eq!(joined(&names), "agents a, b, c and 2 more joined");
    }
}
