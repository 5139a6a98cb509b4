//! Reads a waiting task from its row, with its former agent and the reason why the task left that
//! agent.

use std::time::Duration;

use crate::model::{
    AgentId, BatchId, ChoiceReasons, FormerAgent, Parting, Rtt, SiteId, Strategy, TaskId, Unmeasured, UnmeasuredCause,
};
use crate::store::agents::sessions::EndCause;
use crate::store::assignments::loads;
use crate::store::leases::LeaseState;
use crate::strategy::RecordedChoice;

use super::WaitingTask;

/// A task with its newest assignment, the chosen agent, and the lease under that assignment.
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
    pub(super) detail: Option<ChoiceReasons>,
    pub(super) candidates: Option<Vec<AgentId>>,
    pub(super) predicted_us: Option<Vec<Option<Rtt>>>,
    pub(super) measured_us: Option<Vec<Option<Rtt>>>,
    pub(super) lease: Option<LeaseState>,
    pub(super) crashed: Option<bool>,
    pub(super) end_cause: Option<EndCause>,
    pub(super) removed: Option<bool>,
    pub(super) drains: Option<bool>,
    pub(super) paused: Option<bool>,
    pub(super) disconnected: Option<bool>,
}

impl From<Row> for WaitingTask {
    fn from(row: Row) -> Self {
        let parting = row.parting();
        let former = match (row.agent_id, row.chosen_by, row.candidates) {
            (Some(agent), Some(chosen_by), Some(candidates)) => {
                let (predicted, measured) = (row.predicted_us.unwrap_or_default(), row.measured_us.unwrap_or_default());
                Some(RecordedChoice {
                    agent,
                    strategy: chosen_by,
                    fallback: row.detail.and_then(|why| why.fallback),
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
            parted: row.agent.map(|agent| FormerAgent { agent, how: parting }),
            waited: row.waited,
        }
    }
}

impl Row {
    /// Why the task left its former agent.
    fn parting(&self) -> Parting {
        match (self.lease, self.end_cause) {
            (Some(LeaseState::Expired), Some(EndCause::Superseded)) => Parting::Restarted,
            (Some(LeaseState::Expired), Some(EndCause::Reconnected)) => Parting::Reconnected,
            (Some(LeaseState::Expired), Some(EndCause::Replaced)) => Parting::Replaced,
            (Some(LeaseState::Expired), Some(EndCause::Left)) => Parting::Left,
            (Some(LeaseState::Expired), Some(EndCause::Removed)) => Parting::Removed,
            (Some(LeaseState::Expired), Some(EndCause::Restored)) => Parting::Restored,
            (Some(LeaseState::Expired), _) => Parting::Lost,
            (Some(_), _) if self.crashed == Some(true) => Parting::Crashed,
            (Some(_), _) if self.drains == Some(true) => Parting::Drained,
            (Some(_), _) => Parting::HandedBack,
            // `paused` and `disconnected` are `None` if the agent has no active session.
            (None, _) => match self.paused.zip(self.disconnected) {
                _ if self.removed == Some(true) => Parting::WaitedRemoved,
                _ if self.drains == Some(true) => Parting::WaitedDrained,
                None => Parting::WaitedAway,
                Some((_, true)) => Parting::WaitedDisconnected,
                Some((true, _)) => Parting::WaitedPaused,
                Some(_) => Parting::WaitedExcluded,
            },
        }
    }
}
