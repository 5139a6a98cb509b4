//! The input and the decisions of a plan, with the reads and writes that need a transaction.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use sqlx::PgConnection;

use crate::config::Draws;
use crate::jobs::locate::refined::{CurrentMap, MapCache};
use crate::model::{AgentId, BatchId, SiteId, TaskId};
use crate::store::assignments::available_agents::AvailableAgent;
use crate::store::assignments::loads::{self, AgentCrawl};
use crate::store::assignments::{WaitingTask, past_crawls, site_facts};
use crate::store::leases::preemptions::{self, PreemptedLease};
use crate::store::measurements::quarantines;
use crate::store::tasks::confirmations::ConfirmationState;
use crate::strategy::site_facts::SiteFacts;
use crate::strategy::{Candidate, Speed, speeds, usual_size, with_speeds};

use super::super::confirmation_holds::may_be_confirmed;
use super::super::distances::Known;
use super::super::exclusions::Admission;
use super::free_slots::frees;

/// The input of a plan.
pub(super) struct PlanInput {
    pub(super) waiting: Vec<WaitingTask>,
    /// The agents that can get work. Lists of candidates keep this order.
    pub(super) agents: Vec<AgentId>,
    pub(super) facts: HashMap<TaskId, SiteFacts>,
    /// Pages and bytes assumed for a site of unknown size.
    pub(super) usual: Option<(u32, u64)>,
    /// Number of stored crawls of each waiting task's site.
    pub(super) crawls: Vec<usize>,
    /// Tasks whose lease was preempted.
    pub(super) preempted: HashMap<TaskId, PreemptedLease>,
    /// When each agent's slots become free, in the order of the agents.
    pub(super) frees: Vec<Vec<Duration>>,
    /// Whether each waiting task's site may be confirmed while the task waits.
    pub(super) confirmable: Vec<bool>,
    /// Why distances are not trusted, if there is an alarm.
    pub(super) alarm: Option<String>,
}

pub(super) struct PathDistances {
    known: Known,
    agents: Vec<AvailableAgent>,
    speeds: HashMap<AgentId, Speed>,
}

impl PathDistances {
    /// The agents as candidates for one waiting task.
    pub(super) fn candidates(&self, task: &WaitingTask) -> Vec<Candidate> {
        with_speeds(self.known.candidates(task.site, &self.agents, Draws::Balanced), &self.speeds)
    }
}

impl PlanInput {
    pub(super) async fn read(
        conn: &mut PgConnection,
        maps: &MapCache,
        (waiting, confirmation_states): (Vec<WaitingTask>, &HashMap<SiteId, ConfirmationState>),
        agents: Vec<AvailableAgent>,
        map: Option<Arc<CurrentMap>>,
    ) -> anyhow::Result<(Self, PathDistances)> {
        let sites: Vec<SiteId> = waiting.iter().map(|task| task.site).collect();
        let tasks: Vec<TaskId> = waiting.iter().map(|task| task.task).collect();
        let ids: Vec<AgentId> = agents.iter().map(|agent| agent.agent).collect();
        let known = Known::read(conn, maps, &sites, &agents, map).await?;
        let facts = site_facts::of_tasks(conn, &tasks).await.context("read what is known of the sites")?;
        let crawls = past_crawls::crawls(conn, &ids).await.context("read the agents' crawls")?;
        let held = loads::held(conn).await.context("read what the agents hold")?;
        let alarm = quarantines::alarm(conn).await.context("read the alarm")?;
        let preempted = preemptions::of_last_leases(conn, &tasks).await.context("read which leases were asked for")?;
        let confirmable = waiting.iter().map(|task| {
            let asked = preempted.contains_key(&task.task) || confirmation_states.contains_key(&task.site);
            alarm.is_none() && !asked && may_be_confirmed(task, &known)
        });
        let confirmable = confirmable.collect();
        let mut held_by: HashMap<AgentId, Vec<AgentCrawl>> = HashMap::new();
        for one in held {
            held_by.entry(one.agent).or_default().push(one);
        }
        let frees = agents.iter().map(|agent| frees(agent, held_by.get(&agent.agent).map_or(&[], Vec::as_slice)));
        let frees = frees.collect();
        let (usual, speeds) = (usual_size(&crawls), speeds(&crawls));
        let crawls = waiting.iter().map(|task| known.crawls(task.site)).collect();
        let input = Self { waiting, agents: ids, facts, usual, crawls, preempted, frees, confirmable, alarm };
        Ok((input, PathDistances { known, agents, speeds }))
    }

    /// The agents admitted to at least one waiting task.
    pub(super) fn wanted(&self, admission: &Admission) -> BTreeSet<AgentId> {
        let batches: BTreeSet<BatchId> = self.waiting.iter().map(|task| task.batch).collect();
        let there = self.agents.iter().copied();
        there.filter(|agent| batches.iter().any(|batch| admission.admits(*batch, *agent))).collect()
    }
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::model::{Rtt, Strategy};
    use crate::strategy::Spread;

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_site_that_is_for_who_might_be_nearer_says_that_it_explores(pool: PgPool) {
        let admission = Admission::read(&mut pool.acquire().await.expect("connect"), []).await.expect("read");
        let agents = [AgentId::new(1), AgentId::new(2)];
        let rtt = |millis| Rtt::try_from_millis_f64(millis).ok();
        let known = Candidate { measured: rtt(20.0), ..Candidate::new(agents[0], 1) };
        let unsure = Candidate { predicted: rtt(22.0), spread: Some(Spread::new(0.4)), ..Candidate::new(agents[1], 1) };
        let mut explored = 0;
        for task in 1..=40 {
            let input = PlanInput {
                waiting: vec![WaitingTask {
                    task: TaskId::new(task),
                    site: SiteId::new(1),
                    batch: BatchId::new(1),
                    strategy: Strategy::EarliestFinish,
                    unmeasured: None,
                    choices: 0,
                    former: None,
                    parted: None,
                    waited: Duration::ZERO,
                }],
                facts: HashMap::new(),
                usual: None,
                agents: agents.to_vec(),
                crawls: vec![2],
                preempted: HashMap::new(),
                frees: vec![vec![Duration::ZERO]; 2],
                confirmable: vec![false],
                alarm: None,
            };
            let decided = input.decided(&admission, Duration::from_secs(12), |_| vec![known, unsure]).decided;
            assert_eq!(decided[0].explores, decided[0].choice.agent == agents[1]);
            explored += usize::from(decided[0].explores);
        }
        assert!((10..=30).contains(&explored), "of 40, one in two: {explored}");
    }
}
