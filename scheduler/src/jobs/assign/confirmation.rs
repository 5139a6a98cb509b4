//! Confirming: before a site of a `gnp-confirmed` batch is assigned, the agents that may be nearest
//! (the confirmers) measure it. Sites with uncertain distances are also confirmed while their
//! `gnp-balanced` or `earliest-finish` tasks wait for a slot. This file decides which tasks wait
//! for a confirmation, and holds them until it ends.
//!
//! Each pass ends confirmations that are complete or overdue, begins requested confirmations, and
//! orders the next measurement of each open confirmation. A site has one open order at a time, so
//! its confirmers measure one after another. Confirmers that fail or leave are skipped; the wait
//! for each confirmer is bounded.
//!
//! A confirmer's measurement takes precedence over a prediction, like any other measurement, and
//! also helps to locate the site. Implausible claims are rejected (see `gnp::trust::believed`). An
//! agent that is excluded by all batches that wait for the site is not used as a confirmer.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;

use crate::config::Config;
use crate::gnp::{FEWEST_LANDMARKS, SitePlace, SuspectedSite};
use crate::jobs::assign::exclusions_and_holds::{Admission, without};
use crate::jobs::leadership::Leader;
use crate::jobs::measure::{order_lifetime, spread};
use crate::jobs::refined_map::CurrentMap;
use crate::model::{AgentId, BatchId, Rtt, SiteId, Strategy, TaskId};
use crate::store::assignments::{WaitingTask, agents_and_loads};
use crate::store::batches::constraints_and_quotas;
use crate::store::measurements::{orders, quarantines_and_contradictions};
use crate::store::tasks::confirmations::{self, ConfirmationAttempt, ConfirmationRequest, ConfirmationState};
use crate::store::{Locked, Tx};

/// Maximum number of sites whose confirmation begins or continues in one pass.
const SITES_PER_PASS: i64 = 500;
/// Maximum number of open confirmations. With more open confirmations, many sites could be near one
/// agent and wait long for its measurements.
const OPEN_AT_ONCE: i64 = 1024;

pub async fn run_once(scheduler: &Leader) -> anyhow::Result<()> {
    // Every step is a separate idempotent transaction, so an interrupted pass keeps its completed
    // steps.
    let max_age = scheduler.config.measure.site_max_age;
    scheduler.tx("note who answered", |tx| async move { Ok(confirmations::hear(tx, max_age).await?) }.boxed()).await?;
    let patience = patience(scheduler);
    let end =
        scheduler.tx("end confirmations", |tx| async move { Ok(confirmations::end(tx, patience).await?) }.boxed());
    let mut ended = end.await?;
    ended += begin(scheduler).await?;
    if ended > 0 {
        scheduler.wakes.assign.notify_one();
    }
    let confirmers = ask(scheduler).await?;
    scheduler.wakes.wake_agents(confirmers);
    Ok(())
}

/// Begins requested confirmations. Returns the number of confirmations that ended at once, because
/// no other agent could be nearer than the agents that have measured the site.
async fn begin(scheduler: &Leader) -> anyhow::Result<u64> {
    let max_age = scheduler.config.measure.site_max_age;
    let read = scheduler.tx("find sites to confirm", |tx| SitesToConfirm::read(tx, max_age).boxed());
    let SitesToConfirm { sites, looked_at, input } = read.await?;
    let full = looked_at == usize::try_from(SITES_PER_PASS).unwrap_or(usize::MAX);
    let ended = match input {
        None => 0,
        Some(input) => {
            let map = scheduler.maps.current(scheduler).await?;
            let input = ConfirmInput { map, ..input };
            let most = usize::try_from(scheduler.config.confirm.agents).unwrap_or(usize::MAX);
            let chosen = scheduler.compute(move || input.confirmers(&sites, most)).await?;
            let chosen = &chosen;
            let begin = scheduler
                .tx("begin confirmations", |tx| async move { Ok(confirmations::begin(tx, chosen).await?) }.boxed());
            begin.await?
        }
    };
    if full {
        scheduler.wakes.confirm.notify_one();
    }
    Ok(ended)
}

