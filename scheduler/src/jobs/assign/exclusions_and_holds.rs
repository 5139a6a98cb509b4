//! Decides which agents the constraints and quotas of batches exclude, and which tasks wait or fail
//! because no agent may crawl them; withdraws tasks from excluded and unavailable agents; holds
//! tasks until a circuit closes or their address permits a further crawl.
//!
//! The data for admission are read once for all batches of a pass. Each assignment updates these
//! data, so that the tasks assigned in one pass do not together exceed a quota. The pure module
//! `constraints` decides admission. A batch without constraints admits every agent. Tasks are held
//! before agents are chosen for the other tasks.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use futures_util::FutureExt as _;
use sqlx::PgConnection;
use sqlx::types::ipnet::IpNet;

use crate::jobs::leadership::Leader;
use crate::model::constraints::{AgentTraits, Constraints, Exclusion, NoEligibleAgent, UnmetAction};
use crate::model::quota_and_address_budget::QuotaUse;
use crate::model::{AgentId, BatchId, TaskId};
use crate::store::assignments::{self, UnassignScope, WaitingTask, agents_and_loads};
use crate::store::batches::constraints_and_quotas;
use crate::store::sites::{addresses, open_circuits};
use crate::store::tasks::holds::{self, HoldFilter};
use crate::store::tasks::unmet_and_wait_causes;
use crate::store::{Locked, Tx};
use crate::strategy::explain;

#[derive(Debug, Clone)]
pub(super) struct Admission {
    constraints: HashMap<BatchId, Constraints>,
    /// All enrolled agents, including disconnected ones.
    fleet: BTreeMap<AgentId, AgentTraits>,
    spending: HashMap<(BatchId, AgentId), QuotaUse>,
    /// The expected number of bytes per site, for each batch.
    expected: HashMap<BatchId, u64>,
    excluded: HashMap<BatchId, BTreeMap<AgentId, Exclusion>>,
    /// For each batch, the row number of its stored set of excluded agents. A batch's row number is
    /// removed from this map when its set of excluded agents changes.
    stored: HashMap<BatchId, i64>,
}

impl Admission {
    /// Reads the constraints of these batches, and finds the agents that the constraints exclude.
    pub(super) async fn read(
        conn: &mut PgConnection,
        batches: impl IntoIterator<Item = BatchId>,
    ) -> anyhow::Result<Self> {
        let batches: BTreeSet<BatchId> = batches.into_iter().collect();
        let batches: Vec<BatchId> = batches.into_iter().collect();
        let asked = constraints_and_quotas::of_batches(conn, &batches).await?;
        let mut read = Self {
            constraints: asked,
            fleet: BTreeMap::new(),
            spending: HashMap::new(),
            expected: HashMap::new(),
            excluded: HashMap::new(),
            stored: HashMap::new(),
        };
        if read.constraints.is_empty() {
            return Ok(read);
        }
        read.fleet = constraints_and_quotas::traits(conn).await?;
        let limited = |(batch, asked): (&BatchId, &Constraints)| asked.bytes_per_day.map(|_| *batch);
        let limited: Vec<BatchId> = read.constraints.iter().filter_map(limited).collect();
        if !limited.is_empty() {
            (read.spending, read.expected) = constraints_and_quotas::spending(conn, &limited).await?;
        }
        for (batch, asked) in &read.constraints {
            let refused = |(agent, traits): (&AgentId, &AgentTraits)| {
                Some((*agent, asked.refuses(traits, read.spending(*batch, *agent))?))
            };
            read.excluded.insert(*batch, read.fleet.iter().filter_map(refused).collect());
        }
        Ok(read)
    }

    fn spending(&self, batch: BatchId, agent: AgentId) -> QuotaUse {
        let expected = self.expected.get(&batch).copied().unwrap_or_default();
        self.spending.get(&(batch, agent)).copied().unwrap_or(QuotaUse { expected, ..QuotaUse::default() })
    }

    /// Whether an agent may get a task of a batch.
    pub(super) fn admits(&self, batch: BatchId, agent: AgentId) -> bool {
        self.excluded.get(&batch).is_none_or(|excluded| {
            // An agent that enrolled after the fleet was read becomes a candidate in the next pass.
            self.fleet.contains_key(&agent) && !excluded.contains_key(&agent)
        })
    }

