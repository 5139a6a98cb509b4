//! Measuring: orders each agent to measure the beacons of other agents, and one prober after
//! another to measure a site. Each pass ends overdue orders, creates new orders within every
//! prober's limits, and moves submitted tasks to the state measuring. Each site and each address
//! has at most one open order, so that all probers together send at most one probe per
//! `measure.site_interval` to each site and each address. The address of a new site is unknown, so
//! its first order only asks for the address.
//!
//! A fleet of up to [`SMALL_FLEET`] connected agents needs no landmarks: every agent measures, and
//! agents with a beacon serve as landmarks. A larger fleet waits until landmarks are chosen. The
//! jobs `fit` and `locate` also read the [`Fleet`], so that all jobs see the same probers.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use sqlx::PgConnection;
use tokio::sync::Mutex;

use crate::config::MeasureConfig;
use crate::gnp::SMALL_FLEET;
use crate::jobs::leadership::Leader;
use crate::model::{AgentId, SessionId, SiteId, Stage, WaitCause};
use crate::store::Error;
use crate::store::embeddings::landmarks::{self, ConnectedAgent};
use crate::store::measurements::orders::{self, AvailableProber, DueSite, MeshOrders, MeshPlan};
use crate::store::measurements::{quarantines_and_contradictions, site_measurements};
use crate::store::sites::names_and_origins;
use crate::store::tasks::{measuring_and_rounds, unmet_and_wait_causes};

/// The pause between two passes over the mesh, as a multiple of a pass's duration: `FOLLOWED` if
/// due measurements wait for orders to end, otherwise `RESTED`. A pass looks at every pair of
/// agents, which takes a few milliseconds for 30 agents, and 750 ms for a thousand agents.
const FOLLOWED: u32 = 4;
const RESTED: u32 = 50;

/// Maximum number of tasks that one pass moves to the state measuring, and of sites that one pass
/// gives to probers.
const BATCH: i64 = 1000;

/// Maximum number of tasks in the state measuring. This number exceeds the 2304 site orders that
/// nine probers together can have open with the default settings.
const MEASURING_AT_ONCE: i64 = 4096;

/// Time allowed for an order in addition to its samples, because messages take time and the agent
/// may be busy.
const ORDER_SLACK: Duration = Duration::from_secs(10);

/// Number of requests of an order that are not samples: one opens the connection, and one follows a
/// redirect.
const EXTRA_REQUESTS: u32 = 2;

#[derive(Debug)]
pub struct Measure {
    scheduler: Leader,
    /// `None` before the first pass over the mesh.
    mesh_pause: Mutex<Option<MeshPause>>,
}

impl Measure {
    pub fn new(scheduler: Leader) -> Self {
        Self { scheduler, mesh_pause: Mutex::default() }
    }

    pub async fn run_once(&self) -> anyhow::Result<()> {
        let scheduler = &self.scheduler;
        // Every step is a separate idempotent transaction, so an interrupted pass keeps its
        // completed steps.
        give_up(scheduler).await?;
        let read = scheduler.tx("read the fleet", |tx| {
            async move {
                let fleet = Fleet::read(tx).await?;
                unmet_and_wait_causes::close(tx, Stage::Measuring, fleet.probers().err()).await?;
                Ok(fleet)
            }
            .boxed()
        });
        let fleet = read.await?;
        let probers = fleet.probers();
        let mut woken = order_mesh(scheduler, &self.mesh_pause, &fleet).await?;
        if let Ok(probers) = probers {
            let_in(scheduler).await?;
            woken.extend(order_sites(scheduler, &probers).await?);
        }
        scheduler.wakes.wake_agents(woken);
        Ok(())
    }
}

async fn give_up(scheduler: &Leader) -> anyhow::Result<()> {
    let wakes = &scheduler.wakes;
    let give_up = scheduler.tx("give up orders", |tx| {
        async move {
            let given_up = orders::give_up(tx).await?;
            site_measurements::prune_disagreements(tx).await?;
            Ok(given_up)
        }
        .boxed()
    });
    if give_up.await? > 0 {
        wakes.fit.notify_one();
        wakes.locate.notify_one();
        wakes.confirm.notify_one();
    }
    Ok(())
}

/// While the fleet has this version, no pass looks at the mesh before `ends`.
#[derive(Debug)]
struct MeshPause {
    fleet: FleetVersion,
    ends: Instant,
}