/// The sites whose confirmation may begin.
struct SitesToConfirm {
    sites: Vec<SiteId>,
    /// Number of requests that were looked at.
    looked_at: usize,
    /// Without the map. `None` if no site or no agent is there.
    input: Option<ConfirmInput>,
}

impl SitesToConfirm {
    async fn read(tx: &mut Tx<'_>, max_age: Duration) -> anyhow::Result<Self> {
        let due = confirmations::due(tx, SITES_PER_PASS, OPEN_AT_ONCE).await?;
        let (sites, looked_at) = (due.sites, due.looked_at);
        if sites.is_empty() {
            return Ok(Self { sites, looked_at, input: None });
        }
        let available: Vec<AgentId> = agents_and_loads::available(tx).await?.iter().map(|agent| agent.agent).collect();
        if available.is_empty() {
            return Ok(Self { sites, looked_at: 0, input: None });
        }
        let tried = confirmations::tried(tx, &sites, max_age).await?;
        let quarantined = quarantines_and_contradictions::open(tx).await?.into_iter().map(|held| held.agent).collect();
        let constrained = constraints_and_quotas::to_be_confirmed(tx, &sites).await?;
        let admission = Admission::read(tx, constrained.values().flatten().copied()).await?;
        let input = ConfirmInput { available, quarantined, map: None, tried, constrained, admission };
        Ok(Self { sites, looked_at, input: Some(input) })
    }
}

/// Orders the next measurement of each open confirmation. Returns the confirmers that got orders.
async fn ask(scheduler: &Leader) -> anyhow::Result<Vec<AgentId>> {
    let (most, lifetime) = (scheduler.config.measure.max_site_orders, lifetime(scheduler));
    let ask = scheduler.tx("ask confirmers", |tx| {
        async move {
            let askable = confirmations::askable(tx, SITES_PER_PASS).await?;
            let mut confirmers: Vec<AgentId> =
                askable.iter().flat_map(|due| due.probers.iter().map(|one| one.prober)).collect();
            confirmers.sort_unstable();
            confirmers.dedup();
            if confirmers.is_empty() {
                return Ok(Vec::new());
            }
            let open = orders::open_site_orders(tx, &confirmers).await?;
            let orders = spread(&askable, open, most);
            Ok(confirmations::ask(tx, &orders, lifetime).await?)
        }
        .boxed()
    });
    ask.await
}

fn lifetime(scheduler: &Leader) -> Duration {
    let (measure, confirm) = (&scheduler.config.measure, &scheduler.config.confirm);
    order_lifetime(confirm.samples, measure.site_interval, measure.sample_timeout)
}

/// Maximum duration of a confirmation: the lifetime of one order for each confirmer, plus one more
/// lifetime for queueing.
fn patience(scheduler: &Leader) -> Duration {
    lifetime(scheduler) * scheduler.config.confirm.agents.saturating_add(1)
}

/// The input for the choice of confirmers.
struct ConfirmInput {
    available: Vec<AgentId>,
    /// Agents that may crawl, but whose measurements are not trusted.
    quarantined: BTreeSet<AgentId>,
    map: Option<Arc<CurrentMap>>,
    tried: HashMap<SiteId, Vec<ConfirmationAttempt>>,
    /// The batches that wait for each site. A site is absent if a batch without constraints waits
    /// for it, because then every agent may get a task of the site.
    constrained: HashMap<SiteId, Vec<BatchId>>,
    admission: Admission,
}

impl ConfirmInput {
    /// Whether an agent may get a task of the site.
    fn admits(&self, site: SiteId, agent: AgentId) -> bool {
        let batches = self.constrained.get(&site);
        batches.is_none_or(|batches| batches.iter().any(|batch| self.admission.admits(*batch, agent)))
    }