    /// Records that an agent got a task of a batch.
    pub(super) fn took(&mut self, batch: BatchId, agent: AgentId) {
        self.now_has(batch, agent, |tasks| tasks.saturating_add(1));
    }

    /// Records that a task of a batch was taken from an agent.
    pub(super) fn gave(&mut self, batch: BatchId, agent: AgentId) {
        self.now_has(batch, agent, |tasks| tasks.saturating_sub(1));
    }

    fn now_has(&mut self, batch: BatchId, agent: AgentId, tasks: impl FnOnce(u32) -> u32) {
        let (Some(asked), Some(traits)) = (self.constraints.get(&batch), self.fleet.get(&agent)) else { return };
        if asked.bytes_per_day.is_none() {
            return;
        }
        let mut spending = self.spending(batch, agent);
        spending.under_way = tasks(spending.under_way);
        let refused = asked.refuses(traits, spending);
        self.spending.insert((batch, agent), spending);
        let excluded = self.excluded.entry(batch).or_default();
        let before = match &refused {
            Some(exclusion) => excluded.insert(agent, exclusion.clone()),
            None => excluded.remove(&agent),
        };
        if before != refused {
            self.stored.remove(&batch);
        }
    }

    /// The row number of the batch's stored set of excluded agents; `None` if the batch excludes no
    /// agent. If the set of excluded agents is not stored yet, this function stores it first.
    pub(super) async fn exclusions(&mut self, tx: &mut Tx<'_>, batch: BatchId) -> anyhow::Result<Option<i64>> {
        let Some(excluded) = self.excluded.get(&batch).filter(|excluded| !excluded.is_empty()) else { return Ok(None) };
        if let Some(stored) = self.stored.get(&batch) {
            return Ok(Some(*stored));
        }
        let stored = constraints_and_quotas::remember(tx, batch, excluded).await?;
        self.stored.insert(batch, stored);
        Ok(Some(stored))
    }

    /// How many more tasks of a batch these agents may get in total, at most `most`.
    pub(super) fn room(&self, batch: BatchId, agents: impl IntoIterator<Item = AgentId>, most: u64) -> u64 {
        let Some(quota) = self.constraints.get(&batch).map(|asked| asked.bytes_per_day) else { return most };
        let admitted = agents.into_iter().filter(|agent| self.admits(batch, *agent));
        let room = admitted.map(|agent| quota.map_or(most, |quota| self.spending(batch, agent).room(quota, most)));
        room.fold(0, u64::saturating_add).min(most)
    }

    /// Pairs of a batch and an agent that may no longer begin its assigned tasks of this batch.
    pub(super) fn withdrawn(&self) -> Vec<(BatchId, AgentId)> {
        let mut withdrawn = Vec::new();
        for (batch, asked) in &self.constraints {
            let may_not = |agent: &AgentId, traits: &AgentTraits| {
                asked.withdraws(traits, self.spending(*batch, *agent).fetched).is_some()
            };
            let agents = self.fleet.iter().filter(|(agent, traits)| may_not(agent, traits));
            withdrawn.extend(agents.map(|(agent, _)| (*batch, *agent)));
        }
        withdrawn.sort_unstable();
        withdrawn
    }
}

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

    /// Holds these tasks, which no agent may crawl, or fails them if [`Self::fate`] says so.
    pub(super) async fn set_aside(
        &self,
        tx: &mut Tx<'_>,
        tasks: &BTreeMap<BatchId, Vec<Locked<TaskId>>>,
    ) -> anyhow::Result<()> {
        for (batch, tasks) in tasks {
            match self.fate(*batch) {
                Some(Fate::Fail(reason)) => {
                    unmet_and_wait_causes::fail(tx, tasks, &reason).await?;
                }
                Some(Fate::Wait(why)) => {
                    unmet_and_wait_causes::hold(tx, *batch, tasks, &why).await?;
                }
                None => {}
            }
        }
        Ok(())
    }
}

/// Releases tasks held as unmet if an agent may now crawl them. Stores why the other tasks held
/// as unmet still wait.
pub(super) async fn release_unmet(scheduler: &Leader, limit: i64) -> anyhow::Result<()> {
    if scheduler.tx("release unmet tasks", |tx| release_some_unmet(tx, limit).boxed()).await? {
        scheduler.wakes.confirm.notify_one();
    }
    Ok(())
}