/// The pause after a pass over the mesh that took `took`. The pause is at most a tenth of
/// `max_age`, the age at which a pair is due again. If more pairs are due but the pass created no
/// order, no agent has completed an order since the last pass, so the pause is long.
fn pause_after(took: Duration, ordered: &MeshOrders, max_age: Duration) -> Duration {
    let follows = ordered.more_due && !ordered.probers.is_empty();
    (took * if follows { FOLLOWED } else { RESTED }).min(max_age / 10)
}

fn mesh_plan(config: &MeasureConfig) -> MeshPlan {
    MeshPlan {
        max_age: config.mesh_max_age,
        max_peers: config.max_mesh_peers,
        max_orders: config.max_mesh_orders,
        lifetime: order_lifetime(config.mesh_samples, config.mesh_interval, config.sample_timeout),
    }
}

async fn order_mesh(
    scheduler: &Leader,
    mesh_pause: &Mutex<Option<MeshPause>>,
    fleet: &Fleet,
) -> anyhow::Result<Vec<AgentId>> {
    let (mut pause, version) = (mesh_pause.lock().await, fleet.version());
    if pause.as_ref().is_some_and(|pause| pause.fleet == version && Instant::now() < pause.ends) {
        return Ok(Vec::new());
    }
    let plan = mesh_plan(&scheduler.config.measure);
    let began = Instant::now();
    let planned = &plan;
    let order = scheduler.tx("order the mesh", |tx| async move { Ok(orders::order_mesh(tx, planned).await?) }.boxed());
    let ordered = order.await?;
    *pause =
        Some(MeshPause { fleet: version, ends: Instant::now() + pause_after(began.elapsed(), &ordered, plan.max_age) });
    Ok(ordered.probers)
}

async fn let_in(scheduler: &Leader) -> anyhow::Result<()> {
    let let_in = scheduler.tx("let tasks in", |tx| {
        async move {
            let begun = measuring_and_rounds::begin_measuring(tx, BATCH, MEASURING_AT_ONCE).await?;
            names_and_origins::follow_aliases(tx, &begun.aliases).await?;
            Ok(begun)
        }
        .boxed()
    });
    let begun = let_in.await?;
    if begun.tasks > 0 {
        // Stored measurements may already suffice to locate the tasks' sites.
        scheduler.wakes.locate.notify_one();
    }
    again_if_full(scheduler, begun.tasks);
    Ok(())
}

async fn order_sites(scheduler: &Leader, probers: &[AgentId]) -> anyhow::Result<Vec<AgentId>> {
    let config = &scheduler.config.measure;
    let order = scheduler.tx("order sites", |tx| {
        async move {
            let mut open = orders::open_site_orders(tx, probers).await?;
            open.retain(|_, held| *held < config.max_site_orders);
            let free: Vec<AgentId> = probers.iter().copied().filter(|prober| open.contains_key(prober)).collect();
            let due = orders::due_sites(tx, &free, config.site_max_age, BATCH).await?;
            let orders = spread(&due, open, config.max_site_orders);
            let lifetime = order_lifetime(config.site_samples, config.site_interval, config.sample_timeout);
            Ok(orders::order_sites(tx, &orders, lifetime).await?)
        }
        .boxed()
    });
    let ordered = order.await?;
    again_if_full(scheduler, u64::try_from(ordered.len()).unwrap_or(u64::MAX));
    Ok(ordered)
}

/// Signals another pass if this pass reached its limit.
fn again_if_full(scheduler: &Leader, done: u64) {
    if i64::try_from(done).is_ok_and(|done| done >= BATCH) {
        scheduler.wakes.measure.notify_one();
    }
}

/// Gives each site to the prober with the fewest open orders among those that have not measured the
/// site yet. A prober gets at most `most` orders, and at most one site per address gets an order.
pub(super) fn spread(due: &[DueSite], mut open: HashMap<AgentId, u32>, most: u32) -> Vec<(SiteId, AgentId)> {
    let mut orders = Vec::with_capacity(due.len());
    let mut taken = HashSet::new();
    for site in due {
        let load = |prober: &&AvailableProber| open.get(&prober.prober).copied().unwrap_or(u32::MAX);
        let may = |prober: &&AvailableProber| {
            load(prober) < most && !prober.address.is_some_and(|address| taken.contains(&address))
        };
        let Some(&prober) = site.probers.iter().filter(may).min_by_key(load) else { continue };
        taken.extend(prober.address);
        open.entry(prober.prober).and_modify(|held| *held += 1);
        orders.push((site.site, prober.prober));
    }
    orders
}

/// The connected agents, and the chosen landmarks.
#[derive(Debug)]
pub(super) struct Fleet {
    pub(super) connected: Vec<ConnectedAgent>,
    pub(super) landmarks: Vec<AgentId>,
    quarantined: Vec<AgentId>,
}

