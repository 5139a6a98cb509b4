//! Orders measurements of agents' beacons, and pauses between two passes over the mesh.

use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::sync::Mutex;

use crate::config::MeasureConfig;
use crate::jobs::leadership::Leader;
use crate::jobs::measure::order_lifetime::order_lifetime;
use crate::jobs::measure::probers::{Fleet, FleetVersion};
use crate::model::AgentId;
use crate::store::measurements::mesh_orders::{self, MeshOrders, MeshPlan};

/// The pause between two passes over the mesh, as a multiple of a pass's duration: `FOLLOWED` if
/// due measurements wait for orders to end, otherwise `RESTED`. A pass looks at every pair of
/// agents, which takes a few milliseconds for 30 agents, and 750 ms for a thousand agents.
const FOLLOWED: u32 = 4;
const RESTED: u32 = 50;

/// While the fleet has this version, no pass looks at the mesh before `ends`.
#[derive(Debug)]
pub(super) struct MeshPause {
    pub(super) fleet: FleetVersion,
    pub(super) ends: Instant,
}

/// The pause after a pass over the mesh that took `took`. The pause is at most a tenth of
/// `max_age`, the age at which a pair is due again. If more pairs are due but the pass created no
/// order, no agent has completed an order since the last pass, so the pause is long.
fn pause_after(took: Duration, ordered: &MeshOrders, max_age: Duration) -> Duration {
    let follows = ordered.more_due && !ordered.probers.is_empty();
    (took * if follows { FOLLOWED } else { RESTED }).min(max_age / 10)
}

fn mesh_plan(config: &MeasureConfig) -> MeshPlan {
    MeshPlan {
        max_age: config.mesh_max_age,
        max_peers: config.max_mesh_peers,
        max_orders: config.max_mesh_orders,
        lifetime: order_lifetime(config.mesh_samples, config.mesh_interval, config.sample_timeout),
    }
}

pub(super) async fn order_mesh(
    scheduler: &Leader,
    mesh_pause: &Mutex<Option<MeshPause>>,
    fleet: &Fleet,
) -> anyhow::Result<Vec<AgentId>> {
    let (mut pause, version) = (mesh_pause.lock().await, fleet.version());
    if pause.as_ref().is_some_and(|pause| pause.fleet == version && Instant::now() < pause.ends) {
        return Ok(Vec::new());
    }
    let plan = mesh_plan(&scheduler.config.measure);
    let began = Instant::now();
    let mut tx = scheduler.begin().await?;
    let ordered = mesh_orders::order_mesh(&mut tx, &plan).await.context("order the mesh")?;
    tx.commit().await.context("commit the mesh's orders")?;
    *pause =
        Some(MeshPause { fleet: version, ends: Instant::now() + pause_after(began.elapsed(), &ordered, plan.max_age) });
    Ok(ordered.probers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_short_only_while_due_measurements_wait_and_others_are_ordered() {
        let (took, hour) = (Duration::from_millis(750), Duration::from_secs(3600));
        let pause = |ordered, more_due, max_age| {
            pause_after(took, &MeshOrders { probers: vec![AgentId::new(1); ordered], more_due }, max_age)
        };
        let long = Duration::from_millis(37_500);
        assert_eq!(pause(1, true, hour), Duration::from_secs(3));
        assert_eq!([pause(1, false, hour), pause(0, true, hour), pause(0, false, hour)], [long; 3]);
        assert_eq!(pause(0, false, Duration::from_secs(60)), Duration::from_secs(6));
    }
}