async fn release_some_unmet(tx: &mut Tx<'_>, limit: i64) -> anyhow::Result<bool> {
    let batches = unmet_and_wait_causes::batches(tx).await?;
    if batches.is_empty() {
        return Ok(false);
    }
    let agents = agents_and_loads::available(tx).await?;
    let admission = Admission::read(tx, batches.iter().copied()).await?;
    let mut any = false;
    for batch in batches {
        let there = agents.iter().map(|available| available.agent);
        let room = admission.room(batch, there, limit.unsigned_abs());
        if room > 0 {
            let released = unmet_and_wait_causes::release(tx, batch, None, room.cast_signed()).await?;
            tracing::debug!(batch.id = %batch, released, "agents meet the constraints of unmet tasks");
            any |= released > 0;
            continue;
        }
        match admission.fate(batch).filter(|_| !agents.is_empty()) {
            Some(Fate::Fail(reason)) => {
                unmet_and_wait_causes::release(tx, batch, Some(&reason), limit).await?;
            }
            Some(Fate::Wait(why)) => unmet_and_wait_causes::explain(tx, batch, &why).await?,
            None => {}
        }
    }
    Ok(any)
}

/// Withdraws a limited number of tasks from agents that are now excluded. Returns the
/// number of withdrawn tasks.
pub(super) async fn withdraw_excluded(scheduler: &Leader, limit: i64) -> anyhow::Result<u64> {
    let withdraw = scheduler.tx("withdraw from the excluded", |tx| {
        async move {
            let batches = unmet_and_wait_causes::assigned(tx).await?;
            if batches.is_empty() {
                return Ok(0);
            }
            let from = Admission::read(tx, batches).await?.withdrawn();
            Ok(assignments::unassign(tx, UnassignScope::Excluded(&from), limit).await?)
        }
        .boxed()
    });
    let withdrawn = withdraw.await?;
    if withdrawn > 0 {
        tracing::info!(withdrawn, "withdrew tasks from agents that constraints now exclude");
    }
    Ok(withdrawn)
}

/// Withdraws a limited number of tasks from agents that no longer take work. Returns the
/// number of withdrawn tasks.
pub(super) async fn withdraw_unavailable(scheduler: &Leader, limit: i64) -> anyhow::Result<u64> {
    let scope = UnassignScope::Unavailable(scheduler.config.lease.grace);
    let withdraw = scheduler.tx("withdraw from lost agents", |tx| {
        async move { Ok(assignments::unassign(tx, scope, limit).await?) }.boxed()
    });
    let withdrawn = withdraw.await?;
    if withdrawn > 0 {
        tracing::info!(withdrawn, "withdrew tasks from agents that are gone, draining or disconnected");
    }
    Ok(withdrawn)
}

/// Holds the tasks of sites whose circuit is open. Returns the other tasks.
pub(super) async fn hold_broken(
    tx: &mut Tx<'_>,
    waiting: Vec<WaitingTask>,
    locked: &HashSet<Locked<TaskId>>,
) -> anyhow::Result<Vec<WaitingTask>> {
    let tasks: Vec<_> = waiting.iter().filter_map(|task| locked.get(&task.task).copied()).collect();
    let held = open_circuits::hold(tx, &tasks).await?;
    Ok(without(waiting, &held.into_iter().collect()))
}

