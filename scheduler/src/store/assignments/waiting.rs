//! A task that waits, from its row: with the choice before, and what became of it.

use std::time::Duration;

use sqlx::types::Json;

use crate::model::{
    AgentId, BatchId, Parted, Parting, Rtt, SiteId, Strategy, TaskId, Unmeasured, UnmeasuredCause, Why,
};
use crate::store::leases::LeaseState;
use crate::store::loads;
use crate::store::sessions::EndCause;
use crate::strategy::Former;

use super::Waiting;

/// A task, its newest choice, that choice's agent, and the lease that came of it.
pub(super) struct Row {
    pub(super) id: TaskId,
    pub(super) site_id: SiteId,
    pub(super) batch_id: BatchId,
    pub(super) unmeasured: Option<UnmeasuredCause>,
    pub(super) unmeasured_detail: Option<String>,
    pub(super) strategy: Strategy,
    pub(super) waited: Duration,
    pub(super) choices: i64,
    pub(super) agent_id: Option<AgentId>,
    pub(super) agent: Option<String>,
    pub(super) chosen_by: Option<Strategy>,
    pub(super) detail: Option<Json<Why>>,
    pub(super) candidates: Option<Vec<AgentId>>,
    pub(super) predicted_us: Option<Vec<Option<Rtt>>>,
    pub(super) measured_us: Option<Vec<Option<Rtt>>>,
    pub(super) lease: Option<LeaseState>,
    pub(super) crashed: Option<bool>,
    pub(super) end_cause: Option<EndCause>,
    pub(super) removed: Option<bool>,
    pub(super) drains: Option<bool>,
    pub(super) paused: Option<bool>,
    pub(super) hung_up: Option<bool>,
}

impl From<Row> for Waiting {
    fn from(row: Row) -> Self {
        let parting = Found {
            lease: row.lease,
            crashed: row.crashed == Some(true),
            end_cause: row.end_cause,
            removed: row.removed == Some(true),
            drains: row.drains == Some(true),
            there: row.paused.zip(row.hung_up),
        }
        .parting();
        let former = match (row.agent_id, row.chosen_by, row.candidates) {
            (Some(agent), Some(chosen_by), Some(candidates)) => {
                let (predicted, measured) = (row.predicted_us.unwrap_or_default(), row.measured_us.unwrap_or_default());
                Some(Former {
                    agent,
                    strategy: chosen_by,
                    fallback: row.detail.and_then(|Json(why)| why.fallback),
                    listed: loads::listed(&candidates, &predicted, &measured),
                })
            }
            _ => None,
        };
        let said = row.unmeasured_detail.unwrap_or_default();
        Self {
            task: row.id,
            site: row.site_id,
            batch: row.batch_id,
            strategy: row.strategy,
            unmeasured: row.unmeasured.map(|cause| Unmeasured { cause, said }),
            choices: row.choices,
            former,
            parted: row.agent.map(|agent| Parted { agent, how: parting }),
            waited: row.waited,
        }
    }
}

/// What is stored of a former choice's agent and of its lease of the task, where it had one.
struct Found {
    lease: Option<LeaseState>,
    crashed: bool,
    end_cause: Option<EndCause>,
    removed: bool,
    drains: bool,
    /// Whether it has paused, and hung up; `None` where it has no active session.
    there: Option<(bool, bool)>,
}

impl Found {
    fn parting(&self) -> Parting {
        match (self.lease, self.end_cause) {
            (Some(LeaseState::Expired), Some(EndCause::Superseded)) => Parting::Restarted,
            (Some(LeaseState::Expired), Some(EndCause::Reconnected)) => Parting::Reconnected,
            (Some(LeaseState::Expired), Some(EndCause::Replaced)) => Parting::Replaced,
            (Some(LeaseState::Expired), Some(EndCause::Left)) => Parting::Left,
            (Some(LeaseState::Expired), Some(EndCause::Removed)) => Parting::Removed,
            (Some(LeaseState::Expired), Some(EndCause::Restored)) => Parting::Restored,
            (Some(LeaseState::Expired), _) => Parting::Lost,
            (Some(_), _) if self.crashed => Parting::Crashed,
            (Some(_), _) if self.drains => Parting::Drained,
            (Some(_), _) => Parting::HandedBack,
            (None, _) => match self.there {
                _ if self.removed => Parting::WaitedRemoved,
                _ if self.drains => Parting::WaitedDrained,
                None => Parting::WaitedAway,
                Some((_, true)) => Parting::WaitedHungUp,
                Some((true, _)) => Parting::WaitedPaused,
                Some(_) => Parting::WaitedExcluded,
            },
        }
    }
}
