//! Preempts stragglers of `earliest-finish`: running crawls that another agent would finish sooner.
//!
//! A pass fills idle slots when no site waits to be planned. While sites wait, a pass fills only
//! the slots of agents that may crawl none of the waiting sites. The pure module
//! `strategy::preemption` chooses the crawls. The agent returns the lease of a preempted
//! crawl with a checkpoint, and the task is then planned like any other. A crawl stays with its
//! agent if the crawl ends before the lease is returned, or if the agent does not receive or
//! support the preemption.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use futures_util::FutureExt as _;

use crate::config::Draws;
use crate::model::{AgentId, SiteId, TaskId};
use crate::store::assignments::agents_and_loads::{self, AvailableAgent};
use crate::store::assignments::past_crawls_and_site_facts;
use crate::store::leases::preemptions;
use crate::store::measurements::quarantines_and_contradictions;
use crate::store::{Tx, agents};
use crate::strategy::candidate_and_site::SiteFacts;
use crate::strategy::preemption::{self, UnderWay};
use crate::strategy::{Crawl, speeds, usual_size, with_speeds};

use super::distances::DistanceInput;
use crate::jobs::assign::exclusions_and_holds::Admission;

use crate::jobs::leadership::Leader;
use crate::jobs::predictor::Predictor;

/// Maximum number of crawls considered in a pass, the longest-running first. The maximum is small
/// because computing the distances of a site takes half a millisecond.
const LOOKED_AT: i64 = 32;
/// Time for which a slot is reserved for a preempted crawl, at the agent that would finish the
/// crawl sooner. The time is longer than the current agent needs to end a request, write a
/// checkpoint and wait one request interval of the site. If the current agent has not returned the
/// lease by then (for example, because it does not support preemptions), the slot is no longer
/// reserved.
const RESERVATION: Duration = Duration::from_secs(90);

/// One pass. Omits the slots of agents in `wanted`, because waiting tasks can use these slots.
/// Reads almost nothing if every crawl began recently, no slot is idle, or there is an alarm.
pub(super) async fn run(scheduler: &Leader, predictor: &Predictor, wanted: &BTreeSet<AgentId>) -> anyhow::Result<()> {
    let read = scheduler.tx("read crawls under way", |tx| PreemptInput::read(tx, predictor, wanted).boxed());
    let Some(input) = read.await? else { return Ok(()) };
    let moves = scheduler.compute(move || input.moves()).await?;
    if moves.is_empty() {
        return Ok(());
    }
    let moves = &moves;
    let ask = scheduler.tx("ask for slow crawls", |tx| {
        async move {
            let mut told = Vec::new();
            for (crawl, one) in moves {
                if preemptions::ask(tx, crawl, one.to, one.here, one.there).await? {
                    told.push((crawl, one));
                }
            }
            let known = if told.is_empty() { BTreeMap::new() } else { agents::places(tx).await? };
            Ok((told, known))
        }
        .boxed()
    });
    let (told, known) = ask.await?;
    let named = |agent| known.get(&agent).map(|agent| agent.name.as_str());
    for (crawl, one) in &told {
        let (task, token, here, there) = (crawl.task, crawl.token, one.here, one.there);
        let (agent, to) = (named(crawl.agent), named(one.to));
        tracing::info!(task.id = %task, %token, agent.name = agent, to, ?here, ?there,
            "an agent is asked to hand a slow crawl back");
    }
    scheduler.wakes.wake_agents(told.iter().map(|(crawl, _)| crawl.agent));
    Ok(())
}

/// What a pass reads.
struct PreemptInput {
    crawls: Vec<preemptions::UnderWay>,
    agents: Vec<AvailableAgent>,
    /// For each agent, the number of slots in which a crawl could begin, excluding slots that are
    /// reserved for preempted crawls.
    free: BTreeMap<AgentId, u32>,
    distances: DistanceInput,
    facts: HashMap<TaskId, SiteFacts>,
    /// What the agents' crawls tell of the agents' speeds.
    taught: HashMap<AgentId, Vec<Crawl>>,
    admission: Admission,
}

