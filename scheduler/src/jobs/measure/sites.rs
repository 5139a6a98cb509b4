//! Moves submitted tasks to the state measuring, and gives their sites to probers.

use anyhow::Context;

use crate::jobs::leadership::Leader;
use crate::jobs::measure::order_lifetime::order_lifetime;
use crate::jobs::measure::prober_choice::spread;
use crate::model::AgentId;
use crate::store::measurements::site_orders;
use crate::store::sites::origins_and_aliases;
use crate::store::tasks::measuring;

/// Maximum number of tasks that one pass moves to the state measuring, and of sites that one pass
/// gives to probers.
const BATCH: i64 = 1000;

/// Maximum number of tasks in the state measuring. This number exceeds the 2304 site orders that
/// nine probers together can have open with the default settings.
const MEASURING_AT_ONCE: i64 = 4096;

pub(super) async fn let_in(scheduler: &Leader) -> anyhow::Result<()> {
    let mut tx = scheduler.begin().await?;
    let begun = measuring::begin_measuring(&mut tx, BATCH, MEASURING_AT_ONCE).await.context("let tasks in")?;
    origins_and_aliases::follow_aliases(&mut tx, &begun.aliases).await.context("follow aliases")?;
    tx.commit().await.context("commit tasks let in")?;
    if begun.tasks > 0 {
        // Stored measurements may already suffice to locate the tasks' sites.
        scheduler.wakes.locate.notify_one();
    }
    again_if_full(scheduler, begun.tasks);
    Ok(())
}

pub(super) async fn order_sites(scheduler: &Leader, probers: &[AgentId]) -> anyhow::Result<Vec<AgentId>> {
    let config = &scheduler.config.measure;
    let mut tx = scheduler.begin().await?;
    let mut open = site_orders::open_site_orders(&mut tx, probers).await.context("count orders")?;
    open.retain(|_, held| *held < config.max_site_orders);
    let free: Vec<AgentId> = probers.iter().copied().filter(|prober| open.contains_key(prober)).collect();
    let due = site_orders::due_sites(&mut tx, &free, config.site_max_age, BATCH).await.context("find sites")?;
    let orders = spread(&due, open, config.max_site_orders);
    let lifetime = order_lifetime(config.site_samples, config.site_interval, config.sample_timeout);
    let ordered = site_orders::order_sites(&mut tx, &orders, lifetime).await.context("order sites")?;
    tx.commit().await.context("commit the sites' orders")?;
    again_if_full(scheduler, u64::try_from(ordered.len()).unwrap_or(u64::MAX));
    Ok(ordered)
}

/// Signals another pass if this pass reached its limit.
fn again_if_full(scheduler: &Leader, done: u64) {
    if i64::try_from(done).is_ok_and(|done| done >= BATCH) {
        scheduler.wakes.measure.notify_one();
    }
}
