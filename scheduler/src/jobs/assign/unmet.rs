//! Decides whether the tasks that no agent may crawl wait or fail, and releases them when an agent
//! may crawl them.

use std::collections::BTreeMap;

use anyhow::Context;
use sqlx::PgConnection;

use crate::jobs::leadership::Leader;
use crate::model::constraints::{NoEligibleAgent, UnmetAction};
use crate::model::{BatchId, TaskId};
use crate::store::assignments::available_agents;
use crate::store::tasks::unmet;
use crate::strategy::explain;

use super::exclusions::Admission;

/// What happens to those tasks of a batch that no agent may crawl.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fate {
    /// The tasks wait because of this cause.
    Wait(NoEligibleAgent),
    /// The tasks fail with this reason.
    Fail(String),
}

impl Admission {
    /// What happens to a batch's tasks if no admitted agent can get work.
    ///
    /// The tasks can fail only if no enrolled agent meets the constraints. The tasks wait if the
    /// agents that meet the constraints are disconnected or have used up their quota. A quota
    /// covers 24 hours, counted in whole hours, so a used-up quota becomes free again within 25
    /// hours.
    fn fate(&self, batch: BatchId) -> Option<Fate> {
        let asked = self.constraints.get(&batch)?;
        let nobody = NoEligibleAgent::of(self.fleet.len(), self.excluded.get(&batch)?.values());
        let for_good = self.fleet.values().all(|agent| asked.excludes(agent).is_some());
        let fails = for_good && asked.unmet == UnmetAction::Fail;
        Some(if fails { Fate::Fail(explain::nobody(asked, &nobody)) } else { Fate::Wait(nobody) })
    }

    /// Holds these tasks, which no agent may crawl, or fails them if [`Self::fate`] says so. The
    /// caller has locked the tasks.
    pub(super) async fn set_aside(
        &self,
        conn: &mut PgConnection,
        tasks: &BTreeMap<BatchId, Vec<TaskId>>,
    ) -> anyhow::Result<()> {
        for (batch, tasks) in tasks {
            match self.fate(*batch) {
                Some(Fate::Fail(reason)) => unmet::fail(conn, tasks, &reason).await.context("fail tasks")?,
                Some(Fate::Wait(why)) => unmet::hold(conn, *batch, tasks, &why).await.context("hold unmet tasks")?,
                None => {}
            }
        }
        Ok(())
    }
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