    /// The agents that should confirm each of these sites, at most `most` per site.
    fn confirmers(&self, sites: &[SiteId], most: usize) -> Vec<(SiteId, Vec<AgentId>)> {
        sites.iter().map(|site| (*site, self.confirmers_of(*site, most))).collect()
    }

    /// The available agents that have not tried to measure the site and whose measurements are most
    /// likely to identify the nearest agent. Without a refined map, the confirmers are the agents
    /// predicted nearest to the site. Returns no agents if there is no map or if the site has too
    /// few measurements.
    fn confirmers_of(&self, site: SiteId, most: usize) -> Vec<AgentId> {
        let (Some(map), Some(tried)) = (&self.map, self.tried.get(&site)) else { return Vec::new() };
        let measured: Vec<(AgentId, Rtt)> = tried
            .iter()
            .filter_map(|(agent, rtt)| Some((*agent, (*rtt)?)))
            .filter(|(agent, _)| map.embedding.placement(*agent).is_some() && !self.quarantined.contains(agent))
            .collect();
        let measured = map.believed(&BTreeMap::new(), &measured);
        if measured.len() < FEWEST_LANDMARKS {
            return Vec::new();
        }
        let may =
            |agent: &AgentId| !self.quarantined.contains(agent) && !tried.iter().any(|(prober, _)| prober == agent);
        let mut candidates: Vec<AgentId> = self.available.iter().copied().filter(may).collect();
        candidates.retain(|agent| self.admits(site, *agent));
        let cloud = map.refined.as_ref().and_then(|refined| refined.locate(&measured).ok());
        let point =
            || map.embedding.locate(&measured).map(|placement| SitePlace::Point(&map.embedding, placement)).ok();
        cloud.map(SitePlace::Cloud).or_else(point).map_or_else(Vec::new, |place| place.confirm(most, &candidates))
    }
}

/// Whether a task may wait while uncertain distances of its site are confirmed. A site that
/// probably has several locations is not confirmed, because each agent may measure a different
/// location.
pub(super) fn may_be_confirmed(task: &WaitingTask, suspicions: &HashMap<SiteId, SuspectedSite>) -> bool {
    task.strategy.confirms_the_unsure() && !suspicions.contains_key(&task.site)
}

/// Whether a confirmation delays no task: the task would wait for a slot at least as long as a
/// confirmation may take.
pub(super) fn costs_no_time(waits: Duration, confirming: Duration) -> bool {
    waits >= confirming
}

/// Waiting tasks, except those that wait for a confirmation.
pub(super) struct Unconfirmed {
    pub(super) waiting: Vec<WaitingTask>,
    /// Valid or open confirmations of the waiting tasks' sites.
    pub(super) confirmation_states: HashMap<SiteId, ConfirmationState>,
    /// Whether a confirmation was requested.
    pub(super) wanted: bool,
}

