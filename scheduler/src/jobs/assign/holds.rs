//! Holds tasks until a circuit closes or their address permits a further crawl, and releases held
//! tasks. Tasks are held before agents are chosen for the other tasks.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use sqlx::PgConnection;
use sqlx::types::ipnet::IpNet;

use crate::jobs::leadership::Leader;
use crate::model::TaskId;
use crate::store::assignments::WaitingTask;
use crate::store::sites::{addresses, open_circuits};
use crate::store::tasks::holds::{self, HoldFilter};

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
