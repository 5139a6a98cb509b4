//! Admission: which agents may crawl for which batch, as one pass sees it.
//!
//! Read once for all batches of a pass, and kept up as the pass gives tasks to agents, so that a quota holds within it too. Who is
//! admitted is `constraints`, pure. A batch without constraints admits everybody.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::Context;
use sqlx::PgConnection;

use crate::constraints::{Constraints, Exclusion, Nobody, Spending, Traits, Unmet};
use crate::explain;
use crate::model::{AgentId, BatchId, TaskId};
use crate::store::{constraints, unmet};

/// Who may crawl for whom.
#[derive(Debug)]
pub(super) struct Admission {
    constraints: HashMap<BatchId, Constraints>,
    /// The agents that are enrolled, be they away.
    fleet: BTreeMap<AgentId, Traits>,
    spending: HashMap<(BatchId, AgentId), Spending>,
    /// Bytes that a site of each batch is expected to cost.
    expected: HashMap<BatchId, u64>,
    excluded: HashMap<BatchId, BTreeMap<AgentId, Exclusion>>,
    /// Under which number the excluded of a batch are stored, as long as they are the same.
    stored: HashMap<BatchId, i64>,
}

/// What becomes of a batch's tasks that nobody gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    /// They wait, because of this.
    Wait(Nobody),
    /// They fail, with this reason for people.
    Fail(String),
}

impl Admission {
    /// Reads what these batches ask, and how the fleet stands to that.
    pub(super) async fn read(
        conn: &mut PgConnection,
        batches: impl IntoIterator<Item = BatchId>,
    ) -> anyhow::Result<Self> {
        let batches: BTreeSet<BatchId> = batches.into_iter().collect();
        let batches: Vec<BatchId> = batches.into_iter().collect();
        let asked = constraints::of_batches(conn, &batches).await.context("read the batches' constraints")?;
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
        read.fleet = constraints::traits(conn).await.context("read what constraints look at in agents")?;
        let limited = |(batch, asked): (&BatchId, &Constraints)| asked.bytes_per_day.map(|_| *batch);
        let limited: Vec<BatchId> = read.constraints.iter().filter_map(limited).collect();
        if !limited.is_empty() {
            (read.spending, read.expected) =
                constraints::spending(conn, &limited).await.context("read what was fetched for the batches")?;
        }
        for (batch, asked) in &read.constraints {
            let refused = |(agent, traits): (&AgentId, &Traits)| {
                Some((*agent, asked.refuses(traits, read.spending(*batch, *agent))?))
            };
            read.excluded.insert(*batch, read.fleet.iter().filter_map(refused).collect());
        }
        Ok(read)
    }

    fn spending(&self, batch: BatchId, agent: AgentId) -> Spending {
        let expected = self.expected.get(&batch).copied().unwrap_or_default();
        self.spending.get(&(batch, agent)).copied().unwrap_or(Spending { expected, ..Spending::default() })
    }

    /// Whether an agent may get a task of a batch.
    pub(super) fn admits(&self, batch: BatchId, agent: AgentId) -> bool {
        self.excluded.get(&batch).is_none_or(|excluded| {
            // Whoever enrolled after the fleet was read is looked at in the next pass.
            self.fleet.contains_key(&agent) && !excluded.contains_key(&agent)
        })
    }

    /// Takes note that an agent got a task of a batch.
    pub(super) fn took(&mut self, batch: BatchId, agent: AgentId) {
        self.now_has(batch, agent, |tasks| tasks.saturating_add(1));
    }

    /// Takes note that a task of a batch went from an agent.
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

    /// The number under which those are stored that a batch excludes; `None` when it excludes nobody.
    pub(super) async fn exclusions(&mut self, conn: &mut PgConnection, batch: BatchId) -> anyhow::Result<Option<i64>> {
        let Some(excluded) = self.excluded.get(&batch).filter(|excluded| !excluded.is_empty()) else { return Ok(None) };
        if let Some(stored) = self.stored.get(&batch) {
            return Ok(Some(*stored));
        }
        let stored = constraints::remember(conn, batch, excluded).await.context("store who is excluded")?;
        self.stored.insert(batch, stored);
        Ok(Some(stored))
    }