/// Holds tasks whose strategy needs confirmed distances until these distances exist. A task with
/// another strategy is held only while a confirmation of its site is open, and at most for the
/// usual duration of a confirmation. While its site is being confirmed, the task would wait for a
/// slot anyway. The hold is limited so that an agent that does not answer cannot delay the task
/// further.
pub(super) async fn hold_unconfirmed(
    tx: &mut Tx<'_>,
    config: &Config,
    waiting: Vec<WaitingTask>,
    locked: &HashSet<Locked<TaskId>>,
) -> anyhow::Result<Unconfirmed> {
    let max_age = config.measure.site_max_age;
    let always = |task: &WaitingTask| task.strategy == Strategy::GnpConfirmed;
    let concerned = waiting.iter().filter(|task| always(task) || task.strategy.confirms_the_unsure());
    let sites: Vec<SiteId> = concerned.map(|task| task.site).collect();
    if sites.is_empty() {
        return Ok(Unconfirmed { waiting, confirmation_states: HashMap::new(), wanted: false });
    }
    let confirmation_states = confirmations::states(tx, &sites, max_age).await?;
    let patience = |task: &WaitingTask| match confirmation_states.get(&task.site) {
        Some(ConfirmationState::Ended) => None,
        Some(ConfirmationState::Open { .. }) | None if always(task) => Some(None),
        Some(ConfirmationState::Open { since }) if task.strategy.confirms_the_unsure() => {
            config.confirming().checked_sub(*since).filter(|left| !left.is_zero()).map(Some)
        }
        Some(ConfirmationState::Open { .. }) | None => None,
    };
    let wanted = waiting.iter().filter_map(|task| {
        let (patience, locked) = (patience(task)?, *locked.get(&task.task)?);
        Some(ConfirmationRequest { task: locked, site: task.site, patience })
    });
    let wanted: Vec<_> = wanted.collect();
    confirmations::want(tx, &wanted, max_age).await?;
    let held = wanted.iter().map(|one| *one.task).collect();
    Ok(Unconfirmed { waiting: without(waiting, &held), confirmation_states, wanted: !wanted.is_empty() })
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use crate::gnp::trust::Kind;
    use crate::jobs::fixtures::{Trial, took};
    use crate::model::WaitCause;
    use crate::store::embeddings::placements::{self, LocatedSite};
    use crate::store::fixtures;

    use super::*;

    /// Agents on a line with 10 ms between neighbours. Three of them are landmarks: the first, the
    /// last and one in between. The landmarks have measured a site that is on the line, 5 ms before
    /// the second-to-last agent.
    struct Line {
        trial: Trial,
        site: SiteId,
        task: TaskId,
    }

    impl Line {
        async fn of(pool: PgPool, count: usize) -> Self {
            let trial = Trial::new(pool, count).await;
            let landmarks = [0, (count - 1) / 2, count - 1];
            trial.set_landmarks(&landmarks.map(|index| trial.agents[index])).await;
            trial.mesh(&trial.agents).await;
            trial.fit().await;
            let site = fixtures::site(&mut *trial.conn().await, "a.cn").await;
            let mut line = Self { trial, site, task: TaskId::new(0) };
            line.task = line.located("one").await;
            let millis = landmarks.map(|index| (line.trial.agents[index].0, line.millis(index)));
            line.trial.measured(site, &millis.map(|(agent, millis)| (agent, Some(millis)))).await;
            // Stores the placement that these measurements would have given the site.
            let rtt = |millis| Rtt::try_new(Duration::from_millis(millis)).expect("a round trip");
            let map = line.trial.map().await.expect("a map");
            let placement = map.locate(&millis.map(|(agent, millis)| (agent, rtt(millis)))).expect("a place");
            let mut conn = line.trial.conn().await;
            placements::upsert(&mut conn, &[LocatedSite { site, placement }]).await.expect("store the place");
            drop(conn);
            line
        }

        /// A located task of a separate batch.
        async fn located(&self, batch: &str) -> TaskId {
            self.located_by(batch, Strategy::GnpConfirmed).await
        }

        async fn located_by(&self, batch: &str, strategy: Strategy) -> TaskId {
            let batch = self.trial.batch(batch, &strategy.to_string()).await;
            fixtures::task(&mut *self.trial.conn().await, batch, self.site, "located").await
        }

        /// The site's distance from an agent, in milliseconds.
        fn millis(&self, index: usize) -> u64 {
            let place = u64::try_from(self.trial.agents.len()).expect("few") * 10 - 25;
            place.abs_diff(u64::try_from(index).expect("few") * 10)
        }

        async fn pass(&self) {
            self.trial.measure().await;
            // `assign` requests confirmations, `confirm` orders their measurements, and a complete
            // confirmation wakes `assign`.
            self.trial.assign().await;
            self.trial.confirm().await;
            self.trial.assign().await;
        }

        /// The index of the agent with the open measurement order.
        async fn asked(&self) -> Option<usize> {
            let orders = self.trial.site_orders().await;
            assert!(orders.len() <= 1, "one order at a time: {orders:?}");
            let (prober, site) = orders.first()?;
            assert_eq!(*site, self.site);
            Some(self.trial.place(*prober))
        }

        /// Answers measurement orders until none is open. Returns the agents that had an order.
        async fn confirm(&self) -> BTreeSet<usize> {
            let mut asked = BTreeSet::new();
            self.pass().await;
            while let Some(index) = self.asked().await {
                assert!(asked.insert(index), "{index} was asked twice");
                self.trial.answer(self.trial.agents[index], |_| Some(took(self.millis(index)))).await;
                self.pass().await;
            }
            asked
        }

        /// The index of the agent that got the task, and the cause if a fallback was applied.
        async fn chosen(&self, task: TaskId) -> (Option<usize>, Option<String>) {
            let fallback = "select fallback::text from assignments join tasks on tasks.assignment_id = assignments.id where tasks.id = $1";
            match (self.trial.state(task).await.0.as_str(), self.trial.at(task).await) {
                ("assigned", Some(place)) => (Some(place), self.trial.read_for(fallback, task.get()).await),
                _ => (None, None),
            }
        }

        async fn quarantine(&self, agent: AgentId) {
            let new =
                quarantines_and_contradictions::hold(&mut *self.trial.conn().await, agent, Kind::Asymmetry, "it lies")
                    .await;
            assert!(new.expect("quarantine"));
        }
    }

    /// Checks that the two nearest agents confirmed the site. Three confirmers are permitted, but
    /// on the map no third agent can be nearest.
    fn confirmed_by_the_nearest(asked: &BTreeSet<usize>) {
        assert_eq!(*asked, BTreeSet::from([5, 6]));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn those_that_may_be_nearest_measure_one_after_another_and_the_best_wins(pool: PgPool) {
        let line = Line::of(pool, 8).await;
        line.pass().await;
        assert_eq!(line.trial.waits(line.task).await, Some(WaitCause::Confirming));
        assert_eq!(line.trial.count("select count(*) from measurement_orders where confirming").await, 1);
        let asked = line.confirm().await;
        confirmed_by_the_nearest(&asked);
        let (chosen, fallback) = line.chosen(line.task).await;
        assert!(matches!(chosen, Some(5 | 6)), "both are 5 ms away: {chosen:?}");
        assert_eq!(fallback, None);
        let measured = "select count(measured.us) from assignments cross join unnest(measured_us) as measured (us)";
        assert_eq!(line.trial.count(measured).await, 5, "three landmarks and two confirmers are on record");
        assert_eq!(line.trial.count("select count(*) from confirming_measurements").await, 2);
    }

    /// A line of agents and a site. The site's distances are certain if `sure`, and the agents are
    /// busy for at least 20 seconds if `busy`. Two tasks have strategies that confirm sites with
    /// uncertain distances. A confirmation is estimated to take 18 seconds.
    async fn of_ours(pool: PgPool, sure: bool, busy: bool) -> (Line, [TaskId; 2]) {
        let mut line = Line::of(pool, 8).await;
        let config = Arc::make_mut(&mut line.trial.scheduler.config);
        (config.confirm.samples, config.measure.site_interval) = (1, Duration::from_secs(3));
        line.trial.execute("update tasks set state = 'cancelled'").await;
        line.trial.execute("update agents set capacity = 1").await;
        if busy {
            let batch = line.trial.batch("busy", "random").await;
            for index in 0..line.trial.agents.len() {
                for number in 0..20 {
                    line.trial.assigned(batch, &format!("busy{index}-{number}.cn"), index).await;
                }
            }
            line.trial.execute("update assignments set crawl_ms = 5000").await;
        }
        if sure {
            let nearest = [5, 6].map(|index| (line.trial.agents[index].0, Some(line.millis(index))));
            line.trial.measured(line.site, &nearest).await;
        } else {
            // The landmarks' measurements are inconsistent, so the map is uncertain near the site.
            line.trial.measured(line.site, &[(line.trial.agents[7].0, Some(22))]).await;
        }
        let balanced = line.located_by("balanced", Strategy::GnpBalanced).await;
        let planned = line.located_by("planned", Strategy::EarliestFinish).await;
        (line, [balanced, planned])
    }

    const WANTED: &str = "select count(*) from confirmations where began_at is null";

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_site_of_unsure_distances_that_waits_is_confirmed_meanwhile(pool: PgPool) {
        let (line, [balanced, planned]) = of_ours(pool, false, true).await;
        line.pass().await;
        assert_eq!(line.trial.count("select count(*) from confirmations").await, 1, "they share it");
        for task in [balanced, planned] {
            assert_eq!(line.trial.waits(task).await, Some(WaitCause::Confirming));
        }
        confirmed_by_the_nearest(&line.confirm().await);
        assert!(line.chosen(balanced).await.0.is_some());
        assert_eq!(line.trial.waits(planned).await, Some(WaitCause::Planned), "it waits for its slot");
        line.trial
            .execute("update tasks set state = 'cancelled' where site_id <> (select max(site_id) from confirmations)")
            .await;
        line.pass().await;
        let chosen = line.chosen(planned).await.0;
        assert!(matches!(chosen, Some(5 | 6)), "{chosen:?}");
        assert_eq!(
            (line.trial.count(WANTED).await, line.trial.count("select count(*) from confirmations").await),
            (0, 1)
        );
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn whom_nobody_answers_in_time_is_chosen_for_by_what_is_known(pool: PgPool) {
        let (line, tasks) = of_ours(pool, false, true).await;
        line.pass().await;
        line.pass().await;
        assert!(line.asked().await.is_some());
        line.trial.execute("update tasks set state = 'cancelled' where state = 'assigned'").await;
        // Moves the deadlines into the future, so that no deadline passes before the test moves it
        // back.
        line.trial.execute("update confirmations set began_at = began_at + interval '1 hour'").await;
        line.trial.execute("update task_holds set until = until + interval '1 hour'").await;
        line.pass().await;
        for task in tasks {
            assert_eq!(line.chosen(task).await.0, None, "it is waited for");
        }
        line.trial.execute("update confirmations set began_at = began_at - interval '1 hour 20 seconds'").await;
        line.trial.execute("update task_holds set until = until - interval '1 hour 20 seconds'").await;
        line.pass().await;
        for task in tasks {
            assert!(line.chosen(task).await.0.is_some());
        }
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn no_slot_idles_for_a_confirmation(pool: PgPool) {
        let (line, tasks) = of_ours(pool, false, false).await;
        line.pass().await;
        for task in tasks {
            assert!(line.chosen(task).await.0.is_some());
        }
        assert_eq!(line.trial.count(WANTED).await, 0);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_site_that_the_nearest_have_measured_is_not_confirmed(pool: PgPool) {
        let (line, [balanced, planned]) = of_ours(pool, true, true).await;
        line.pass().await;
        assert!(line.chosen(balanced).await.0.is_some());
        assert_eq!(line.trial.waits(planned).await, Some(WaitCause::Planned));
        assert_eq!(line.trial.count(WANTED).await, 0);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn nobody_quarantined_is_asked(pool: PgPool) {
        let line = Line::of(pool, 8).await;
        line.quarantine(line.trial.agents[6].0).await;
        assert_eq!(line.confirm().await, BTreeSet::from([5]));
        assert_eq!(line.chosen(line.task).await, (Some(5), None));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_confirmer_that_is_quarantined_before_its_turn_is_not_waited_for(pool: PgPool) {
        let line = Line::of(pool, 8).await;
        line.pass().await;
        let first = line.asked().await.expect("somebody is asked");
        let waiting = "select agent_id from confirmers where asked_at is null";
        let waiting: i64 = line.trial.read(waiting).await;
        line.quarantine(AgentId::new(waiting)).await;
        assert_eq!(line.confirm().await, BTreeSet::from([first]));
        assert_eq!(line.chosen(line.task).await, (Some(first), None));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_claim_to_be_next_to_a_site_that_the_landmarks_see_far_away_wins_nothing(pool: PgPool) {
        let line = Line::of(pool, 12).await;
        let liar = 1;
        assert_eq!(line.millis(liar), 85);
        line.trial.measured(line.site, &[(line.trial.agents[liar].0, Some(1))]).await;
        let asked = line.confirm().await;
        assert!(asked.is_superset(&BTreeSet::from([9, 10])), "it does not lead astray whom to ask: {asked:?}");
        let (chosen, fallback) = line.chosen(line.task).await;
        assert!(matches!(chosen, Some(9 | 10)), "{chosen:?}");
        assert_eq!(fallback, None);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_confirmer_that_fails_is_passed_over(pool: PgPool) {
        let line = Line::of(pool, 8).await;
        line.pass().await;
        let failed = line.asked().await.expect("somebody is asked");
        line.trial.answer(line.trial.agents[failed], |_| Some(Err("connect: refused".into()))).await;
        let others = line.confirm().await;
        assert_eq!(others, BTreeSet::from([11 - failed]), "the other of the two nearest");
        assert_eq!(line.chosen(line.task).await, (Some(11 - failed), None));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_confirmer_that_leaves_is_not_waited_for(pool: PgPool) {
        let line = Line::of(pool, 8).await;
        line.pass().await;
        let left = line.asked().await.expect("somebody is asked");
        line.trial.answer(line.trial.agents[left], |_| None).await;
        line.trial.disconnect(line.trial.agents[left].0).await;
        let others = line.confirm().await;
        assert_eq!(others, BTreeSet::from([11 - left]), "the other of the two nearest");
        assert_eq!(line.chosen(line.task).await, (Some(11 - left), None));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn when_nobody_answers_the_nearest_landmark_wins(pool: PgPool) {
        let line = Line::of(pool, 8).await;
        line.pass().await;
        for _ in 0..2 {
            let silent = line.asked().await.expect("somebody is asked");
            line.trial.answer(line.trial.agents[silent], |_| None).await;
            line.trial.execute("update measurement_orders set expires_at = now() - interval '1 second'").await;
            line.pass().await;
        }
        assert_eq!(line.asked().await, None);
        assert_eq!(line.chosen(line.task).await, (Some(7), None));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn nobody_is_waited_for_for_ever(pool: PgPool) {
        let line = Line::of(pool, 8).await;
        line.pass().await;
        line.trial.execute("update confirmations set began_at = now() - interval '1 hour'").await;
        line.pass().await;
        assert_eq!(line.chosen(line.task).await, (Some(7), None));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_restart_in_between_loses_nothing_and_asks_nobody_twice(pool: PgPool) {
        let mut line = Line::of(pool.clone(), 8).await;
        line.pass().await;
        let first = line.asked().await.expect("somebody is asked");
        line.trial.answer(line.trial.agents[first], |_| Some(took(line.millis(first)))).await;
        line.trial.leave().await;
        let agents = std::mem::take(&mut line.trial.agents);
        line.trial = Trial::new(pool, 0).await;
        line.trial.agents = agents;
        let others = line.confirm().await;
        assert_eq!(others, BTreeSet::from([11 - first]), "the other of the two nearest");
        assert!(matches!(line.chosen(line.task).await, (Some(5 | 6), None)));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_order_lost_with_its_session_is_asked_again(pool: PgPool) {
        let mut line = Line::of(pool, 8).await;
        line.pass().await;
        let first = line.asked().await.expect("somebody is asked");
        line.trial.answer(line.trial.agents[first], |_| None).await;
        line.trial.agents[first].1 = line.trial.session(line.trial.agents[first].0).await;
        confirmed_by_the_nearest(&line.confirm().await);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn tasks_of_one_site_share_a_confirmation_until_it_is_too_old(pool: PgPool) {
        let line = Line::of(pool, 8).await;
        // Every agent has room for all tasks, because a full agent might not be chosen.
        line.trial.execute("update agents set capacity = 9").await;
        let second = line.located("two").await;
        confirmed_by_the_nearest(&line.confirm().await);
        let chosen = line.chosen(line.task).await;
        assert!(chosen.0.is_some());
        assert_eq!(line.chosen(second).await, chosen);

        let later = line.located("three").await;
        assert_eq!(line.confirm().await, BTreeSet::new(), "it is still young");
        assert_eq!(line.chosen(later).await, chosen);

        line.trial.execute("update confirmations set ended_at = ended_at - interval '2 days'").await;
        line.trial
            .execute(
                "update site_measurements set measured_at = measured_at - interval '2 days'
                      where prober_id not in (select agent_id from landmarks)",
            )
            .await;
        let much_later = line.located("four").await;
        confirmed_by_the_nearest(&line.confirm().await);
        assert_eq!(line.chosen(much_later).await, chosen);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn fewer_agents_than_are_asked_for_are_all_asked_and_none_is_no_obstacle(pool: PgPool) {
        let line = Line::of(pool.clone(), 4).await;
        assert_eq!(line.confirm().await, BTreeSet::from([2]));
        assert!(matches!(line.chosen(line.task).await, (Some(1 | 2), None)), "both are 5 ms away");

        let site = fixtures::site(&mut *line.trial.conn().await, "b.cn").await;
        let line = Line { site, ..line };
        line.trial
            .measured(site, &line.trial.agents.iter().map(|(agent, _)| (*agent, Some(9))).collect::<Vec<_>>())
            .await;
        let task = line.located("two").await;
        assert_eq!(line.confirm().await, BTreeSet::new(), "everybody has measured it");
        assert_eq!(line.chosen(task).await, (Some(0), None));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn nobody_whom_the_batch_excludes_is_asked_to_confirm(pool: PgPool) {
        let line = Line::of(pool, 8).await;
        line.trial.execute("update agents set tags = '{near}' where name <> 'a6'").await;
        line.trial
            .execute(
                r#"insert into batch_constraints (batch_id, constraints) select id, '{"tags": ["near"]}' from batches"#,
            )
            .await;
        let asked = line.confirm().await;
        assert!(asked.contains(&5) && !asked.contains(&6), "{asked:?}");
        assert_eq!(line.chosen(line.task).await.0, Some(5));
        // If no recent confirmation exists, any agent may confirm the site for a batch without
        // constraints.
        line.located("two").await;
        line.trial.execute("delete from confirmers").await;
        line.trial.execute("delete from confirmations").await;
        line.trial
            .execute(
                "delete from site_measurements m using agents a where a.id = m.prober_id and a.name in ('a5', 'a6')",
            )
            .await;
        assert!(line.confirm().await.contains(&6));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn without_a_map_nobody_is_asked_and_the_choice_says_why(pool: PgPool) {
        let line = Line::of(pool, 5).await;
        line.trial.execute("delete from site_placements").await;
        line.trial.execute("delete from agent_placements").await;
        line.trial.execute("delete from embeddings").await;
        assert_eq!(line.confirm().await, BTreeSet::new());
        let (chosen, fallback) = line.chosen(line.task).await;
        assert_eq!(chosen, Some(2));
        assert_eq!(fallback.as_deref(), Some("no-map"));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_site_nobody_measured_is_not_confirmed_and_keeps_its_cause(pool: PgPool) {
        let line = Line::of(pool, 5).await;
        line.trial.execute("update site_measurements set rtt_us = null, failure = 'connect: refused'").await;
        line.trial.execute("update tasks set unmeasured = 'failed', unmeasured_detail = 'connect: refused'").await;
        assert_eq!(line.confirm().await, BTreeSet::new());
        let (_, fallback) = line.chosen(line.task).await;
        assert_eq!(fallback.as_deref(), Some("unmeasured"));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn with_nobody_connected_a_task_waits_and_says_so(pool: PgPool) {
        let line = Line::of(pool, 5).await;
        line.trial.execute("update sessions set state = 'expired'").await;
        line.pass().await;
        assert_eq!(line.trial.waits(line.task).await, Some(WaitCause::NoAgent));
        assert_eq!(line.trial.count("select count(*) from confirmations").await, 0);
    }
}