/// The newest session of the connected agents, and the chosen landmarks.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FleetVersion {
    newest: Option<SessionId>,
    landmarks: Vec<AgentId>,
}

impl Fleet {
    pub(super) async fn read(conn: &mut PgConnection) -> Result<Self, Error> {
        let landmarks = landmarks::list(conn).await?.into_iter().map(|landmark| landmark.agent).collect();
        let quarantined =
            quarantines_and_contradictions::open(conn).await?.into_iter().map(|held| held.agent).collect();
        Ok(Self { connected: landmarks::connected(conn).await?, landmarks, quarantined })
    }

    /// The version changes when an agent connects or other landmarks are chosen, because further
    /// pairs of agents may then be due to be measured.
    fn version(&self) -> FleetVersion {
        FleetVersion {
            newest: self.connected.iter().map(|connected| connected.session).max(),
            landmarks: self.landmarks.clone(),
        }
    }

    /// The connected agents that measure sites, or the reason why there are none.
    pub(super) fn probers(&self) -> Result<Vec<AgentId>, WaitCause> {
        let agents = self.connected.iter().map(|connected| connected.agent);
        let probers: Vec<AgentId> = match (self.landmarks.is_empty(), self.connected.len()) {
            (true, 0) => return Err(WaitCause::NoAgent),
            (true, count) if count > SMALL_FLEET => return Err(WaitCause::NoLandmarks),
            (true, _) => agents.collect(),
            (false, _) => agents.filter(|agent| self.landmarks.contains(agent)).collect(),
        };
        if probers.is_empty() {
            return Err(WaitCause::LandmarksAway);
        }
        let believed = self.believed(probers);
        if believed.is_empty() { Err(WaitCause::AllQuarantined) } else { Ok(believed) }
    }

    /// The agents that may be fitted as landmarks; empty in a large fleet without chosen landmarks.
    pub(super) fn candidates(&self) -> Vec<AgentId> {
        if !self.landmarks.is_empty() {
            return self.believed(self.landmarks.clone());
        }
        if self.connected.len() > SMALL_FLEET {
            return Vec::new();
        }
        let reachable = self.connected.iter().filter(|connected| connected.has_beacon);
        self.believed(reachable.map(|connected| connected.agent).collect())
    }

    fn believed(&self, mut agents: Vec<AgentId>) -> Vec<AgentId> {
        agents.retain(|agent| !self.quarantined.contains(agent));
        agents
    }
}

