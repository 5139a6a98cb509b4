//! Locating: when every prober has answered for a site, computes the site's placement in the
//! embedding and moves its tasks to the state located. Also judges whether the site has one
//! location or several, looks up its geographic position, and places the sites of open tasks in a
//! new embedding.
//!
//! Every wait is bounded. If no prober could measure a site, its tasks become located, and the
//! reason is stored. If a site has too few measurements, or the fleet has no map, its tasks become
//! located, but the site gets no placement. The wait for an embedding has a time limit.
//!
//! The detector of sites with several locations, `gnp::AnycastDetector`, is pure; this file reads
//! its input and stores its result.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;

use crate::gnp::{AnycastDetector, Embedding, FEWEST_LANDMARKS, Locator, Mesh, Solver, SuspectedSite};
use crate::jobs::fit::landmarks::MeshState;
use crate::jobs::leadership::Leader;
use crate::jobs::measure::Fleet;
use crate::model::geo::Position;
use crate::model::{AgentId, EmbeddingEpoch, Rtt, SiteId, Stage, Unmeasured, UnmeasuredCause, WaitCause};
use crate::store::embeddings::placements::{self, LocatedSite, OutdatedSite};
use crate::store::measurements;
use crate::store::sites::positions_and_verdicts;
use crate::store::tasks::measuring_and_rounds::{self, MeasuredSite};
use crate::store::tasks::unmet_and_wait_causes;
use crate::store::{Tx, agents};

const SITES_PER_PASS: i64 = 500;

/// Maximum time that a site waits for an embedding that will soon be ready. It is long enough to
/// measure the mesh several times.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub struct Locate {
    scheduler: Leader,
    judge: Judge,
}

impl Locate {
    pub const fn new(scheduler: Leader) -> Self {
        Self { scheduler, judge: Judge::new() }
    }

    pub async fn run_once(&self) -> anyhow::Result<()> {
        let scheduler = &self.scheduler;
        let read = scheduler.tx("read the map", |tx| scheduler.maps.embedding(tx).boxed());
        let embedding = read.await?;
        if let Some(embedding) = &embedding {
            relocate(scheduler, &self.judge, embedding, SITES_PER_PASS).await?;
        }
        let max_age = scheduler.config.measure.site_max_age;
        let find = scheduler.tx("find measured sites", |tx| measured_sites(tx, max_age).boxed());
        let Some((heard, mesh_state)) = find.await? else { return Ok(()) };
        let full = heard.len() == usize::try_from(SITES_PER_PASS).unwrap_or(usize::MAX);
        let awaits_fit = mesh_state.awaits_fit(embedding.as_deref());
        let moved = self.settle(heard, embedding, awaits_fit).await?;
        if moved > 0 {
            scheduler.wakes.assign.notify_one();
            scheduler.wakes.confirm.notify_one();
            // Fewer tasks are now being measured, so the measuring of other tasks may begin. If
            // this pass was full, more sites may be ready to be located.
            scheduler.wakes.measure.notify_one();
            if full {
                scheduler.wakes.locate.notify_one();
            }
        }
        Ok(())
    }

    /// Decides whether each site is located, and stores all decisions in one transaction. Returns
    /// the number of tasks that became located.
    async fn settle(
        &self,
        heard: Vec<MeasuredSite>,
        embedding: Option<Arc<Embedding>>,
        awaits_fit: bool,
    ) -> anyhow::Result<u64> {
        let (waiting, going): (Vec<MeasuredSite>, Vec<MeasuredSite>) =
            heard.into_iter().partition(|site| awaits_fit && !site.overdue && site.measured.len() >= FEWEST_LANDMARKS);
        let awaited = (!waiting.is_empty()).then_some(WaitCause::NoMap);
        let ended: Vec<(SiteId, Option<Unmeasured>)> = going.iter().map(|site| (site.site, unmeasured(site))).collect();
        let sites: Vec<SiteId> = ended.iter().map(|(site, _)| *site).collect();
        let judged = self.judge.judge(&self.scheduler, &sites, embedding.as_ref()).await?;
        look_up(&self.scheduler, &sites).await?;
        let located = match embedding {
            Some(embedding) => {
                let sites = going.into_iter().map(|site| (site.site, site.measured)).collect();
                place(&self.scheduler, &embedding, sites, Solver::Simplex).await?
            }
            None => Vec::new(),
        };
        let (located, judged, ended) = (&located, &judged, &ended);
        let store = self.scheduler.tx("locate sites", |tx| {
            async move {
                placements::upsert(tx, located).await?;
                positions_and_verdicts::upsert(tx, judged).await?;
                let moved = measuring_and_rounds::locate(tx, ended).await?;
                unmet_and_wait_causes::close(tx, Stage::Locating, awaited).await?;
                Ok(moved)
            }
            .boxed()
        });
        store.await
    }
}

