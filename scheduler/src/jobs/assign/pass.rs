//! Runs one pass over all located tasks: releases held tasks, withdraws tasks, chooses agents, and
//! lets the planner plan.

use std::sync::Mutex;

use anyhow::Context;
use sqlx::types::ipnet::IpNet;

use crate::jobs::assign::holds::release_held;
use crate::jobs::assign::one_by_one::choose_some;
use crate::jobs::assign::plan::Planner;
use crate::jobs::assign::unmet::release_unmet;
use crate::jobs::assign::withdrawal::{withdraw_excluded, withdraw_unavailable};
use crate::jobs::leadership::Leader;
use crate::model::Stage;
use crate::store::tasks::wait_causes;

/// Maximum number of tasks assigned in one transaction, so that their rows are locked for well
/// under a second.
const TASKS_PER_PASS: i64 = 500;

#[derive(Debug)]
pub struct Assign {
    scheduler: Leader,
    /// Tasks that are held because of their site's address are released in the order of the
    /// addresses. The next pass continues after the address in this field, or starts at the first
    /// address if the field is `None`.
    next_address: Mutex<Option<IpNet>>,
    pub(super) planner: Planner,
}

impl Assign {
    pub fn new(scheduler: Leader) -> Self {
        Self { scheduler, next_address: Mutex::new(None), planner: Planner::default() }
    }

    /// Runs transactions of bounded size until no task can be assigned.
    pub async fn run_once(&self) -> anyhow::Result<()> {
        let anybody = self.say_whether_anybody_takes_work().await?;
        // The map is read before any row is locked, because the preparation of a new map takes a
        // second.
        let map = self.scheduler.maps.current(self.scheduler.begin()).await?;
        if release_held(&self.scheduler, &self.next_address, TASKS_PER_PASS).await? {
            self.planner.forget();
        }
        release_unmet(&self.scheduler, TASKS_PER_PASS).await?;
        while withdraw_excluded(&self.scheduler, &self.planner, TASKS_PER_PASS).await? {}
        // Tasks that are withdrawn are assigned again before further tasks are withdrawn.
        while withdraw_unavailable(&self.scheduler, &self.planner, TASKS_PER_PASS).await?
            | (anybody && choose_some(&self.scheduler, map.clone(), TASKS_PER_PASS).await?)
        {}
        if anybody { self.planner.run(&self.scheduler, map).await } else { Ok(()) }
    }

    /// Returns whether any agent can get work, and stores the cause if none can.
    async fn say_whether_anybody_takes_work(&self) -> anyhow::Result<bool> {
        let mut tx = self.scheduler.begin().await?;
        let nobody = wait_causes::nobody(&mut tx).await.context("look who takes work")?;
        wait_causes::close(&mut tx, Stage::Choosing, nobody).await.context("say why tasks wait")?;
        tx.commit().await.context("commit why tasks wait")?;
        Ok(nobody.is_none())
    }
}