/// Maximum lifetime of an order. Each request may take its whole interval and time-out.
pub(super) fn order_lifetime(samples: u32, interval: Duration, timeout: Duration) -> Duration {
    (interval + timeout) * samples.saturating_add(EXTRA_REQUESTS) + ORDER_SLACK
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use crate::jobs::fixtures::{Trial, took};
    use crate::store::fixtures;
    use crate::store::measurements::orders::OrderTarget;
    use crate::store::schedulers::Role;

    use super::*;

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_agent_that_connects_ends_the_pause_of_the_mesh(pool: PgPool) {
        let mut trial = Trial::new(pool, 2).await;
        let measure = Measure::new(trial.on(Role::Plan));
        let fleet = Fleet::read(&mut *trial.conn().await).await.expect("read");
        let pause = MeshPause { fleet: fleet.version(), ends: Instant::now() + Duration::from_secs(3600) };
        *measure.mesh_pause.lock().await = Some(pause);
        let orders = "select count(*) from measurement_orders where agent_id is not null";
        measure.run_once().await.expect("a pass");
        assert_eq!(trial.read::<i64>(orders).await, 0);
        trial.join().await;
        measure.run_once().await.expect("a pass");
        assert_eq!(trial.read::<i64>(orders).await, 6);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_site_is_measured_by_one_prober_after_the_other(pool: PgPool) {
        let trial = Trial::new(pool, 2).await;
        let (_, site) = trial.task("a.cn").await;
        let mut probers = Vec::new();
        for _ in &trial.agents {
            trial.measure().await;
            trial.measure().await;
            let orders = trial.site_orders().await;
            assert_eq!(orders.len(), 1, "one open order a site: {orders:?}");
            assert_eq!(orders[0].1, site);
            let prober = *trial.agents.iter().find(|(agent, _)| *agent == orders[0].0).expect("a connected prober");
            trial.answer(prober, |_| Some(took(10))).await;
            probers.push(prober.0);
        }
        trial.measure().await;
        assert_eq!(trial.site_orders().await, [], "everyone has measured it");
        probers.sort();
        assert_eq!(probers, [trial.agents[0].0, trial.agents[1].0]);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_order_not_answered_in_time_is_a_failure_and_the_site_moves_on(pool: PgPool) {
        let trial = Trial::new(pool, 2).await;
        trial.task("a.cn").await;
        trial.measure().await;
        let silent = trial.site_orders().await[0].0;
        trial.execute("update measurement_orders set expires_at = now() - interval '1 second'").await;
        trial.measure().await;
        let orders = trial.site_orders().await;
        assert_eq!(orders.len(), 1);
        assert_ne!(orders[0].0, silent, "the next prober's prober");
        let failure: String =
            trial.read_for("select failure from site_measurements where prober_id = $1", silent.get()).await;
        assert_eq!(failure, "no report from the prober in time");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_order_of_a_session_that_ended_goes_to_somebody_connected(pool: PgPool) {
        let trial = Trial::new(pool, 1).await;
        trial.task("a.cn").await;
        trial.measure().await;
        trial.answer(trial.agents[0], |_| None).await;
        trial.session(trial.agents[0].0).await;
        trial.measure().await;
        assert_eq!(trial.site_orders().await.len(), 1);
        assert_eq!(trial.count("select count(*) from measurement_orders where session_id is not null").await, 0);
        assert_eq!(trial.count("select count(*) from site_measurements").await, 0, "nobody failed");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn ten_agents_without_landmarks_wait_and_say_why_without_a_word_to_any_task(pool: PgPool) {
        let trial = Trial::new(pool, 10).await;
        let (task, _) = trial.task("a.cn").await;
        for _ in 0..2 {
            trial.measure().await;
            assert_eq!(trial.waits(task).await, Some(WaitCause::NoLandmarks));
        }
        let rewritten = "select count(*) from tasks where xmax <> 0 or state <> 'submitted' or reason is not null";
        assert_eq!(trial.count(rewritten).await, 0);
        assert_eq!(trial.site_orders().await, []);

        trial.set_landmarks(&trial.agents[..1]).await;
        trial.measure().await;
        assert_eq!(trial.count("select count(*) from stage_causes").await, 0);
        assert_eq!(trial.waits(task).await, Some(WaitCause::Measurements));
        assert_eq!(trial.site_orders().await[0].0, trial.agents[0].0);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_order_is_not_swallowed_by_a_stream_that_outlived_its_session(pool: PgPool) {
        let trial = Trial::new(pool, 1).await;
        trial.task("a.cn").await;
        let newer = trial.session(trial.agents[0].0).await;
        trial.measure().await;
        assert_eq!(trial.answer(trial.agents[0], |_| Some(took(10))).await, [], "the former stream");
        assert_eq!(trial.answer((trial.agents[0].0, newer), |_| Some(took(10))).await.len(), 1);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn beacons_are_ordered_landmarks_first_and_no_more_than_a_prober_may_hold(pool: PgPool) {
        let trial = Trial::new(pool, 8).await;
        trial.set_landmarks(&trial.agents[5..]).await;
        let most = i64::from(trial.scheduler.config.measure.max_mesh_orders);
        trial.measure().await;
        trial.measure().await;
        let held =
            "select max(held)::bigint from (select count(*) as held from measurement_orders group by prober_id) x";
        assert_eq!(trial.count(held).await, most);
        let to_landmarks = "select count(*) from measurement_orders join landmarks using (agent_id)";
        assert_eq!(trial.count(to_landmarks).await, 8 * 3 - 3, "every landmark from everyone but itself");

        // After a report, an agent can get further orders. After a few passes, the whole mesh is
        // measured and no order is open.
        for _ in 0..4 {
            for agent in &trial.agents {
                trial.answer(*agent, |_| Some(took(10))).await;
            }
            trial.measure().await;
        }
        assert_eq!(trial.count("select count(*) from mesh_measurements").await, 8 * 7);
        assert_eq!(trial.count("select count(*) from measurement_orders").await, 0);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_beacon_that_failed_is_tried_again_later(pool: PgPool) {
        let trial = Trial::new(pool, 2).await;
        trial.measure().await;
        trial.answer(trial.agents[0], |_| Some(Err("connect: refused".into()))).await;
        trial.answer(trial.agents[1], |_| Some(took(10))).await;
        trial.measure().await;
        assert_eq!(trial.count("select count(*) from measurement_orders").await, 0, "not at once");
        trial.execute("update mesh_measurements set measured_at = now() - interval '5 minutes'").await;
        trial.measure().await;
        let again = "select prober_id from measurement_orders";
        assert_eq!(trial.count(again).await, trial.agents[0].0.get(), "the failure, not the round trip");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_beacon_that_failed_is_tried_at_once_when_either_agent_has_started_again(pool: PgPool) {
        let mut trial = Trial::new(pool, 2).await;
        trial.measure().await;
        trial.answer(trial.agents[1], |_| Some(took(10))).await;
        for restarted in 0..2 {
            trial.answer(trial.agents[0], |_| Some(Err("connect: refused".into()))).await;
            trial.measure().await;
            assert_eq!(trial.count("select count(*) from measurement_orders").await, 0, "not at once");
            trial.agents[restarted].1 = trial.session(trial.agents[restarted].0).await;
            trial.measure().await;
            let again = "select prober_id from measurement_orders";
            assert_eq!(trial.count(again).await, trial.agents[0].0.get(), "the failure, not the round trip");
        }
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_doubted_site_is_measured_anew_before_its_next_task_and_shares_nothing(pool: PgPool) {
        let trial = Trial::new(pool, 1).await;
        let (task, _) = trial.task("a.cn").await;
        trial.measure().await;
        trial.answer(trial.agents[0], |_| Some(took(10))).await;
        trial.execute("update tasks set state = 'done'").await;
        let batch = trial.batch("again", "gnp-top3").await;
        let (next, _) = trial.task_of(batch, "a.cn", "submitted").await;
        trial.measure().await;
        assert_eq!(trial.site_orders().await, [], "what is known is enough");

        trial.execute("update sites set doubted_at = now()").await;
        trial.measure().await;
        assert_eq!(trial.site_orders().await.len(), 1);
        let mut conn = trial.conn().await;
        let orders = orders::take_unsent(&mut conn, trial.agents[0].0, trial.agents[0].1).await.expect("take orders");
        assert!(matches!(orders[0].target, OrderTarget::Site { may_share: false, .. }), "{orders:?}");
        fixtures::measure(&mut conn, trial.agents[0].0, orders[0].id, &took(90).into()).await;
        trial.measure().await;
        assert_eq!(trial.site_orders().await, []);
        assert_ne!(task, next);
    }

    #[test]
    fn a_pause_is_short_only_while_due_measurements_wait_and_others_are_ordered() {
        let (took, hour) = (Duration::from_millis(750), Duration::from_secs(3600));
        let pause = |ordered, more_due, max_age| {
            pause_after(took, &MeshOrders { probers: vec![AgentId::new(1); ordered], more_due }, max_age)
        };
        let long = Duration::from_millis(37_500);
        assert_eq!(pause(1, true, hour), Duration::from_secs(3));
        assert_eq!([pause(1, false, hour), pause(0, true, hour), pause(0, false, hour)], [long; 3]);
        assert_eq!(pause(0, false, Duration::from_secs(60)), Duration::from_secs(6));
    }

    #[test]
    fn sites_are_spread_over_probers_within_their_bounds() {
        let (a, b) = (AgentId::new(1), AgentId::new(2));
        let seen_at = |site: u8, probers: &[(AgentId, u8)]| DueSite {
            site: SiteId::new(site.into()),
            probers: probers
                .iter()
                .map(|&(prober, last)| AvailableProber { prober, address: Some([192, 0, 2, last].into()) })
                .collect(),
        };
        let at = |site: u8, last: u8| seen_at(site, &[(a, last), (b, last)]);
        let due: Vec<DueSite> = (0..6).map(|site| at(site, site)).collect();
        let orders = spread(&due, HashMap::from([(a, 0), (b, 2)]), 4);
        let given = |agent| orders.iter().filter(|(_, prober)| *prober == agent).count();
        assert_eq!((given(a), given(b)), (4, 2));
        assert_eq!(spread(&[seen_at(9, &[(a, 9)])], HashMap::from([(a, 4), (b, 0)]), 4), []);

        let neighbours = [at(1, 1), at(2, 1), at(3, 2)];
        let orders = spread(&neighbours, HashMap::from([(a, 0), (b, 0)]), 4);
        assert_eq!(orders, [(SiteId::new(1), a), (SiteId::new(3), b)], "one site an address");

        let elsewhere_for_b = [at(1, 1), seen_at(2, &[(a, 1), (b, 2)])];
        let orders = spread(&elsewhere_for_b, HashMap::from([(a, 0), (b, 3)]), 4);
        assert_eq!(orders, [(SiteId::new(1), a), (SiteId::new(2), b)], "where that prober sees it");
    }

    #[test]
    fn an_order_may_use_every_time_out_before_it_is_given_up() {
        let lifetime = order_lifetime(5, Duration::from_secs(1), Duration::from_secs(5));
        assert_eq!(lifetime, Duration::from_secs(7 * 6 + 10));
    }
}