impl PreemptInput {
    /// `None` if no crawl can be preempted.
    async fn read(tx: &mut Tx<'_>, predictor: &Predictor, wanted: &BTreeSet<AgentId>) -> anyhow::Result<Option<Self>> {
        let crawls = preemptions::under_way(tx, preemption::LEAST_UNDER_WAY, LOOKED_AT).await?;
        if crawls.is_empty() || quarantines_and_contradictions::alarm(tx).await?.is_some() {
            return Ok(None);
        }
        let agents = agents_and_loads::available(tx).await?;
        let reserved = preemptions::reserved_slots(tx, RESERVATION).await?;
        let free = |agent: &AvailableAgent| {
            let taken = agent.load.saturating_add(reserved.get(&agent.agent).copied().unwrap_or_default());
            (agent.agent, agent.capacity.saturating_sub(taken))
        };
        let mut free: BTreeMap<AgentId, u32> = agents.iter().map(free).collect();
        free.retain(|agent, _| !wanted.contains(agent));
        if free.values().all(|slots| *slots == 0) {
            return Ok(None);
        }
        let sites: Vec<SiteId> = crawls.iter().map(|crawl| crawl.site).collect();
        let tasks: Vec<TaskId> = crawls.iter().map(|crawl| crawl.task).collect();
        let ids: Vec<AgentId> = agents.iter().map(|agent| agent.agent).collect();
        let distances = DistanceInput::read(tx, predictor, &sites, &agents).await?;
        let facts = past_crawls_and_site_facts::of_tasks(tx, &tasks).await?;
        let taught = past_crawls_and_site_facts::crawls(tx, &ids).await?;
        let admission = Admission::read(tx, crawls.iter().map(|crawl| crawl.batch)).await?;
        Ok(Some(Self { crawls, agents, free, distances, facts, taught, admission }))
    }