/// The sites that every prober has measured, and the state of the mesh. `None` if there is no such
/// site, after storing that no site waits for a map.
async fn measured_sites(tx: &mut Tx<'_>, max_age: Duration) -> anyhow::Result<Option<(Vec<MeasuredSite>, MeshState)>> {
    let fleet = Fleet::read(tx).await?;
    let Ok(probers) = fleet.probers() else { return Ok(None) };
    let heard = measuring_and_rounds::heard(tx, &probers, max_age, PATIENCE, SITES_PER_PASS).await?;
    if heard.is_empty() {
        unmet_and_wait_causes::close(tx, Stage::Locating, None).await?;
        return Ok(None);
    }
    Ok(Some((heard, MeshState::survey(tx, &fleet).await?)))
}

/// Why a site has no measured round trip; `None` if a prober has measured the site.
fn unmeasured(site: &MeasuredSite) -> Option<Unmeasured> {
    let cause = if site.failure.is_some() { UnmeasuredCause::Failed } else { UnmeasuredCause::Silent };
    site.measured.is_empty().then(|| Unmeasured { cause, said: site.failure.clone().unwrap_or_default() })
}

/// Locates the sites of open tasks in a new embedding, a bounded number per pass. Sites without
/// an open task are located when they get an open task.
async fn relocate(scheduler: &Leader, judge: &Judge, embedding: &Arc<Embedding>, limit: i64) -> anyhow::Result<()> {
    let epoch = embedding.epoch();
    let read = scheduler.tx("find outdated placements", |tx| {
        async move {
            let outdated = placements::outdated(tx, epoch, limit).await?;
            let (open, idle): (Vec<OutdatedSite>, Vec<OutdatedSite>) = outdated.into_iter().partition(|site| site.open);
            let [sites, idle] = [open, idle].map(|of| of.into_iter().map(|site| site.site).collect::<Vec<SiteId>>());
            let measured = measurements::of_sites(tx, &sites).await?;
            Ok((sites, idle, measured))
        }
        .boxed()
    });
    let (sites, idle, measured) = read.await?;
    if sites.is_empty() && idle.is_empty() {
        return Ok(());
    }
    let full = sites.len() + idle.len() == usize::try_from(limit).unwrap_or(usize::MAX);
    let judged = judge.judge(scheduler, &sites, Some(embedding)).await?;
    let located = place(scheduler, embedding, measured.into_iter().collect(), Solver::LevenbergMarquardt).await?;
    let (sites, idle, judged, located) = (&sites, &idle, &judged, &located);
    let store = scheduler.tx("locate sites in a new map", |tx| {
        async move {
            placements::set_idle(tx, idle, epoch).await?;
            placements::upsert(tx, located).await?;
            positions_and_verdicts::upsert(tx, judged).await?;
            // Deletes the outdated placements that cannot be renewed, because otherwise every pass
            // would find them again.
            Ok(placements::forget_outdated(tx, sites, epoch).await?)
        }
        .boxed()
    });
    store.await?;
    if full {
        scheduler.wakes.locate.notify_one();
    }
    scheduler.wakes.assign.notify_one();
    Ok(())
}

/// A site and its probers' measurements.
type Measured = (SiteId, Vec<(AgentId, Rtt)>);

/// Locates the sites that can be located, on a thread outside the async runtime's own threads.
async fn place(
    scheduler: &Leader,
    embedding: &Arc<Embedding>,
    sites: Vec<Measured>,
    solver: Solver,
) -> anyhow::Result<Vec<LocatedSite>> {
    let embedding = Arc::clone(embedding);
    let place_all = move || match embedding.locator() {
        Ok(locator) => sites.into_iter().filter_map(|site| place_one(&embedding, &locator, site, solver)).collect(),
        Err(error) => {
            tracing::warn!(error = %error, "no site could be located; agents are chosen by measured distances");
            Vec::new()
        }
    };
    scheduler.compute(place_all).await
}