    /// Tasks of a batch that these agents may get, at most `most`.
    pub(super) fn room(&self, batch: BatchId, agents: impl IntoIterator<Item = AgentId>, most: u64) -> u64 {
        let Some(asked) = self.constraints.get(&batch) else { return most };
        let admitted = agents.into_iter().filter(|agent| self.admits(batch, *agent));
        let room = admitted.map(|agent| asked.room(self.spending(batch, agent), most));
        room.fold(0, u64::saturating_add).min(most)
    }

    /// What becomes of a batch's tasks when nobody that takes work is admitted.
    ///
    /// A quota fails no task: it is there again within a day. Nor does it when those who meet the constraints are away.
    pub(super) fn fate(&self, batch: BatchId) -> Option<Fate> {
        let asked = self.constraints.get(&batch)?;
        let nobody = Nobody::of(self.fleet.len(), self.excluded.get(&batch)?.values());
        let for_good = self.fleet.values().all(|agent| asked.excludes(agent).is_some());
        let fails = for_good && asked.unmet == Unmet::Fail;
        Some(if fails { Fate::Fail(explain::nobody(asked, &nobody)) } else { Fate::Wait(nobody) })
    }

    /// The agents that may not begin what waits at them of a batch.
    pub(super) fn withdrawn(&self) -> Vec<(BatchId, AgentId)> {
        let mut withdrawn = Vec::new();
        for (batch, asked) in &self.constraints {
            let may_not = |agent: &AgentId, traits: &Traits| {
                asked.withdraws(traits, self.spending(*batch, *agent).fetched).is_some()
            };
            let agents = self.fleet.iter().filter(|(agent, traits)| may_not(agent, traits));
            withdrawn.extend(agents.map(|(agent, _)| (*batch, *agent)));
        }
        withdrawn.sort_unstable();
        withdrawn
    }

    /// Holds tasks that nobody gets, which are locked, or fails them where their batch says so.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use chrono::DateTime;
    use sqlx::PgPool;

    use super::*;
    use crate::constraints::ConstraintsRequest;
    use crate::model::{LeaseToken, SessionId, WaitCause};
    use crate::store::batch_changes::{self, Extent};
    use crate::store::outcomes::{Ending, Report};
    use crate::store::{drains, fixtures, leases};
    use crate::tasks::assign::Assign;
    use crate::tasks::balance::Balance;
    use crate::tasks::trial::Trial;

    /// Agents of two slots, 10, 20, 30 ms and so on from every site.
    struct Scene {
        trial: Trial,
        agents: Vec<(AgentId, SessionId)>,
    }

    impl Scene {
        async fn new(pool: PgPool, agents: usize) -> Self {
            let trial = Trial::new(pool).await;
            let agents = trial.connect(agents).await;
            Self { trial, agents }
        }

        /// A batch that asks this of its agents.
        async fn batch(&self, name: &str, asked: ConstraintsRequest) -> BatchId {
            let batch = self.trial.batch(name, "gnp-top3").await;
            let asked = asked.checked().expect("constraints");
            constraints::settle(&mut *self.trial.conn().await, batch, &asked).await.expect("settle");
            batch
        }

        async fn located(&self, batch: BatchId, host: &str) -> TaskId {
            let mut conn = self.trial.conn().await;
            let site = fixtures::site(&mut conn, host).await;
            let distances: Vec<_> =
                (1..).zip(&self.agents).map(|(place, (agent, _))| (*agent, Some(place * 10))).collect();
            self.trial.measured(site, &distances).await;
            fixtures::task(&mut conn, batch, site, "located").await
        }

        async fn tag(&self, place: usize, tags: &[&str]) {
            let tags: Vec<String> = tags.iter().map(|&tag| tag.to_owned()).collect();
            constraints::set_tags(&mut *self.trial.conn().await, self.agents[place].0, &tags).await.expect("tag");
        }

        async fn pass(&self) {
            Assign::new(self.trial.plan()).run_once().await.expect("a pass");
        }

        /// The place of the agent that has a task now.
        async fn at(&self, task: TaskId) -> Option<usize> {
            let agent: Option<i64> = sqlx::query_scalar("select agent_id from tasks where id = $1")
                .bind(task.get())
                .fetch_one(&self.trial.scheduler.pool)
                .await
                .expect("read");
            agent.map(|agent| self.agents.iter().position(|(id, _)| id.get() == agent).expect("one of them"))
        }

        async fn waits_for(&self, task: TaskId) -> String {
            let state = self.trial.state(task).await.0;
            let wait = self.trial.wait(task).await.expect("it waits");
            assert_eq!((state.as_str(), self.at(task).await, wait.cause), ("located", None, WaitCause::Unmet));
            wait.about.text()
        }