/// Holds the tasks whose known address permits no further crawl. Returns the other tasks. A
/// returned task with a known, shared address now counts toward the crawls that the address
/// permits.
pub(super) async fn hold_ahead(
    tx: &mut Tx<'_>,
    waiting: Vec<WaitingTask>,
    locked: &HashSet<Locked<TaskId>>,
    cap: u32,
) -> anyhow::Result<Vec<WaitingTask>> {
    let tasks: Vec<_> = waiting.iter().filter_map(|task| locked.get(&task.task).copied()).collect();
    let held = addresses::hold(tx, &tasks, cap).await?;
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
    let release = scheduler.tx("release held tasks", |tx| {
        async move {
            let due = holds::release(tx, HoldFilter::Due, limit).await?.len();
            Ok((due, addresses::admit(tx, cap, from, limit).await?))
        }
        .boxed()
    });
    let (due, (admitted, place)) = release.await?;
    *next() = place;
    if due > 0 || admitted > 0 {
        tracing::debug!(due, admitted, "held tasks continue");
    }
    Ok(due > 0 || admitted > 0)
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use crate::jobs::fixtures::Trial;
    use crate::model::constraints::ConstraintsRequest;
    use crate::model::{CrawlEnding, LeaseToken, SiteId, WaitCause};
    use crate::store::agents::drain_remove_and_tag;
    use crate::store::batches::changes::ChangeKind;
    use crate::store::fixtures;
    use crate::store::leases::outcomes::OutcomeReport;

    use super::*;

    /// A batch with these constraints.
    async fn batch(trial: &Trial, name: &str, asked: ConstraintsRequest) -> BatchId {
        let batch = trial.batch(name, "gnp-top3").await;
        let asked = asked.checked().expect("constraints");
        fixtures::constrain(&mut *trial.conn().await, batch, &asked).await;
        batch
    }

    async fn waits_for(trial: &Trial, task: TaskId) -> String {
        let state = trial.state(task).await.0;
        let wait = trial.wait(task).await.expect("it waits");
        assert_eq!((state.as_str(), trial.at(task).await, wait.cause), ("located", None, WaitCause::Unmet));
        wait.about.text()
    }

    async fn fetched(trial: &Trial, (task, token): (TaskId, LeaseToken), bytes: u64) {
        let report = OutcomeReport { bytes, ..fixtures::report(task, token, CrawlEnding::Complete) };
        fixtures::record(&mut *trial.conn().await, trial.agents[0].0, &report).await;
    }

    fn tagged(tags: &[&str]) -> ConstraintsRequest {
        ConstraintsRequest { tags: tags.iter().map(|&tag| tag.to_owned()).collect(), ..ConstraintsRequest::default() }
    }

    fn limited(bytes: u64) -> ConstraintsRequest {
        ConstraintsRequest { bytes_per_day: Some(bytes), ..ConstraintsRequest::default() }
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_task_that_nobody_may_crawl_says_so_and_is_chosen_for_when_one_comes(pool: PgPool) {
        let mut trial = Trial::new(pool, 3).await;
        let batch = batch(&trial, "fast", tagged(&["fast"])).await;
        let plain = trial.batch("plain", "gnp-top3").await;
        let (task, other) = (trial.located(batch, "a.cn").await, trial.located(plain, "b.cn").await);
        trial.assign().await;
        assert_eq!(waits_for(&trial, task).await, "no agent meets the constraints: 3 of 3 lack the tag 'fast'");
        assert!(trial.at(other).await.is_some(), "nobody else waits for it");
        trial.join().await;
        trial.assign().await;
        assert_eq!(waits_for(&trial, task).await, "no agent meets the constraints: 4 of 4 lack the tag 'fast'");
        trial.tag(3, &["fast", "x"]).await;
        trial.assign().await;
        assert_eq!(trial.at(task).await, Some(3));
        assert_eq!(trial.count("select count(*) from task_holds").await, 0);
        let excluded = "select x.agents, x.causes from assignments c join exclusions x on x.id = c.exclusions_id";
        let excluded: (Vec<i64>, Vec<String>) = trial.rows(excluded).await.remove(0);
        assert_eq!(excluded.0, [0, 1, 2].map(|place: usize| trial.agents[place].0.get()));
        assert_eq!(excluded.1, ["tag:fast"; 3]);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_nobody_may_crawl_takes_no_place_at_its_address(pool: PgPool) {
        let trial = Trial::new(pool, 1).await;
        let (fast, plain) = (batch(&trial, "fast", tagged(&["fast"])).await, trial.batch("plain", "gnp-top3").await);
        let mut waits = Vec::new();
        for host in ["a.cn", "b.cn", "c.cn", "d.cn"] {
            waits.push(trial.located(fast, host).await);
        }
        trial.execute("update sites set crawled_address = '192.0.2.7'").await;
        // An address with four known sites permits two crawls at once (the square root of four), so
        // one pass handles only two of these tasks.
        for _ in 0..3 {
            trial.assign().await;
        }
        for task in waits {
            assert_eq!(waits_for(&trial, task).await, "no agent meets the constraints: 1 of 1 lacks the tag 'fast'");
        }
        let task = trial.located(plain, "a.cn").await;
        trial.assign().await;
        assert_eq!(trial.at(task).await, Some(0));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_task_fails_where_its_batch_says_so_and_can_go_again(pool: PgPool) {
        let trial = Trial::new(pool, 2).await;
        let asked =
            ConstraintsRequest { countries: vec!["JP".into()], unmet: Some(UnmetAction::Fail), ..tagged(&["fast"]) };
        let batch = batch(&trial, "b", asked).await;
        let task = trial.located(batch, "a.cn").await;
        trial.assign().await;
        let reason = "no agent meets the constraints: 2 of 2 are not in JP".to_owned();
        assert_eq!(trial.state(task).await, ("failed".into(), Some(reason)));
        let mut conn = trial.conn().await;
        let again = fixtures::change(&mut conn, batch, ChangeKind::Retry).await;
        assert_eq!(again.changed, 1);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn nothing_fails_while_one_that_may_crawl_it_is_away(pool: PgPool) {
        let trial = Trial::new(pool, 2).await;
        trial.tag(0, &["fast"]).await;
        let batch =
            batch(&trial, "b", ConstraintsRequest { unmet: Some(UnmetAction::Fail), ..tagged(&["fast"]) }).await;
        let task = trial.located(batch, "a.cn").await;
        fixtures::drain(&mut *trial.conn().await, "a0").await;
        trial.assign().await;
        let reason = "the 1 agent that meets the constraints takes no work now: see `landfall agents list`";
        assert_eq!(waits_for(&trial, task).await, reason);
        fixtures::tx(&mut *trial.conn().await, async |tx| drain_remove_and_tag::resume(tx, "a0").await)
            .await
            .expect("resume");
        trial.assign().await;
        assert_eq!(trial.at(task).await, Some(0));
        // The agent loses its tag. Now no agent has the tag, so the waiting tasks fail.
        trial.tag(0, &[]).await;
        trial.assign().await;
        assert_eq!(trial.state(task).await.0, "failed");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_agent_that_loses_its_tag_keeps_what_it_has_leased_and_nothing_else(pool: PgPool) {
        let trial = Trial::new(pool, 2).await;
        trial.tag(1, &["fast"]).await;
        let (batch, plain) = (batch(&trial, "b", tagged(&["fast"])).await, trial.batch("plain", "gnp-top1").await);
        let mut tasks = Vec::new();
        for host in ["a.cn", "b.cn", "c.cn"] {
            tasks.push(trial.located(batch, host).await);
        }
        trial.assign().await;
        let leased = trial.grant(1).await;
        assert_eq!(leased.len(), 2);
        let other = trial.assigned(plain, "d.cn", 1).await;
        trial.tag(1, &[]).await;
        trial.assign().await;
        for (task, _) in &leased {
            assert_eq!(trial.state(*task).await.0, "leased");
        }
        let waits = tasks.iter().find(|task| leased.iter().all(|(one, _)| one != *task)).expect("the third");
        assert_eq!(waits_for(&trial, *waits).await, "no agent meets the constraints: 2 of 2 lack the tag 'fast'");
        assert_eq!(trial.at(other).await, Some(1), "what asks for nothing stays");
        trial.tag(0, &["fast"]).await;
        trial.assign().await;
        assert_eq!(trial.at(*waits).await, Some(0));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_quota_that_is_used_up_is_waited_for_until_the_day_has_passed(pool: PgPool) {
        let trial = Trial::new(pool, 1).await;
        let batch = batch(&trial, "b", ConstraintsRequest { unmet: Some(UnmetAction::Fail), ..limited(1000) }).await;
        let (first, second) = (trial.located(batch, "a.cn").await, trial.located(batch, "b.cn").await);
        let used_up = "no agent meets the constraints: 1 of 1 has used up 1.0 kB a day, counting crawls under way";
        trial.assign().await;
        assert_eq!(trial.at(first).await, Some(0), "one is begun, however much it may cost");
        assert_eq!(waits_for(&trial, second).await, used_up, "and a quota fails nothing");
        let leased = trial.grant(0).await;
        fetched(&trial, leased[0], 400).await;
        trial.assign().await;
        assert_eq!(trial.at(second).await, Some(0), "there was something left");
        let leased = trial.grant(0).await;
        fetched(&trial, leased[0], 600).await;
        let third = trial.located(batch, "c.cn").await;
        trial.assign().await;
        assert_eq!(waits_for(&trial, third).await, used_up);
        trial.execute("update quota_spending set hour = hour - interval '23 hours'").await;
        trial.assign().await;
        assert_eq!(waits_for(&trial, third).await, used_up);
        trial.execute("update quota_spending set hour = hour - interval '2 hours'").await;
        trial.assign().await;
        assert_eq!(trial.at(third).await, Some(0));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn as_much_is_given_as_fits_a_quota_and_what_waits_is_taken_back_when_it_is_used_up(pool: PgPool) {
        let trial = Trial::new(pool, 1).await;
        let batch = batch(&trial, "b", limited(1000)).await;
        let mut tasks = Vec::new();
        for number in 0..10 {
            tasks.push(trial.located(batch, &format!("s{number}.cn")).await);
        }
        trial.assign().await;
        let leased = trial.grant(0).await;
        assert_eq!(leased.len(), 1);
        fetched(&trial, leased[0], 200).await;
        let assigned = "select count(*) from tasks where state = 'assigned'";
        trial.assign().await;
        assert_eq!(trial.count(assigned).await, 4, "of 800 bytes that are left");
        trial.assign().await;
        assert_eq!(trial.count(assigned).await, 4);
        let leased = trial.grant(0).await;
        assert_eq!(leased.len(), 2);
        fetched(&trial, leased[0], 5000).await;
        trial.assign().await;
        assert_eq!(trial.count(assigned).await, 0);
        assert_eq!(trial.count("select count(*) from tasks where state = 'leased'").await, 1);
        assert_eq!(trial.count("select count(*) from task_holds").await, 7);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn nothing_passes_to_an_agent_that_its_batch_excludes(pool: PgPool) {
        let mut trial = Trial::new(pool, 2).await;
        trial.tag(0, &["fast"]).await;
        trial.tag(1, &["fast"]).await;
        let (batch, plain) = (batch(&trial, "b", tagged(&["fast"])).await, trial.batch("plain", "random").await);
        for number in 0..8 {
            trial.located(batch, &format!("s{number}.cn")).await;
            trial.located(plain, &format!("p{number}.cn")).await;
        }
        trial.assign().await;
        // The new agent joins after all tasks are assigned. This agent is the nearest, and idle.
        let joined = trial.join().await;
        for (site,) in trial.rows::<(i64,)>("select id from sites").await {
            trial.measured(SiteId::new(site), &[(joined, Some(1))]).await;
        }
        let of = "select count(*) from tasks t join agents a on a.id = t.agent_id join batches b on b.id = t.batch_id
                  where a.name || ' ' || b.name = $1";
        let count = async |of_whom: &str| {
            let count: i64 =
                sqlx::query_scalar(of).bind(of_whom).fetch_one(trial.scheduler.db.pool()).await.expect("count");
            count
        };
        for _ in 0..5 {
            trial.balance().await;
            // The count is checked before `assign`, which would withdraw a task from an excluded
            // agent.
            assert_eq!(count("a2 b").await, 0);
            trial.assign().await;
        }
        assert!(count("a2 plain").await > 0, "what asks for nothing goes there");
        // If an agent leaves, the next candidate is an admitted agent.
        fixtures::drain(&mut *trial.conn().await, "a0").await;
        trial.assign().await;
        assert_eq!(count("a2 b").await, 0);
        assert_eq!(count("a1 b").await, 8);
        trial.tag(2, &["fast"]).await;
        trial
            .execute("update tasks set state = 'cancelled' from batches b where b.id = batch_id and b.name = 'plain'")
            .await;
        trial.balance().await;
        assert!(count("a2 b").await > 0, "and once it may, it gets some");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_was_cancelled_while_it_waited_is_forgotten(pool: PgPool) {
        let trial = Trial::new(pool, 1).await;
        let batch = batch(&trial, "b", tagged(&["fast"])).await;
        trial.located(batch, "a.cn").await;
        trial.assign().await;
        assert_eq!(trial.count("select count(*) from task_holds").await, 1);
        let mut conn = trial.conn().await;
        fixtures::change(&mut conn, batch, ChangeKind::Cancel).await;
        trial.tag(0, &["fast"]).await;
        assert_eq!(trial.count("select count(*) from task_holds").await, 0);
        trial.assign().await;
        assert_eq!(trial.count("select count(*) from tasks where state = 'cancelled'").await, 1);
    }
}
