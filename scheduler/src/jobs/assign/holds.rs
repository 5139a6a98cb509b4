//! Holds tasks until a confirmation ends, a circuit closes, or their address permits a further
//! crawl, and releases held tasks. Tasks are held before agents are chosen for the other tasks.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use sqlx::PgConnection;
use sqlx::types::ipnet::IpNet;

use crate::config::Config;
use crate::model::{SiteId, Strategy, TaskId};
use crate::store::assignments::WaitingTask;
use crate::store::assignments::loads;
use crate::store::sites::{addresses, open_circuits};
use crate::store::tasks::confirmations::{self, ConfirmationRequest, ConfirmationState};
use crate::store::tasks::holds::{self, HoldFilter};
use crate::store::tasks::unmet;

use super::exclusions::{Admission, Fate};
use crate::jobs::leadership::Leader;

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

/// Holds the tasks of sites whose circuit is open. Returns the other tasks.
pub(super) async fn hold_broken(
    conn: &mut PgConnection,
    waiting: Vec<WaitingTask>,
) -> anyhow::Result<Vec<WaitingTask>> {
    let tasks: Vec<TaskId> = waiting.iter().map(|task| task.task).collect();
    let held = open_circuits::hold(conn, &tasks).await.context("hold tasks of sites whose circuit is open")?;
    Ok(without(waiting, &held.into_iter().collect()))
}

/// Holds the tasks whose known address permits no further crawl. Returns the other tasks. A
/// returned task with a known, shared address now counts toward the crawls that the address
/// permits.
pub(super) async fn hold_ahead(
    conn: &mut PgConnection,
    waiting: Vec<WaitingTask>,
    cap: u32,
) -> anyhow::Result<Vec<WaitingTask>> {
    let tasks: Vec<TaskId> = waiting.iter().map(|task| task.task).collect();
    let held = addresses::ahead::hold(conn, &tasks, cap).await.context("hold tasks whose address is full")?;
    Ok(without(waiting, &held))
}

fn without(mut waiting: Vec<WaitingTask>, held: &HashSet<TaskId>) -> Vec<WaitingTask> {
    waiting.retain(|task| !held.contains(&task.task));
    waiting
}

/// Releases held tasks whose pause has ended or whose address permits another crawl. Returns
/// whether any task was released.
pub(super) async fn release_held(
    scheduler: &Leader,
    next_address: &Mutex<Option<IpNet>>,
    limit: i64,
) -> anyhow::Result<bool> {
    let cap = scheduler.config.politeness.crawls_at_address;
    let next = || next_address.lock().unwrap_or_else(PoisonError::into_inner);
    let from = *next();
    let mut tx = scheduler.begin().await?;
    let due = holds::release(&mut tx, HoldFilter::Due, limit).await.context("release held tasks")?.len();
    let admitted = addresses::admit(&mut tx, cap, from, limit).await;
    let (admitted, place) = admitted.context("admit tasks to addresses")?;
    tx.commit().await.context("commit the tasks that go on")?;
    *next() = place;
    if due > 0 || admitted > 0 {
        tracing::debug!(due, admitted, "held tasks continue");
    }
    Ok(due > 0 || admitted > 0)
}

/// Releases tasks held as unmet if an agent may now crawl them. Stores why the other tasks held
/// as unmet still wait.
pub(super) async fn release_unmet(scheduler: &Leader, limit: i64) -> anyhow::Result<()> {
    let mut tx = scheduler.begin().await?;
    let batches = unmet::batches(&mut tx).await.context("find batches with unmet tasks")?;
    if batches.is_empty() {
        return Ok(());
    }
    let agents = loads::available(&mut tx).await.context("read available agents")?;
    let admission = Admission::read(&mut tx, batches.iter().copied()).await?;
    let mut any = false;
    for batch in batches {
        let there = agents.iter().map(|available| available.agent);
        let room = admission.room(batch, there, limit.unsigned_abs());
        if room > 0 {
            let released = unmet::release(&mut tx, batch, None, room.cast_signed()).await;
            let released = released.context("release unmet tasks")?;
            tracing::debug!(batch.id = %batch, released, "agents meet the constraints of unmet tasks");
            any |= released > 0;
            continue;
        }
        match admission.fate(batch).filter(|_| !agents.is_empty()) {
            Some(Fate::Fail(reason)) => {
                unmet::release(&mut tx, batch, Some(&reason), limit).await.context("fail unmet tasks")?;
            }
            Some(Fate::Wait(why)) => {
                unmet::explain(&mut tx, batch, &why).await.context("say why unmet tasks wait")?;
            }
            None => {}
        }
    }
    tx.commit().await.context("commit released tasks")?;
    if any {
        scheduler.wakes.confirm.notify_one();
    }
    Ok(())
}
