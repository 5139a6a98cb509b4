//! Tells the operator why no map can be fitted, and stores it as the answer to the operator's
//! request.

use anyhow::Context;
use sqlx::{Postgres, Transaction};

use crate::gnp::FEWEST_LANDMARKS;
use crate::jobs::fit::fittable_landmarks::MeshState;
use crate::jobs::measure::Fleet;
use crate::store::embeddings;
use crate::store::measurements::reach::ReachFailure;
use crate::strategy::explain;

/// Stores why the fit failed, as the answer to the operator who requested the fit.
pub(super) async fn refuse(mut tx: Transaction<'static, Postgres>, why: &str) -> anyhow::Result<()> {
    embeddings::refuse_fit(&mut tx, why).await.context("refuse the request for a fit")?;
    tx.commit().await.context("commit the refusal")
}

/// Explains to the operator why no map can be fitted. `unmeasured` is true if no agent has measured
/// another agent.
pub(super) fn too_few(
    fleet: &Fleet,
    mesh_state: &MeshState,
    trouble: Option<&ReachFailure>,
    unmeasured: bool,
) -> String {
    match (fleet.probers(), trouble) {
        // The failed measurements are named first, because no landmark can be elected without
        // measurements.
        (_, Some(trouble)) if unmeasured => {
            format!("no agent has reached the beacon of another: {trouble}")
        }
        (Err(cause), _) => explain::waits(&cause.into()),
        (Ok(_), trouble) => format!(
            "a map needs {FEWEST_LANDMARKS} landmarks that have measured each other, but there are {}: {}",
            mesh_state.landmarks.len(),
            trouble
                .map_or("`landfall agents list` shows which beacons are reached".to_owned(), ReachFailure::to_string)
        ),
    }
}