fn place_one(
    embedding: &Embedding,
    locator: &Locator<'_>,
    (site, mut measured): Measured,
    solver: Solver,
) -> Option<LocatedSite> {
    measured.retain(|(agent, _)| embedding.placement(*agent).is_some());
    if measured.len() < FEWEST_LANDMARKS {
        return None;
    }
    match locator.locate(&measured, solver) {
        Ok(placement) => Some(LocatedSite { site, placement }),
        Err(error) => {
            tracing::warn!(site.id = %site, error = %error,
                "a site could not be located; its agent is chosen by measured distances");
            None
        }
    }
}

/// Stores geographic positions of these sites, looked up by the sites' addresses. Omits sites
/// whose position was submitted with them.
async fn look_up(scheduler: &Leader, sites: &[SiteId]) -> anyhow::Result<()> {
    let Some(geoip) = &scheduler.geoip else { return Ok(()) };
    // A separate transaction, which ends before tasks are locked, keeps the lock order: a
    // site's row must be locked before the site's tasks.
    let look_up = scheduler.tx("look up sites", |tx| {
        async move {
            let seen = positions_and_verdicts::unlisted(tx, sites).await?;
            let found: Vec<(SiteId, Position)> =
                seen.into_iter().filter_map(|(site, address)| Some((site, geoip.position(address)?))).collect();
            Ok(positions_and_verdicts::looked_up(tx, &found).await?)
        }
        .boxed()
    });
    look_up.await
}

/// The inputs from which the current detector was created.
type MadeFrom = (Option<EmbeddingEpoch>, BTreeMap<AgentId, Position>);

/// Judges sites with the newest embedding. A detector is created only when the epoch or the agents'
/// positions change, because its creation draws thousands of points from the map.
#[derive(Debug, Default)]
struct Judge {
    /// Locked only while the detector is read or replaced, not while sites are judged.
    detector: Mutex<Option<(MadeFrom, Arc<AnycastDetector>)>>,
}

impl Judge {
    const fn new() -> Self {
        Self { detector: Mutex::new(None) }
    }

    /// Judges these sites and returns the verdicts to store.
    async fn judge(
        &self,
        scheduler: &Leader,
        sites: &[SiteId],
        embedding: Option<&Arc<Embedding>>,
    ) -> anyhow::Result<Vec<(SiteId, Option<SuspectedSite>)>> {
        if sites.is_empty() {
            return Ok(Vec::new());
        }
        let kept = self.detector.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let kept = &kept;
        let read = scheduler.tx("read what landmarks saw", |tx| {
            async move {
                let fleet = agents::places(tx).await?;
                let positions = fleet.iter().filter_map(|(&agent, place)| Some((agent, place.position?))).collect();
                let made_from: MadeFrom = (embedding.map(|embedding| embedding.epoch()), positions);
                let kept =
                    kept.as_ref().filter(|(from, _)| *from == made_from).map(|(_, detector)| Arc::clone(detector));
                let mesh =
                    if kept.is_none() && embedding.is_some() { measurements::mesh(tx).await? } else { Vec::new() };
                Ok((fleet, made_from, kept, mesh, measurements::observations(tx, sites).await?))
            }
            .boxed()
        });
        let (fleet, made_from, kept, mesh, observations) = read.await?;
        let embedding = embedding.cloned();
        let judge = move || {
            let positions = || made_from.1.clone();
            let detector = kept.unwrap_or_else(|| {
                Arc::new(match embedding {
                    None => AnycastDetector::without_map(positions()),
                    Some(embedding) => {
                        AnycastDetector::new(&embedding, &mesh.into_iter().collect::<Mesh>(), positions())
                    }
                })
            });
            let name =
                |agent: AgentId| fleet.get(&agent).map_or_else(|| format!("agent {agent}"), |agent| agent.name.clone());
            let judged = observations.into_iter().map(|(site, seen)| (site, detector.judge(&seen, name))).collect();
            (judged, (made_from, detector))
        };
        let (judged, detector) = scheduler.compute(judge).await?;
        *self.detector.lock().unwrap_or_else(PoisonError::into_inner) = Some(detector);
        Ok(judged)
    }
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use crate::config::Config;
    use crate::gnp::Tier;
    use crate::jobs::fixtures::{Agent, Trial, took};
    use crate::jobs::geoip::tests as geoip;
    use crate::store::measurements::orders::OrderTarget;
    use crate::store::schedulers::Role;
    use crate::store::sites::positions_and_verdicts::Source;

    use super::*;

