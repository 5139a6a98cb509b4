//! Holds tasks until a circuit closes or their address permits a further crawl, and releases held
//! tasks. Tasks are held before agents are chosen for the other tasks.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use sqlx::PgConnection;
use sqlx::types::ipnet::IpNet;

use crate::model::TaskId;
use crate::store::assignments::WaitingTask;
use crate::store::assignments::available_agents;
use crate::store::sites::{addresses, open_circuits};
use crate::store::tasks::holds::{self, HoldFilter};
use crate::store::tasks::unmet;

use super::exclusions::{Admission, Fate};
use crate::jobs::leadership::Leader;

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
    let held =
        addresses::hold_before_lease::hold(conn, &tasks, cap).await.context("hold tasks whose address is full")?;
    Ok(without(waiting, &held))
}

/// The waiting tasks that are not held.
pub(super) fn without(mut waiting: Vec<WaitingTask>, held: &HashSet<TaskId>) -> Vec<WaitingTask> {
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
    let agents = available_agents::available(&mut tx).await.context("read available agents")?;
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
