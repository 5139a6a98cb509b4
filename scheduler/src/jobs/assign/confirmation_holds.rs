//! Decides which tasks wait for a confirmation of their site, and holds them until it ends.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Context as _;
use sqlx::PgConnection;

use crate::config::Config;
use crate::model::{SiteId, Strategy};
use crate::store::assignments::WaitingTask;
use crate::store::tasks::confirmations::{self, ConfirmationRequest, ConfirmationState};

use super::distances::Known;
use super::holds::without;

/// Whether a task may wait while uncertain distances of its site are confirmed. A site that
/// probably has several locations is not confirmed, because each agent may measure a different
/// location.
pub(super) fn may_be_confirmed(task: &WaitingTask, known: &Known) -> bool {
    task.strategy.confirms_the_unsure() && !known.suspicions.contains_key(&task.site)
}

/// Whether a confirmation delays no task: the task would wait for a slot at least as long as a
/// confirmation may take.
pub(super) fn costs_no_time(waits: Duration, confirming: Duration) -> bool {
    waits >= confirming
}

/// Waiting tasks, except those that wait for a confirmation.
pub(super) struct Unconfirmed {
    pub(super) waiting: Vec<WaitingTask>,
    /// Valid or open confirmations of the waiting tasks' sites.
    pub(super) confirmation_states: HashMap<SiteId, ConfirmationState>,
    /// Whether a confirmation was requested.
    pub(super) wanted: bool,
}

/// Holds tasks whose strategy needs confirmed distances until these distances exist. A task with
/// another strategy is held only while a confirmation of its site is open, and at most for the
/// usual duration of a confirmation. While its site is being confirmed, the task would wait for a
/// slot anyway. The hold is limited so that an agent that does not answer cannot delay the task
/// further.
pub(super) async fn hold_unconfirmed(
    conn: &mut PgConnection,
    config: &Config,
    waiting: Vec<WaitingTask>,
) -> anyhow::Result<Unconfirmed> {
    let max_age = config.measure.site_max_age;
    let always = |task: &WaitingTask| task.strategy == Strategy::GnpConfirmed;
    let concerned = waiting.iter().filter(|task| always(task) || task.strategy.confirms_the_unsure());
    let sites: Vec<SiteId> = concerned.map(|task| task.site).collect();
    if sites.is_empty() {
        return Ok(Unconfirmed { waiting, confirmation_states: HashMap::new(), wanted: false });
    }
    let confirmation_states =
        confirmations::states(conn, &sites, max_age).await.context("read how sites are confirmed")?;
    let patience = |task: &WaitingTask| match confirmation_states.get(&task.site) {
        Some(ConfirmationState::Ended) => None,
        Some(ConfirmationState::Open { .. }) | None if always(task) => Some(None),
        Some(ConfirmationState::Open { since }) if task.strategy.confirms_the_unsure() => {
            config.confirming().checked_sub(*since).filter(|left| !left.is_zero()).map(Some)
        }
        Some(ConfirmationState::Open { .. }) | None => None,
    };
    let wanted = waiting.iter().filter_map(|task| {
        patience(task).map(|patience| ConfirmationRequest { task: task.task, site: task.site, patience })
    });
    let wanted: Vec<ConfirmationRequest> = wanted.collect();
    confirmations::want(conn, &wanted, max_age).await.context("want sites confirmed")?;
    let held = wanted.iter().map(|one| one.task).collect();
    Ok(Unconfirmed { waiting: without(waiting, &held), confirmation_states, wanted: !wanted.is_empty() })
}