    /// The crawls to preempt.
    fn moves(self) -> Vec<(preemptions::UnderWay, preemption::CrawlMove)> {
        let Self { crawls, agents, free, distances, facts, taught, admission } = self;
        let known = distances.predict();
        let (speeds, usual) = (speeds(&taught), usual_size(&taught));
        // Omits a crawl if its agent is not in `agents`, because distances are read only for
        // `agents`.
        let lasting = crawls.into_iter().filter_map(|crawl| {
            let mut candidates = with_speeds(known.candidates(crawl.site, &agents, Draws::Balanced), &speeds);
            let here = candidates.iter().find(|one| one.agent == crawl.agent).copied()?;
            candidates.retain(|one| admission.admits(crawl.batch, one.agent) && !crawl.crashed_at.contains(&one.agent));
            let facts: &SiteFacts = facts.get(&crawl.task)?;
            let mut work = facts.whole(usual);
            let takes = crawl.takes.or_else(|| here.distance().map(|distance| work.takes(distance, here.speed)))?;
            // The site's rate limit applies to every agent.
            work.interval = work.interval.max(crawl.interval.unwrap_or_default());
            let (took, at_most, most_pages) = (crawl.took, crawl.at_most, crawl.most_pages);
            let (fetched, sized, elsewhere) = (crawl.fetched, facts.size.is_some(), candidates);
            Some((crawl, UnderWay { took, takes, at_most, most_pages, work, sized, fetched, here, elsewhere }))
        });
        let (lasting, under_way): (Vec<_>, Vec<UnderWay>) = lasting.unzip();
        let moves = preemption::moves(&under_way, &free).into_iter();
        moves.filter_map(|one| Some((lasting.get(one.crawl)?.clone(), one))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sqlx::PgPool;

    use super::*;
    use crate::jobs::fixtures::Trial;
    use crate::model::{BatchId, ChoiceCause, ChoiceReasons, LeaseToken, SessionId, Strategy};
    use crate::store::agents::sessions::{self, Registration};
    use crate::store::fixtures;
    use crate::store::leases::checkpoints::{self, Checkpoint, RateState};

    const FIRST: LeaseToken = LeaseToken::new(1);

    /// A crawl at the first agent has run for a minute and is predicted to take ten minutes. The
    /// three agents are 400, 10 and 20 ms away from the site; the second and the third are idle.
    struct Scene {
        trial: Trial,
        batch: BatchId,
        site: SiteId,
        task: TaskId,
    }

    impl Scene {
        async fn new(pool: PgPool) -> Self {
            let trial = Trial::new(pool, 3).await;
            let batch = trial.batch("b", &Strategy::EarliestFinish.to_string()).await;
            trial
                .execute(
                    r#"update batches set policy = policy
                       || '{"request_interval_ms": 0, "max_pages": 100000, "max_duration_ms": 3600000}'"#,
                )
                .await;
            let task = trial.assigned(batch, "slow.cn", 0).await;
            let site = SiteId::new(trial.read_for("select site_id from tasks where id = $1", task.get()).await);
            assert_eq!(trial.grant(0).await, [(task, FIRST)]);
            trial.measured_by_all(site, &[400, 10, 20]).await;
            trial.execute("update assignments set crawl_ms = 600000").await;
            trial.execute("update leases set granted_at = now() - interval '60 s'").await;
            Self { trial, batch, site, task }
        }

        /// The index of the agent whose crawl was preempted, and of the agent that should take it
        /// over.
        async fn asked(&self) -> Option<(usize, usize)> {
            let rows: Vec<(i64, i64)> = self.trial.rows("select agent_id, to_agent_id from preemptions").await;
            let place = |id| self.trial.place(AgentId::new(id));
            rows.first().map(|&(from, to)| (place(from), place(to)))
        }

        async fn checkpoint(&self, pages: u32, rate_state: RateState) {
            let checkpoint = Checkpoint { task: self.task, token: FIRST, pages, state: vec![7], rate_state };
            let (agent, session) = self.trial.agents[0];
            let saved = checkpoints::save(&mut *self.trial.conn().await, agent, session, &checkpoint).await;
            assert!(saved.expect("save"));
        }

        async fn hands_back(&self) -> bool {
            let mut tx = crate::store::fixtures::begin(self.trial.scheduler.db.pool()).await;
            let back = preemptions::release(&mut tx, self.trial.agents[0].0, self.task, FIRST).await.expect("release");
            tx.commit().await.expect("commit");
            back
        }

        async fn told(&self, session: SessionId) -> Vec<preemptions::PreemptionOrder> {
            preemptions::take_unsent(&mut *self.trial.conn().await, self.trial.agents[0].0, session)
                .await
                .expect("take")
        }
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_straggler_is_asked_for_once_comes_back_and_goes_to_another_with_what_is_left_of_it(pool: PgPool) {
        let scene = Scene::new(pool).await;
        assert!(!scene.hands_back().await, "nobody asked for it");
        scene.trial.assign().await;
        assert_eq!(scene.asked().await, Some((0, 1)));
        let waiting =
            sessions::waiting(&mut *scene.trial.conn().await, scene.trial.agents[0].0, scene.trial.agents[0].1).await;
        assert!(waiting.expect("look").expect("a session").preemptions);
        let told = scene.told(scene.trial.agents[0].1).await;
        let told = &told[0];
        assert_eq!((told.task, told.token, told.to.as_str()), (scene.task, FIRST, "a1"));
        assert!((530..=540).contains(&told.here.as_secs()) && told.there < told.here / 10, "{told:?}");
        assert!(scene.told(scene.trial.agents[0].1).await.is_empty(), "told once");
        let registration = Registration { held: vec![(scene.task, FIRST)], ..fixtures::registration() };
        let mut conn = scene.trial.conn().await;
        let again = fixtures::open_session(&mut conn, scene.trial.agents[0].0, &registration).await.expect("open");
        drop(conn);
        assert_eq!(scene.told(again.session).await.len(), 1, "what was said to a session that broke may be lost");

        scene.trial.execute("update preemptions set to_agent_id = agent_id").await;
        scene.trial.assign().await;
        assert_eq!(scene.asked().await, Some((0, 0)), "once is enough");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_comes_back_is_planned_for_another_and_says_whose_it_was(pool: PgPool) {
        let scene = Scene::new(pool).await;
        scene.checkpoint(600, RateState::default()).await;
        scene.trial.assign().await;
        assert_eq!(scene.asked().await, Some((0, 1)));
        assert!(scene.hands_back().await);
        assert!(!scene.hands_back().await, "it is not its own any more");
        assert_eq!(scene.trial.state(scene.task).await, ("located".into(), None));
        // The first agent is now by far the nearest, but the crawl does not go back to it.
        scene.trial.measured(scene.site, &[(scene.trial.agents[0].0, Some(1))]).await;
        scene.trial.assign().await;
        let choice = "select c.agent_id, c.detail::text, c.crawl_ms from tasks t join assignments c on c.id = t.assignment_id where t.id = $1";
        let (agent, why, millis): (i64, String, i64) = scene.trial.row_for(choice, scene.task.get()).await;
        assert_eq!(agent, scene.trial.agents[1].0.get());
        let why: ChoiceReasons = serde_json::from_str(&why).expect("a cause");
        assert!(
            matches!(&why.cause, ChoiceCause::TakenBack { from, remaining_ms: 1.., takes_ms: Some(_) } if from == "a0"),
            "{why:?}"
        );
        // The site's size is unknown, so three tenths of the 600 known pages are assumed to remain.
        // These 180 pages need at least one round trip each.
        assert!((1800..4000).contains(&millis), "{millis}");
        let mut conn = scene.trial.conn().await;
        assert_eq!(scene.trial.grant(1).await[0].1, LeaseToken::new(2));
        assert!(
            preemptions::of_last_leases(&mut conn, &[scene.task]).await.expect("read").is_empty(),
            "it is another's now"
        );
        drop(conn);
        scene.trial.execute("update leases set granted_at = now() - interval '60 s' where state = 'active'").await;
        scene.trial.execute("update assignments set crawl_ms = 6000000").await;
        scene.trial.assign().await;
        assert_eq!(scene.asked().await, Some((0, 1)), "it is not asked for again, however long it takes");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn where_nobody_else_is_left_it_goes_back(pool: PgPool) {
        let scene = Scene::new(pool).await;
        scene.trial.assign().await;
        assert!(scene.hands_back().await);
        scene.trial.execute("update agents set draining_since = now() where name <> 'a0'").await;
        scene.trial.assign().await;
        assert_eq!(
            scene
                .trial
                .count("select count(*) from tasks t join agents a on a.id = t.agent_id where a.name = 'a0'")
                .await,
            1
        );
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn it_stays_where_another_waits_for_the_slot_or_may_not_have_it(pool: PgPool) {
        let scene = Scene::new(pool).await;
        // A slot reserved for another preempted crawl is not idle.
        scene.trial.execute("update agents set capacity = 1").await;
        for place in [1, 2] {
            scene.trial.assigned(scene.batch, &format!("{place}.cn"), place).await;
        }
        scene.trial.assign().await;
        assert_eq!(scene.asked().await, None);
        scene.trial.execute("update tasks set state = 'cancelled' where state = 'assigned'").await;
        // A site that waits to be planned has priority.
        scene.trial.task_of(scene.batch, "waits.cn", "located").await;
        scene.trial.assign().await;
        assert_eq!(scene.asked().await, None);
        scene.trial.execute("update tasks set state = 'cancelled' where state in ('located', 'assigned')").await;
        // The crawl crashed at one of the idle agents, and the other idle agent is excluded.
        scene
            .trial
            .execute(
                r#"insert into batch_constraints (batch_id, constraints) select id, '{"tags": ["fast"]}' from batches"#,
            )
            .await;
        scene.trial.execute("update agents set tags = '{fast}' where name = 'a1'").await;
        scene
            .trial
            .execute(
                "insert into leases (task_id, token, site_id, agent_id, session_id, state, crash)
                 select l.task_id, 0, l.site_id, s.agent_id, s.id, 'released', 'a panic'
                 from leases l, sessions s join agents a on a.id = s.agent_id where a.name = 'a1'",
            )
            .await;
        scene.trial.assign().await;
        assert_eq!(scene.asked().await, None);
        scene.trial.execute("update agents set tags = '{fast}' where name = 'a2'").await;
        scene.trial.assign().await;
        assert_eq!(scene.asked().await, Some((0, 2)));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_waits_for_one_agent_keeps_no_other_from_a_straggler(pool: PgPool) {
        let scene = Scene::new(pool).await;
        let only = scene.trial.batch("only", &Strategy::EarliestFinish.to_string()).await;
        scene
            .trial
            .execute("update agents set capacity = 1, tags = case when name = 'a0' then '{only}'::text[] else '{}' end")
            .await;
        scene
            .trial
            .execute(
                r#"insert into batch_constraints (batch_id, constraints)
                   select id, '{"tags": ["only"]}' from batches where name = 'only'"#,
            )
            .await;
        let (task, site) = scene.trial.task_of(only, "waits.cn", "located").await;
        scene.trial.measured(site, &[(scene.trial.agents[0].0, Some(30))]).await;
        scene.trial.assign().await;
        assert_eq!(scene.trial.state(task).await.0, "located", "the only one that may have it is busy");
        assert_eq!(scene.asked().await, Some((0, 1)));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_crawl_that_its_site_turned_away_or_that_has_just_begun_is_left_where_it_is(pool: PgPool) {
        let scene = Scene::new(pool).await;
        scene.trial.execute("update leases set granted_at = now()").await;
        scene.trial.assign().await;
        assert_eq!(scene.asked().await, None, "it has just begun");
        scene.trial.execute("update leases set granted_at = now() - interval '60 s'").await;
        for rate_state in [
            RateState { turned_away: 1, ..RateState::default() },
            RateState { pause: Some(Duration::from_secs(50)), ..RateState::default() },
            // The site's rate limit applies to every agent.
            RateState { interval: Some(Duration::from_secs(1)), ..RateState::default() },
        ] {
            scene.checkpoint(60, rate_state).await;
            scene.trial.assign().await;
            assert_eq!(scene.asked().await, None);
        }
        scene.trial.execute("update batches set strategy = 'gnp-top3'").await;
        scene.checkpoint(60, RateState::default()).await;
        scene.trial.assign().await;
        assert_eq!(scene.asked().await, None, "only what is planned is moved");
        scene.trial.execute("update batches set strategy = 'earliest-finish'").await;
        scene.trial.execute("insert into trust_alarms (reason) values ('the map lies')").await;
        scene.trial.assign().await;
        assert_eq!(scene.asked().await, None, "distances are not trusted");
        scene.trial.execute("update trust_alarms set ended_at = now()").await;
        scene.trial.assign().await;
        assert_eq!(scene.asked().await, Some((0, 1)));
    }
}