        /// Leases granted to the agent in this place.
        async fn grant(&self, place: usize) -> Vec<(TaskId, LeaseToken)> {
            let (agent, session) = self.agents[place];
            let granted = leases::grant(&mut *self.trial.conn().await, agent, session).await.expect("grant");
            granted.iter().map(|grant| (grant.task, grant.token)).collect()
        }

        async fn fetched(&self, place: usize, (task, token): (TaskId, LeaseToken), bytes: u64) {
            let report = Report {
                task,
                token,
                ending: Ending::Complete,
                pages: 1,
                bytes,
                errors: 0,
                started_at: DateTime::UNIX_EPOCH,
                duration: Duration::from_secs(1),
                rtt: None,
                message: String::new(),
                refetched: 0,
                trapped: 0,
            };
            fixtures::record(&mut *self.trial.conn().await, self.agents[place].0, &report).await;
        }
    }

    fn tagged(tags: &[&str]) -> ConstraintsRequest {
        ConstraintsRequest { tags: tags.iter().map(|&tag| tag.to_owned()).collect(), ..ConstraintsRequest::default() }
    }

    fn limited(bytes: u64) -> ConstraintsRequest {
        ConstraintsRequest { bytes_per_day: Some(bytes), ..ConstraintsRequest::default() }
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_task_that_nobody_may_crawl_says_so_and_is_chosen_for_when_one_comes(pool: PgPool) {
        let mut scene = Scene::new(pool, 3).await;
        let batch = scene.batch("fast", tagged(&["fast"])).await;
        let plain = scene.trial.batch("plain", "gnp-top3").await;
        let (task, other) = (scene.located(batch, "a.cn").await, scene.located(plain, "b.cn").await);
        scene.pass().await;
        assert_eq!(scene.waits_for(task).await, "no agent meets the constraints: 3 of 3 lack the tag 'fast'");
        assert!(scene.at(other).await.is_some(), "nobody else waits for it");
        let joined = fixtures::agent(&mut *scene.trial.conn().await, "a3").await;
        scene.agents.push((joined, scene.trial.session(joined).await));
        scene.pass().await;
        assert_eq!(scene.waits_for(task).await, "no agent meets the constraints: 4 of 4 lack the tag 'fast'");
        scene.tag(3, &["fast", "x"]).await;
        scene.pass().await;
        assert_eq!(scene.at(task).await, Some(3));
        assert_eq!(scene.trial.count("select count(*) from task_holds").await, 0);
        let excluded: (Vec<i64>, Vec<String>) =
            sqlx::query_as("select x.agents, x.causes from assignments c join exclusions x on x.id = c.exclusions_id")
                .fetch_one(&scene.trial.scheduler.pool)
                .await
                .expect("one of the two choices excluded somebody");
        assert_eq!(excluded.0, [0, 1, 2].map(|place: usize| scene.agents[place].0.get()));
        assert_eq!(excluded.1, ["tag:fast"; 3]);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_nobody_may_crawl_takes_no_place_at_its_address(pool: PgPool) {
        let scene = Scene::new(pool, 1).await;
        let (fast, plain) =
            (scene.batch("fast", tagged(&["fast"])).await, scene.trial.batch("plain", "gnp-top3").await);
        let mut waits = Vec::new();
        for host in ["a.cn", "b.cn", "c.cn", "d.cn"] {
            waits.push(scene.located(fast, host).await);
        }
        scene.trial.execute("update sites set crawled_address = '192.0.2.7'").await;
        // Four sites there: two at once, and the others' turn comes in the next passes.
        for _ in 0..3 {
            scene.pass().await;
        }
        for task in waits {
            assert_eq!(scene.waits_for(task).await, "no agent meets the constraints: 1 of 1 lacks the tag 'fast'");
        }
        let task = scene.located(plain, "a.cn").await;
        scene.pass().await;
        assert_eq!(scene.at(task).await, Some(0));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_task_fails_where_its_batch_says_so_and_can_go_again(pool: PgPool) {
        let scene = Scene::new(pool, 2).await;
        let asked = ConstraintsRequest { countries: vec!["JP".into()], unmet: Some(Unmet::Fail), ..tagged(&["fast"]) };
        let batch = scene.batch("b", asked).await;
        let task = scene.located(batch, "a.cn").await;
        scene.pass().await;
        let reason = "no agent meets the constraints: 2 of 2 are not in JP".to_owned();
        assert_eq!(scene.trial.state(task).await, ("failed".into(), Some(reason)));
        let mut conn = scene.trial.conn().await;
        let again = batch_changes::retry(&mut conn, batch, "b", &Extent::All).await.expect("retry");
        assert_eq!(again.tasks, 1);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn nothing_fails_while_one_that_may_crawl_it_is_away(pool: PgPool) {
        let scene = Scene::new(pool, 2).await;
        scene.tag(0, &["fast"]).await;
        let batch = scene.batch("b", ConstraintsRequest { unmet: Some(Unmet::Fail), ..tagged(&["fast"]) }).await;
        let task = scene.located(batch, "a.cn").await;
        drains::drain(&mut *scene.trial.conn().await, "a0").await.expect("drain");
        scene.pass().await;
        let reason = "the 1 agent that meets the constraints takes no work now: see `landfall agents list`";
        assert_eq!(scene.waits_for(task).await, reason);
        drains::resume(&mut *scene.trial.conn().await, "a0").await.expect("resume");
        scene.pass().await;
        assert_eq!(scene.at(task).await, Some(0));
        // And once nobody has the tag any more, what waits fails.
        scene.tag(0, &[]).await;
        scene.pass().await;
        assert_eq!(scene.trial.state(task).await.0, "failed");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_agent_that_loses_its_tag_keeps_what_it_has_leased_and_nothing_else(pool: PgPool) {
        let scene = Scene::new(pool, 2).await;
        scene.tag(1, &["fast"]).await;
        let (batch, plain) = (scene.batch("b", tagged(&["fast"])).await, scene.trial.batch("plain", "gnp-top1").await);
        let mut tasks = Vec::new();
        for host in ["a.cn", "b.cn", "c.cn"] {
            tasks.push(scene.located(batch, host).await);
        }
        scene.pass().await;
        let leased = scene.grant(1).await;
        assert_eq!(leased.len(), 2);
        let other = fixtures::assigned(
            &mut *scene.trial.conn().await,
            plain,
            fixtures::site(&mut *scene.trial.conn().await, "d.cn").await,
            scene.agents[1].0,
        )
        .await;
        scene.tag(1, &[]).await;
        scene.pass().await;
        for (task, _) in &leased {
            assert_eq!(scene.trial.state(*task).await.0, "leased");
        }
        let waits = tasks.iter().find(|task| leased.iter().all(|(one, _)| one != *task)).expect("the third");
        assert_eq!(scene.waits_for(*waits).await, "no agent meets the constraints: 2 of 2 lack the tag 'fast'");
        assert_eq!(scene.at(other).await, Some(1), "what asks for nothing stays");
        scene.tag(0, &["fast"]).await;
        scene.pass().await;
        assert_eq!(scene.at(*waits).await, Some(0));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_quota_that_is_used_up_is_waited_for_until_the_day_has_passed(pool: PgPool) {
        let scene = Scene::new(pool, 1).await;
        let batch = scene.batch("b", ConstraintsRequest { unmet: Some(Unmet::Fail), ..limited(1000) }).await;
        let (first, second) = (scene.located(batch, "a.cn").await, scene.located(batch, "b.cn").await);
        let used_up = "no agent meets the constraints: 1 of 1 has used up 1.0 kB a day, or will with what is under way";
        scene.pass().await;
        assert_eq!(scene.at(first).await, Some(0), "one is begun, however much it may cost");
        assert_eq!(scene.waits_for(second).await, used_up, "and a quota fails nothing");
        let leased = scene.grant(0).await;
        scene.fetched(0, leased[0], 400).await;
        scene.pass().await;
        assert_eq!(scene.at(second).await, Some(0), "there was something left");
        let leased = scene.grant(0).await;
        scene.fetched(0, leased[0], 600).await;
        let third = scene.located(batch, "c.cn").await;
        scene.pass().await;
        assert_eq!(scene.waits_for(third).await, used_up);
        scene.trial.execute("update quota_spending set hour = hour - interval '23 hours'").await;
        scene.pass().await;
        assert_eq!(scene.waits_for(third).await, used_up);
        scene.trial.execute("update quota_spending set hour = hour - interval '2 hours'").await;
        scene.pass().await;
        assert_eq!(scene.at(third).await, Some(0));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn as_much_is_given_as_fits_a_quota_and_what_waits_is_taken_back_when_it_is_used_up(pool: PgPool) {
        let scene = Scene::new(pool, 1).await;
        let batch = scene.batch("b", limited(1000)).await;
        let mut tasks = Vec::new();
        for number in 0..10 {
            tasks.push(scene.located(batch, &format!("s{number}.cn")).await);
        }
        scene.pass().await;
        let leased = scene.grant(0).await;
        assert_eq!(leased.len(), 1);
        scene.fetched(0, leased[0], 200).await;
        let assigned = "select count(*) from tasks where state = 'assigned'";
        scene.pass().await;
        assert_eq!(scene.trial.count(assigned).await, 4, "of 800 bytes that are left");
        scene.pass().await;
        assert_eq!(scene.trial.count(assigned).await, 4);
        let leased = scene.grant(0).await;
        assert_eq!(leased.len(), 2);
        scene.fetched(0, leased[0], 5000).await;
        scene.pass().await;
        assert_eq!(scene.trial.count(assigned).await, 0);
        assert_eq!(scene.trial.count("select count(*) from tasks where state = 'leased'").await, 1);
        assert_eq!(scene.trial.count("select count(*) from task_holds").await, 7);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn nothing_passes_to_an_agent_that_its_batch_excludes(pool: PgPool) {
        let mut scene = Scene::new(pool, 2).await;
        scene.tag(0, &["fast"]).await;
        scene.tag(1, &["fast"]).await;
        let (batch, plain) = (scene.batch("b", tagged(&["fast"])).await, scene.trial.batch("plain", "random").await);
        for number in 0..8 {
            scene.located(batch, &format!("s{number}.cn")).await;
            scene.located(plain, &format!("p{number}.cn")).await;
        }
        scene.pass().await;
        // It comes when everything is assigned, is nearer than all, and has nothing to do.
        let joined = fixtures::agent(&mut *scene.trial.conn().await, "a2").await;
        scene.agents.push((joined, scene.trial.session(joined).await));
        for site in sqlx::query_scalar::<_, i64>("select id from sites")
            .fetch_all(&scene.trial.scheduler.pool)
            .await
            .expect("sites")
        {
            scene.trial.measured(crate::model::SiteId::new(site), &[(joined, Some(1))]).await;
        }
        let at_it =
            "select count(*) from tasks t join agents a on a.id = t.agent_id join batches b on b.id = t.batch_id
                     where a.name = 'a2' and b.name = 'b'";
        let others =
            "select count(*) from tasks t join agents a on a.id = t.agent_id join batches b on b.id = t.batch_id
                      where a.name = 'a2' and b.name = 'plain'";
        for _ in 0..5 {
            Balance::new(scene.trial.plan()).run_once().await.expect("a pass");
            // At once: the next pass would take it back.
            assert_eq!(scene.trial.count(at_it).await, 0);
            scene.pass().await;
        }
        assert!(scene.trial.count(others).await > 0, "what asks for nothing goes there");
        // With one gone, the next candidate is one of those that may.
        drains::drain(&mut *scene.trial.conn().await, "a0").await.expect("drain");
        scene.pass().await;
        assert_eq!(scene.trial.count(at_it).await, 0);
        let assigned =
            "select count(*) from tasks t join agents a on a.id = t.agent_id join batches b on b.id = t.batch_id
                        where a.name = 'a1' and b.name = 'b'";
        assert_eq!(scene.trial.count(assigned).await, 8);
        scene.tag(2, &["fast"]).await;
        scene
            .trial
            .execute("update tasks set state = 'cancelled' from batches b where b.id = batch_id and b.name = 'plain'")
            .await;
        Balance::new(scene.trial.plan()).run_once().await.expect("a pass");
        assert!(scene.trial.count(at_it).await > 0, "and once it may, it gets some");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_was_cancelled_while_it_waited_is_forgotten(pool: PgPool) {
        let scene = Scene::new(pool, 1).await;
        let batch = scene.batch("b", tagged(&["fast"])).await;
        scene.located(batch, "a.cn").await;
        scene.pass().await;
        assert_eq!(scene.trial.count("select count(*) from task_holds").await, 1);
        let mut conn = scene.trial.conn().await;
        batch_changes::cancel(&mut conn, batch, "b", &Extent::All).await.expect("cancel");
        scene.tag(0, &["fast"]).await;
        assert_eq!(scene.trial.count("select count(*) from task_holds").await, 0);
        scene.pass().await;
        assert_eq!(scene.trial.count("select count(*) from tasks where state = 'cancelled'").await, 1);
    }
}
