//! A task that waits, from its row: with the choice before, and what became of it.

use std::time::Duration;

use crate::model::{AgentId, BatchId, Parted, Parting, Rtt, SiteId, TaskId, Unmeasured, UnmeasuredCause};
use crate::store::{Error, loads};
use crate::strategy::Former;

use super::{Waiting, why};

/// A task, its newest choice, that choice's agent, and the lease that came of it.
pub(super) struct Row {
    pub(super) id: TaskId,
    pub(super) site_id: SiteId,
    pub(super) batch_id: BatchId,
    pub(super) unmeasured: Option<String>,
    pub(super) unmeasured_detail: Option<String>,
    pub(super) strategy: String,
    pub(super) waited_s: f64,
    pub(super) choices: i64,
    pub(super) agent_id: Option<AgentId>,
    pub(super) agent: Option<String>,
    pub(super) chosen_by: Option<String>,
    pub(super) detail: Option<String>,
    pub(super) candidates: Option<Vec<AgentId>>,
    pub(super) predicted_us: Option<Vec<Option<Rtt>>>,
    pub(super) measured_us: Option<Vec<Option<Rtt>>>,
    pub(super) lease: Option<String>,
    pub(super) crashed: Option<bool>,
    pub(super) end_cause: Option<String>,
    pub(super) removed: Option<bool>,
    pub(super) drains: Option<bool>,
    pub(super) paused: Option<bool>,
    pub(super) hung_up: Option<bool>,
}

impl TryFrom<Row> for Waiting {
    type Error = Error;

    fn try_from(row: Row) -> Result<Self, Error> {
        let parting = Found {
            lease: row.lease.as_deref(),
            crashed: row.crashed == Some(true),
            end_cause: row.end_cause.as_deref(),
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
                    strategy: loads::strategy(&chosen_by)?,
                    fallback: why(row.detail.as_deref())?.fallback,
                    listed: loads::listed(&candidates, &predicted, &measured),
                })
            }
            _ => None,
        };
        let unmeasured = row.unmeasured.map(|cause| {
            let known = UnmeasuredCause::named(&cause);
            let cause = known.ok_or_else(|| Error::inconsistent("tasks", "unmeasured", &cause))?;
            Ok::<_, Error>(Unmeasured { cause, said: row.unmeasured_detail.unwrap_or_default() })
        });
        let strategy = row.strategy.parse();
        Ok(Self {
            task: row.id,
            site: row.site_id,
            batch: row.batch_id,
            strategy: strategy.map_err(|_| Error::inconsistent("batches", "strategy", &row.strategy))?,
            unmeasured: unmeasured.transpose()?,
            choices: row.choices,
            former,
            parted: row.agent.map(|agent| Parted { agent, how: parting }),
            waited: Duration::try_from_secs_f64(row.waited_s).unwrap_or_default(),
        })
    }
}

/// What is stored of a former choice's agent and of its lease of the task, where it had one.
struct Found<'a> {
    lease: Option<&'a str>,
    crashed: bool,
    end_cause: Option<&'a str>,
    removed: bool,
    drains: bool,
    /// Whether it has paused, and hung up; `None` where it has no active session.
    there: Option<(bool, bool)>,
}

impl Found<'_> {
    fn parting(&self) -> Parting {
        match (self.lease, self.end_cause) {
            (Some("expired"), Some("superseded")) => Parting::Restarted,
            (Some("expired"), Some("reconnected")) => Parting::Reconnected,
            (Some("expired"), Some("replaced")) => Parting::Replaced,
            (Some("expired"), Some("left")) => Parting::Left,
            (Some("expired"), Some("removed")) => Parting::Removed,
            (Some("expired"), Some("restored")) => Parting::Restored,
            (Some("expired"), _) => Parting::Lost,
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