    fn each(agents: &[Agent], millis: Option<u64>) -> Vec<(AgentId, Option<u64>)> {
        agents.iter().map(|(agent, _)| (*agent, millis)).collect()
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn one_agent_alone_is_enough(pool: PgPool) {
        let trial = Trial::new(pool, 1).await;
        let (task, _) = trial.task("a.cn").await;
        trial.measure().await;
        trial.locate().await;
        assert_eq!(trial.state(task).await, ("measuring".into(), None), "nobody has answered");
        trial.answer(trial.agents[0], |_| Some(took(20))).await;
        trial.locate().await;
        assert_eq!(trial.state(task).await, ("located".into(), None));
        assert_eq!(trial.count("select count(*) from site_placements").await, 0);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_site_is_where_its_address_is_unless_a_list_says_otherwise(pool: PgPool) {
        let mut trial = Trial::new(pool, 1).await;
        let geoip = geoip::opened(&geoip::file(&geoip::at(45.75, 126.5))).expect("a file");
        trial.scheduler.geoip = Some(std::sync::Arc::new(geoip));
        let place = |latitude: f64, longitude: f64| Position::try_new(latitude, longitude).expect("a position");
        let (_, known) = trial.task("a.cn").await;
        let (_, listed) = trial.task("b.cn").await;
        let (_, elsewhere) = trial.task("c.cn").await;
        let said = [("b.cn".parse().expect("a name"), place(1.0, 2.0))];
        positions_and_verdicts::listed(&mut *trial.conn().await, &said).await.expect("a list");
        trial.measure().await;
        for site in [known, listed, elsewhere] {
            trial.measured(site, &each(&trial.agents, Some(20))).await;
        }
        trial.execute("update site_measurements set address = '10.0.0.1'").await;
        trial
            .execute("update site_measurements m set address = '200.0.0.1' from sites s where s.id = m.site_id and s.name = 'c.cn'")
            .await;
        trial.locate().await;
        let sites = [known, listed, elsewhere];
        let found = positions_and_verdicts::of_sites(&mut *trial.conn().await, &sites).await.expect("read");
        let expected = [(known, (place(45.75, 126.5), Source::Geoip)), (listed, (place(1.0, 2.0), Source::List))];
        assert_eq!(found, expected.into());
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_site_waits_for_the_embedding_and_is_placed_in_it(pool: PgPool) {
        let trial = Trial::new(pool, 4).await;
        let (task, site) = trial.task("a.cn").await;
        trial.measure().await;
        trial.measured(site, &each(&trial.agents, Some(30))).await;
        trial.locate().await;
        assert_eq!(trial.waits(task).await, Some(WaitCause::NoMap));

        trial.mesh(&trial.agents).await;
        trial.fit().await;
        trial.locate().await;
        assert_eq!(trial.state(task).await, ("located".into(), None));
        let embedding = trial.map().await.expect("an embedding");
        let placed = placements::sites(&mut *trial.conn().await, &[site], embedding.epoch()).await.expect("read");
        assert!(embedding.predict(&placed[&site], embedding.placement(trial.agents[0].0).expect("placed")).is_ok());
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_embedding_that_does_not_come_is_not_waited_for_for_ever(pool: PgPool) {
        let trial = Trial::new(pool, 4).await;
        let (task, site) = trial.task("a.cn").await;
        trial.measure().await;
        trial.measured(site, &each(&trial.agents, Some(30))).await;
        trial.locate().await;
        assert_eq!(trial.state(task).await.0, "measuring");
        trial.execute("update tasks set state_since = state_since - interval '1 hour'").await;
        trial.locate().await;
        assert_eq!(trial.state(task).await, ("located".into(), None));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_fleet_whose_beacons_nobody_reaches_goes_without_a_map(pool: PgPool) {
        let trial = Trial::new(pool, 4).await;
        let (task, site) = trial.task("a.cn").await;
        trial.measure().await;
        trial.mesh(&trial.agents).await;
        trial.execute("update mesh_measurements set rtt_us = null, failure = 'connect: refused'").await;
        trial.measured(site, &each(&trial.agents, Some(30))).await;
        trial.locate().await;
        assert_eq!(trial.state(task).await, ("located".into(), None));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_site_nobody_can_measure_goes_on_with_a_reason(pool: PgPool) {
        let trial = Trial::new(pool, 3).await;
        let (task, site) = trial.task("a.cn").await;
        trial.measure().await;
        trial.measured(site, &each(&trial.agents[..2], None)).await;
        trial.locate().await;
        assert_eq!(trial.state(task).await.0, "measuring", "one has yet to try");
        trial.measured(site, &each(&trial.agents, None)).await;
        trial.locate().await;
        assert_eq!(trial.state(task).await, ("located".into(), None));
        let why: Vec<(String, String)> = trial.rows("select unmeasured::text, unmeasured_detail from tasks").await;
        assert_eq!(why, [("failed".to_owned(), "connect: refused".to_owned())]);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_landmark_that_is_away_is_not_waited_for(pool: PgPool) {
        let trial = Trial::new(pool, 3).await;
        trial.set_landmarks(&trial.agents[..2]).await;
        let (task, site) = trial.task("a.cn").await;
        trial.measure().await;
        trial.measured(site, &each(&trial.agents[..1], Some(10))).await;
        trial.locate().await;
        assert_eq!(trial.state(task).await.0, "measuring");
        trial.disconnect(trial.agents[1].0).await;
        trial.locate().await;
        assert_eq!(trial.state(task).await, ("located".into(), None));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_old_failure_is_tried_again_and_an_old_round_trip_is_not(pool: PgPool) {
        let trial = Trial::new(pool, 2).await;
        let (_, site) = trial.task("a.cn").await;
        trial.measured(site, &[(trial.agents[0].0, Some(10)), (trial.agents[1].0, None)]).await;
        trial.measure().await;
        assert_eq!(trial.site_orders().await, [(trial.agents[1].0, site)]);
    }

    /// Fits a map of this kind. Returns whether all heights (the last coordinates) are zero, and
    /// whether a refined map exists.
    async fn fitted_with(pool: PgPool, map: Tier) -> (bool, bool) {
        let trial = Trial::with(pool, 6, Config { map, ..Config::default() }).await;
        trial.mesh(&trial.agents).await;
        trial.set_landmarks(&trial.agents[..4]).await;
        trial.fit().await;
        let (_, site) = trial.task("a.cn").await;
        trial.measure().await;
        trial.measured(site, &each(&trial.agents[..5], Some(30))).await;
        trial.locate().await;
        let heights = "select coordinate[array_upper(coordinate, 1)] from site_placements
                       union all select coordinate[array_upper(coordinate, 1)] from agent_placements";
        let heights: Vec<(f64,)> = trial.rows(heights).await;
        assert_eq!(heights.len(), 7);
        let leader = trial.on(Role::Plan);
        let current = leader.maps.current(&leader).await.expect("read the map").expect("a map");
        (heights.iter().all(|(height,)| *height == 0.0), current.refined.is_some())
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn the_published_map_has_neither_heights_nor_clouds(pool: PgPool) {
        assert_eq!(fitted_with(pool, Tier::Gnp).await, (true, false));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn the_plain_map_has_heights_and_no_clouds(pool: PgPool) {
        assert_eq!(fitted_with(pool, Tier::Plain).await, (false, false));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn by_default_sites_are_clouds(pool: PgPool) {
        assert_eq!(fitted_with(pool, Tier::default()).await, (false, true));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn sites_that_wait_for_an_agent_are_carried_into_a_new_embedding(pool: PgPool) {
        let trial = Trial::new(pool, 6).await;
        trial.mesh(&trial.agents).await;
        trial.set_landmarks(&trial.agents[..4]).await;
        trial.fit().await;
        let (task, site) = trial.task("a.cn").await;
        trial.measure().await;
        trial.measured(site, &each(&trial.agents[..5], Some(30))).await;
        trial.locate().await;
        assert_eq!(trial.state(task).await.0, "located");
        // Of two further tasks, one is assigned and one has ended.
        for (name, moved) in [
            ("assigned.cn", "update tasks set state = 'assigned' where id = $1"),
            ("done.cn", "update tasks set state = 'cancelled' where id = $1"),
        ] {
            let (other, place) = trial.task(name).await;
            trial.measured(place, &each(&trial.agents[..5], Some(30))).await;
            trial.execute_for(moved, other.get()).await;
        }
        trial
            .execute(
                "insert into site_placements (site_id, epoch, coordinate, fit_error)
                 select sites.id, (select max(epoch) from embeddings), array[1, 1, 1, 0], 0
                 from sites on conflict do nothing",
            )
            .await;

        trial.set_landmarks(&trial.agents[1..5]).await;
        trial.fit().await;
        trial.locate().await;
        let newest = "select count(*) from site_placements where epoch = (select max(epoch) from embeddings)";
        assert_eq!(trial.count(newest).await, 2, "the done one stays where it was");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn two_schedulers_and_every_session_at_once_locate_every_origin_once(pool: PgPool) {
        const SITES: usize = 40;
        let trial = Trial::new(pool, 5).await;
        let batch = trial.batch("b", "gnp-top3").await;
        for index in 0..SITES {
            trial.task_of(batch, &format!("s{index}.a.cn"), "submitted").await;
        }
        let open = "select count(*) from tasks where state not in ('located', 'cancelled')";
        for _ in 0..100 {
            // Two names redirect to each origin, no matter which agent resolves them.
            let answers = trial.agents.iter().map(|agent| {
                trial.answer_at(*agent, |target| match target {
                    OrderTarget::Site { id, .. } => Some((took(30), Some(format!("http://o{}.a.cn", id.get() / 2)))),
                    OrderTarget::Beacon { .. } => Some((took(10), None)),
                })
            });
            let passes =
                async { tokio::join!(trial.measure(), trial.measure(), trial.fit(), trial.locate(), trial.locate()) };
            tokio::join!(futures_util::future::join_all(answers), passes);
            if trial.count(open).await == 0 {
                break;
            }
        }
        assert_eq!(trial.count(open).await, 0);
        let origins = trial.count("select count(distinct origin) from sites").await;
        assert_eq!(trial.count("select count(*) from tasks where state = 'located'").await, origins);
        assert_eq!(
            trial.count("select count(*) from site_placements join sites on id = site_id and alias_of is null").await,
            origins
        );
    }

    /// Ten agents on a line with 10 ms between neighbours, and a map. The six landmarks have
    /// measured a site; `millis` are its round trips. The last agent has the most free slots.
    async fn measured(pool: PgPool, millis: [u64; 6]) -> Trial {
        let trial = Trial::new(pool, 10).await;
        let landmarks = [0, 2, 4, 5, 7, 9].map(|place| trial.agents[place]);
        trial.mesh(&trial.agents).await;
        trial.set_landmarks(&landmarks).await;
        trial.fit().await;
        trial.execute("update agents set capacity = 50 where name = 'a9'").await;
        let (_, site) = trial.task("a.cn").await;
        trial.measure().await;
        let of_each = landmarks.into_iter().zip(millis).map(|((agent, _), millis)| (agent, Some(millis)));
        trial.measured(site, &of_each.collect::<Vec<_>>()).await;
        trial
    }

    async fn text(trial: &Trial, sql: &'static str) -> String {
        trial.read(sql).await
    }

    const CHOSEN: &str = "select a.name from assignments c join agents a on a.id = c.agent_id";

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_site_near_to_everybody_is_suspect_and_goes_to_the_freest_near_agent(pool: PgPool) {
        let trial = measured(pool, [4, 4, 4, 4, 4, 9]).await;
        trial.locate().await;
        trial.assign().await;
        assert_eq!(trial.count("select count(*) from site_verdicts where suspect and confidence > 0.5").await, 1);
        let evidence = text(&trial, "select evidence from site_verdicts").await;
        assert!(evidence.starts_with("several places explain the round trips"), "{evidence}");
        assert!(evidence.contains(" and a"), "agents are named: {evidence}");
        assert_eq!(text(&trial, CHOSEN).await, "a9", "farther than the others, near, and the freest");
        assert_eq!(text(&trial, "select cause::text from assignments where fallback is null").await, "spread");
        assert_eq!(text(&trial, "select strategy from assignments").await, "gnp-top3");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_site_in_one_place_is_judged_so_and_chosen_as_ever(pool: PgPool) {
        let trial = measured(pool, [4, 24, 44, 54, 74, 94]).await;
        trial.locate().await;
        trial.assign().await;
        assert_eq!(trial.count("select count(*) from site_verdicts where not suspect and evidence = ''").await, 1);
        assert_eq!(trial.count("select count(*) from assignments where cause = 'strategy'").await, 1);
        assert_ne!(text(&trial, CHOSEN).await, "a9");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn landmarks_that_were_sent_to_different_networks_make_a_site_suspect(pool: PgPool) {
        let trial = measured(pool, [4, 24, 44, 54, 74, 94]).await;
        trial.execute("update site_measurements set address = '192.0.2.1'").await;
        let elsewhere = "update site_measurements set address = '198.51.100.1' where prober_id = $1";
        trial.execute_for(elsewhere, trial.agents[9].0.get()).await;
        trial.locate().await;
        let evidence = text(&trial, "select evidence from site_verdicts where suspect").await;
        assert_eq!(evidence, "6 landmarks were sent to 2 different networks, 192.0.2.1 and 198.51.100.1 among them");
    }
}
