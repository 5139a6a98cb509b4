//! Decides whether the map must be fitted again, fits the new map, tells the operator why a fit was
//! made or refused, and decides which older embeddings are kept.
//!
//! A pass discards the new embedding if another one was stored since the fit began.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use futures_util::FutureExt as _;

use crate::gnp::{self, Embedding, FEWEST_LANDMARKS, FitError, Mesh, PlainSwitches, Quality};
use crate::jobs::fit::drift::{Drift, DriftInput, may_be_enough};
use crate::jobs::fit::landmarks::MeshState;
use crate::jobs::fit::trust;
use crate::jobs::leadership::Leader;
use crate::jobs::measure::Fleet;
use crate::model::EmbeddingEpoch;
use crate::store::Tx;
use crate::store::embeddings::{self, FitRequest, NewEmbedding, Newest};
use crate::store::measurements::reach::{self, ReachFailure};
use crate::store::measurements::{self, MeshMeasurement};
use crate::store::settings;
use crate::strategy::explain;

/// Maximum time that a fit waits for missing measurements of landmarks' beacons. The time is long
/// enough for a lost measurement order to expire and be sent again, so a fit leaves out only agents
/// that disconnect again and again.
const PATIENCE: Duration = Duration::from_secs(120);

/// Minimum time between two judgements of the map's drift. Drift means that the map fits newer
/// round trips worse than the round trips from which it was made. A judgement reads the whole mesh.
const JUDGED_EVERY: Duration = Duration::from_secs(60);

/// The map is fitted again if at least `1 / NEWER_SHARE` of the mesh's round trips are newer than
/// the last fit.
const NEWER_SHARE: i64 = 4;
/// Maximum number of newly joined agents listed by name in the reason for a fit. Further agents are
/// only counted.
const NAMED: usize = 3;

/// Number of newest embeddings that are always kept. An older embedding is kept only while a site
/// with an open task is placed in it.
const KEPT: i64 = 5;
/// Maximum number of placements deleted in one pass, which takes well under a second.
const FORGOTTEN_PER_PASS: i64 = 5_000;

#[derive(Debug)]
pub struct Fit {
    scheduler: Leader,
    /// The mesh on which the last fit failed. No fit is tried again on this mesh. Never locked
    /// across an await.
    refused: Mutex<Option<Vec<MeshMeasurement>>>,
    /// When the fit that is due began to wait for missing measurements of beacons. Never locked
    /// across an await.
    due_since: Mutex<Option<Instant>>,
    /// When the map's drift was judged last. Never locked across an await.
    judged: Mutex<Option<Instant>>,
    patience: Duration,
}

impl Fit {
    pub const fn new(scheduler: Leader) -> Self {
        Self {
            scheduler,
            refused: Mutex::new(None),
            due_since: Mutex::new(None),
            judged: Mutex::new(None),
            patience: PATIENCE,
        }
    }

    pub async fn run_once(&self) -> anyhow::Result<()> {
        let scheduler = &self.scheduler;
        prune(scheduler).await?;
        let max_age = scheduler.config.measure.mesh_max_age;
        let now = Instant::now();
        let survey = scheduler.tx("survey the map", |tx| Survey::read(tx, max_age, || self.may_judge(now)).boxed());
        let Survey { asked, mesh_state, newest, wanted, drift } = match survey.await? {
            Ok(survey) => survey,
            Err(TooFewLandmarks { why: Some(why) }) => return self.refuse(&why).await,
            Err(TooFewLandmarks { why: None }) => return Ok(()),
        };
        let dimensions = gnp::dimensions_of_fit(mesh_state.landmarks.len(), wanted);
        let drift = match drift {
            Some(input) => scheduler.compute(move || input.measure()).await?,
            None => None,
        };
        let Some(reason) = reason(&mesh_state, dimensions, newest.as_ref(), drift, asked) else {
            self.due_since.lock().unwrap_or_else(PoisonError::into_inner).take();
            return Ok(());
        };
        if !asked && self.waits_for(&mesh_state) {
            return Ok(());
        }
        let read = scheduler.tx("read the mesh", |tx| async move { Ok(measurements::mesh(tx).await?) }.boxed());
        let mesh = read.await?;
        if !asked && self.has_refused(&mesh) {
            return Ok(());
        }
        let review = trust::review(scheduler).await.context("judge the agents")?;
        if let Some(alarm) = review.alarm {
            // The last good embedding stays. No fit is tried again until there are new
            // measurements, or until the operator requests a fit.
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(mesh);
            return self.refuse(&alarm).await;
        }
        if review.changed {
            // A quarantine began or ended, so the set of agents whose measurements are used has
            // changed. The next pass reads the mesh again.
            return Ok(());
        }
        if let Some(wanted) = wanted.filter(|wanted| *wanted > dimensions) {
            let landmarks = mesh_state.landmarks.len();
            tracing::warn!(
                wanted,
                landmarks,
                fitted = dimensions,
                "the dimensions need more landmarks than can be fitted"
            );
        }
        let draw = scheduler.tx("draw an epoch", |tx| {
            async move { Ok((embeddings::latest(tx).await?, embeddings::next_epoch(tx).await?)) }.boxed()
        });
        let (former, epoch) = draw.await?;
        let switches = PlainSwitches::of(scheduler.config.map);
        let due = DueFit { reason, switches, epoch, dimensions, mesh_state, mesh, newest, former };
        self.fit(due).await
    }

    /// Fits an embedding and makes it the current one.
    async fn fit(&self, due: DueFit) -> anyhow::Result<()> {
        let (as_of, former) = (due.mesh_state.as_of, due.newest.as_ref().map(|newest| newest.epoch));
        // If the last fit is old, its error is not compared with that of the new fit, because the
        // network may have changed since.
        let young = due.newest.as_ref().is_some_and(|newest| !newest.aged);
        let last_good = due.former.as_ref().filter(|_| young).map(Embedding::fit_error);
        let fitted_on = due.mesh.clone();
        let solved = match self.scheduler.compute(move || due.solve()).await? {
            Ok(solved) => solved,
            Err((error, mesh)) => {
                *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(mesh);
                self.refuse(&error.to_string()).await?;
                return Err(error).context("fit the landmarks");
            }
        };
        if let Err(untrusted) = gnp::check_fit(&solved.embedding, last_good) {
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(fitted_on);
            self.refuse(&untrusted.to_string()).await?;
            return Err(untrusted.into());
        }
        let fitted = &solved;
        let take_over = self.scheduler.tx("take over a map", |tx| {
            async move {
                let taken = embeddings::take_over(tx, fitted, former).await?;
                if taken {
                    embeddings::answer_fit(tx, as_of).await?;
                }
                Ok(taken)
            }
            .boxed()
        });
        if take_over.await? {
            let embedding = &solved.embedding;
            tracing::info!(
                embedding.epoch = %embedding.epoch(),
                embedding.dimensions = embedding.dimensions(),
                embedding.landmarks = embedding.landmarks().len(),
                embedding.fit_error = embedding.fit_error(),
                reason = solved.reason,
                "a new embedding is in use"
            );
            self.scheduler.wakes.locate.notify_one();
            self.scheduler.wakes.fitted.notify_one();
        }
        Ok(())
    }

    /// Stores why the fit failed, as the answer to the operator who requested the fit.
    async fn refuse(&self, why: &str) -> anyhow::Result<()> {
        let refuse =
            self.scheduler.tx("refuse a fit", |tx| async move { Ok(embeddings::refuse_fit(tx, why).await?) }.boxed());
        refuse.await?;
        self.scheduler.wakes.fitted.notify_one();
        Ok(())
    }

    /// Whether the fit should still wait for missing measurements of landmarks' beacons.
    fn waits_for(&self, mesh_state: &MeshState) -> bool {
        let mut due_since = self.due_since.lock().unwrap_or_else(PoisonError::into_inner);
        let since = *due_since.get_or_insert_with(Instant::now);
        (mesh_state.landmark_gaps || mesh_state.agent_gaps) && since.elapsed() < self.patience
    }

    /// Whether the map's drift may be judged now. If so, records `now` as the time of the last
    /// judgement.
    fn may_judge(&self, now: Instant) -> bool {
        let mut judged = self.judged.lock().unwrap_or_else(PoisonError::into_inner);
        let may = judged.is_none_or(|last| now.saturating_duration_since(last) >= JUDGED_EVERY);
        if may {
            *judged = Some(now);
        }
        may
    }

    fn has_refused(&self, mesh: &[MeshMeasurement]) -> bool {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).as_deref() == Some(mesh)
    }
}

/// What decides whether the map must be fitted again.
struct Survey {
    /// Whether the operator requested a fit.
    asked: bool,
    mesh_state: MeshState,
    newest: Option<Newest>,
    /// The dimensions that the operator set.
    wanted: Option<usize>,
    /// `None` if the drift need not be judged now.
    drift: Option<DriftInput>,
}

/// There are too few landmarks for a map.
struct TooFewLandmarks {
    /// The reason, if the operator requested a fit.
    why: Option<String>,
}

impl Survey {
    async fn read(
        tx: &mut Tx<'_>,
        max_age: Duration,
        may_judge: impl Fn() -> bool + Send,
    ) -> anyhow::Result<Result<Self, TooFewLandmarks>> {
        let asked = embeddings::fit_request(tx).await? == FitRequest::Open;
        let fleet = Fleet::read(tx).await?;
        let mesh_state = MeshState::survey(tx, &fleet).await?;
        if mesh_state.landmarks.len() < FEWEST_LANDMARKS {
            if !asked {
                return Ok(Err(TooFewLandmarks { why: None }));
            }
            let trouble = reach::trouble(tx).await?;
            let unmeasured = measurements::mesh(tx).await?.is_empty();
            let why = too_few(&fleet, &mesh_state, trouble.as_ref(), unmeasured);
            return Ok(Err(TooFewLandmarks { why: Some(why) }));
        }
        let newest = embeddings::newest(tx, max_age).await?;
        let wanted = settings::dimensions(tx).await?.map(|wanted| usize::try_from(wanted).unwrap_or(usize::MAX));
        let drift = match &newest {
            Some(newest) if may_be_enough(newest) && may_judge() => DriftInput::read(tx, newest).await?,
            _ => None,
        };
        Ok(Ok(Self { asked, mesh_state, newest, wanted, drift }))
    }
}

/// Why the map must be fitted again; `None` if it need not be.
fn reason(
    mesh_state: &MeshState,
    dimensions: usize,
    newest: Option<&Newest>,
    drift: Option<Drift>,
    asked: bool,
) -> Option<String> {
    let Some(newest) = newest else { return Some("first".to_owned()) };
    if !mesh_state.holds(&newest.landmarks) {
        return Some("landmarks changed".to_owned());
    }
    if !newest.newcomers.is_empty() {
        return Some(joined(&newest.newcomers));
    }
    // The dimensions are compared only if the number of landmarks is unchanged. In a small fleet,
    // an agent may be disconnected for a moment; a fit without it would have too few dimensions.
    if newest.landmarks.len() == mesh_state.landmarks.len() && newest.dimensions != dimensions {
        return Some(format!("dimensions changed from {} to {dimensions}", newest.dimensions));
    }
    if asked {
        return Some("requested by the operator".to_owned());
    }
    if let Some(drift) = drift.filter(|drift| drift.is_large()) {
        return Some(format!("drift {:.0} %, {:.0} % when it was fitted", drift.now * 100.0, drift.fitted * 100.0));
    }
    let renewed = newest.newer_rows > 0 && newest.newer_rows.saturating_mul(NEWER_SHARE) >= newest.mesh_rows;
    (renewed && (newest.aged || !newest.mesh_busy)).then(|| {
        let share = newest.newer_rows.saturating_mul(100) / newest.mesh_rows.max(1);
        format!("{share} % of the mesh was measured again")
    })
}

fn joined(names: &[String]) -> String {
    let named = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    let s = if names.len() == 1 { "" } else { "s" };
    match names.len().saturating_sub(NAMED) {
        0 => format!("agent{s} {named} joined"),
        more => format!("agents {named} and {more} more joined"),
    }
}

struct DueFit {
    reason: String,
    switches: PlainSwitches,
    epoch: EmbeddingEpoch,
    dimensions: usize,
    mesh_state: MeshState,
    mesh: Vec<MeshMeasurement>,
    newest: Option<Newest>,
    former: Option<Embedding>,
}

impl DueFit {
    /// Fits the embedding. If the fit fails, returns the mesh on which it failed.
    fn solve(self) -> Result<NewEmbedding, (FitError, Vec<MeshMeasurement>)> {
        let (mesh, landmarks): (Mesh, _) = (self.mesh.iter().copied().collect(), &self.mesh_state.landmarks);
        // The epoch is the seed, so a fit can be repeated exactly. A retry after a failure has a
        // new epoch, so it uses another seed.
        let seed = self.epoch.get().unsigned_abs();
        let Self { switches, epoch, dimensions, .. } = self;
        let fitted = gnp::fit_with(switches, self.former.as_ref(), epoch, &mesh, landmarks, dimensions, seed);
        let embedding = match fitted {
            Ok(embedding) => embedding,
            Err(error) => return Err((error, self.mesh)),
        };
        let mesh_error = Quality::of(&embedding, &mesh).median_error();
        let median_move = self.former.as_ref().and_then(|former| embedding.median_move_from(former));
        Ok(NewEmbedding { embedding, as_of: self.mesh_state.as_of, reason: self.reason, mesh_error, median_move })
    }
}

/// Explains to the operator why no map can be fitted. `unmeasured` is true if no agent has measured
/// another agent.
fn too_few(fleet: &Fleet, mesh_state: &MeshState, trouble: Option<&ReachFailure>, unmeasured: bool) -> String {
    match (fleet.probers(), trouble) {
        // The failed measurements are named first, because no landmark can be elected without
        // measurements.
        (_, Some(trouble)) if unmeasured => {
            format!("no agent has reached the beacon of another: {trouble}")
        }
        (Err(cause), _) => explain::waits(&cause.into()),
        (Ok(_), trouble) => format!(
            "a map needs {FEWEST_LANDMARKS} landmarks that have measured each other, but there are {}: {}",
            mesh_state.landmarks.len(),
            trouble
                .map_or("`landfall agents list` shows which beacons are reached".to_owned(), ReachFailure::to_string)
        ),
    }
}

/// Deletes placements and embeddings that no site needs any more.
async fn prune(scheduler: &Leader) -> anyhow::Result<()> {
    let prune = scheduler
        .tx("forget old maps", |tx| async move { Ok(embeddings::prune(tx, KEPT, FORGOTTEN_PER_PASS).await?) }.boxed());
    let gone = prune.await?;
    if i64::try_from(gone).is_ok_and(|gone| gone >= FORGOTTEN_PER_PASS) {
        scheduler.wakes.fit.notify_one();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sqlx::PgPool;

    use crate::gnp::Placement;
    use crate::jobs::fixtures::Trial;
    use crate::model::{AgentId, Rtt};
    use crate::store::fixtures;
    use crate::store::schedulers::Role;

    use super::*;

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn the_drift_is_judged_at_most_once_a_minute(pool: PgPool) {
        let trial = Trial::new(pool, 0).await;
        let (fit, now) = (Fit::new(trial.on(Role::Fit)), Instant::now());
        let after = |seconds| fit.may_judge(now + Duration::from_secs(seconds));
        assert_eq!([0, 59, 60, 61, 120].map(after), [true, false, true, false, true]);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_fit_takes_over_with_every_placement_and_is_not_repeated(pool: PgPool) {
        let trial = Trial::new(pool, 5).await;
        assert!(trial.fitted().await.is_none(), "nothing is measured yet");
        trial.mesh(&trial.agents).await;
        let first = trial.fitted().await.expect("an embedding");
        assert_eq!(first.landmarks().len(), 5, "a small fleet's agents are its landmarks");
        assert!(trial.agents.iter().all(|(agent, _)| first.placement(*agent).is_some()));
        assert_eq!(trial.fitted().await.expect("still there"), first);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_fit_waits_for_the_mesh_to_be_complete(pool: PgPool) {
        let trial = Trial::new(pool, 5).await;
        trial.mesh(&trial.agents[..4]).await;
        assert!(trial.fitted().await.is_none(), "the fifth has tried nobody");
        trial.execute("update sessions set state = 'expired' where agent_id = (select max(id) from agents)").await;
        assert_eq!(trial.fitted().await.expect("an embedding").landmarks().len(), 4, "who is gone is not waited for");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn one_agent_that_never_answers_does_not_keep_the_others_from_a_map(pool: PgPool) {
        let trial = Trial::new(pool, 5).await;
        trial.mesh(&trial.agents[..4]).await;
        let impatient = Fit { patience: Duration::ZERO, ..Fit::new(trial.on(Role::Fit)) };
        impatient.run_once().await.expect("a pass");
        let embedding = trial.map().await.expect("an embedding");
        assert_eq!(embedding.landmarks().len(), 4);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn other_landmarks_or_a_new_agent_are_fitted_anew(pool: PgPool) {
        let mut trial = Trial::new(pool, 6).await;
        trial.mesh(&trial.agents).await;
        trial.set_landmarks(&trial.agents[..4]).await;
        let ids: Vec<AgentId> = trial.agents.iter().map(|(agent, _)| *agent).collect();
        let first = trial.fitted().await.expect("an embedding");
        assert_eq!(first.landmarks(), &ids[..4]);

        trial.set_landmarks(&trial.agents[1..5]).await;
        let second = trial.fitted().await.expect("an embedding");
        assert_eq!(second.landmarks(), &ids[1..5]);
        assert!(second.epoch() > first.epoch());

        let newcomer = trial.join().await;
        assert_eq!(trial.fitted().await.expect("an embedding"), second, "not measured yet");
        trial.mesh(&trial.agents).await;
        let third = trial.fitted().await.expect("an embedding");
        assert!(third.placement(newcomer).is_some());

        trial.execute("update settings set dimensions = 2").await;
        assert_eq!(trial.fitted().await.expect("an embedding").dimensions(), 2);
        let history = embeddings::history(&mut *trial.conn().await, 10).await.expect("read the history");
        let reasons: Vec<String> = history.into_iter().map(|epoch| epoch.reason).collect();
        let expected = ["dimensions changed from 3 to 2", "agent a6 joined", "landmarks changed", "first"];
        assert_eq!(reasons, expected);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_network_that_changed_is_seen_by_its_drift_while_beacons_are_still_measured(pool: PgPool) {
        let trial = Trial::new(pool, 6).await;
        trial.mesh(&trial.agents).await;
        let first = trial.fitted().await.expect("an embedding");
        // An order for one agent to measure another stays open, so the mesh always has a gap.
        trial
            .execute(
                "insert into measurement_orders (prober_id, agent_id, expires_at)
                 select min(id), max(id), now() + interval '1 hour' from agents",
            )
            .await;
        trial.execute("update mesh_measurements set measured_at = now() + interval '1 second'").await;
        assert_eq!(trial.fitted().await.expect("still there"), first, "measured again, and nothing changed");
        trial.execute("update mesh_measurements set rtt_us = rtt_us * 2").await;
        let second = trial.fitted().await.expect("an embedding");
        assert!(second.epoch() > first.epoch());
        let newest = embeddings::history(&mut *trial.conn().await, 1).await.expect("read").remove(0);
        assert!(newest.reason.starts_with("drift "), "{}", newest.reason);
        assert!(newest.median_move.expect("there was a former one").0 > Duration::from_millis(5));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_operator_who_asks_gets_a_fit_or_a_reason_why_not(pool: PgPool) {
        let trial = Trial::new(pool, 4).await;
        embeddings::ask_for_fit(&mut *trial.conn().await).await.expect("ask");
        assert!(trial.fitted().await.is_none());
        let state = embeddings::fit_request(&mut *trial.conn().await).await.expect("read");
        let FitRequest::Refused(why) = state else { panic!("{state:?}") };
        assert!(why.starts_with("a map needs 3 landmarks that have measured each other, but there are 0"), "{why}");

        trial.mesh(&trial.agents).await;
        let first = trial.fitted().await.expect("an embedding");
        assert_eq!(trial.fitted().await.expect("still there"), first);
        embeddings::ask_for_fit(&mut *trial.conn().await).await.expect("ask");
        let second = trial.fitted().await.expect("an embedding");
        assert!(second.epoch() > first.epoch());
        assert_eq!(embeddings::fit_request(&mut *trial.conn().await).await.expect("read"), FitRequest::None);
        assert_eq!(trial.fitted().await.expect("still there"), second, "asked once, fitted once");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_fit_begun_before_another_took_over_is_dropped(pool: PgPool) {
        let trial = Trial::new(pool, 4).await;
        trial.mesh(&trial.agents).await;
        let first = trial.fitted().await.expect("an embedding");
        let mut tx = fixtures::begin(trial.scheduler.db.pool()).await;
        let as_of = embeddings::clock(&mut tx).await.expect("the time");
        let reason = "late".to_owned();
        let late = NewEmbedding { embedding: first, as_of, reason, mesh_error: None, median_move: None };
        let taken = embeddings::take_over(&mut tx, &late, None).await.expect("no failure");
        assert!(!taken, "it knew of no former embedding");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn too_few_landmarks_make_no_map(pool: PgPool) {
        let trial = Trial::new(pool, 2).await;
        trial.mesh(&trial.agents).await;
        assert!(trial.fitted().await.is_none());
    }

    /// Eight agents on a line with 10 ms between neighbours, and their mesh with every distance
    /// multiplied by `factor`.
    fn line(factor: f64) -> (Embedding, Mesh) {
        let epoch = EmbeddingEpoch::new(1);
        let mut mesh = Mesh::new();
        let mut placed = BTreeMap::new();
        for i in 0..8_i32 {
            let coordinate = vec![f64::from(i) * 10.0, 0.0];
            placed.insert(AgentId::new(i64::from(i)), Placement { epoch, coordinate, fit_error: 0.0 });
            for j in (0..8_i32).filter(|&j| j != i) {
                let rtt = Rtt::try_from_millis_f64(f64::from((i - j).abs()) * 10.0 * factor).unwrap();
                mesh.insert(AgentId::new(i64::from(i)), AgentId::new(i64::from(j)), rtt);
            }
        }
        let landmarks = (0..4).map(AgentId::new).collect();
        (Embedding::from_parts(epoch, 1, landmarks, placed, 0.0).unwrap(), mesh)
    }

    #[test]
    fn drift_is_seen_when_distances_change_and_not_when_few_were_measured() {
        let (map, slower) = line(1.2);
        let drift = Drift::between(&map, &slower, 0.04, |_| true).expect("everything is fresh");
        assert!((drift.now - 1.2_f64.ln()).abs() < 1e-3 && drift.is_large(), "{drift:?}");
        assert!(!Drift { fitted: 0.15, ..drift }.is_large(), "it never fitted better");
        assert!(!Drift { now: 0.004, fitted: 0.001 }.is_large(), "four times next to nothing");
        assert_eq!(Drift::between(&map, &slower, 0.04, |(a, _)| a == AgentId::new(0)), None, "7 of 28 pairs");
    }

    #[test]
    fn newcomers_are_named_and_many_counted() {
        let names = ["a", "b", "c", "d", "e"].map(str::to_owned);
        assert_eq!(joined(&names[..1]), "agent a joined");
        assert_eq!(joined(&names[..2]), "agents a, b joined");
        assert_eq!(joined(&names), "agents a, b, c and 2 more joined");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn old_embeddings_go_when_nobody_lies_in_them_and_their_history_stays(pool: PgPool) {
        let trial = Trial::new(pool, 4).await;
        trial.mesh(&trial.agents).await;
        trial.fitted().await.expect("an embedding");
        let (_, waiting) = trial.task("waits.cn").await;
        let (done, _) = trial.task("done.cn").await;
        trial.execute_for("update tasks set state = 'cancelled' where id = $1", done.get()).await;
        trial
            .execute(
                "insert into site_placements (site_id, epoch, coordinate, fit_error)
                 select sites.id, epoch, array[1, 1, 1, 0], 0 from sites, embeddings",
            )
            .await;
        for _ in 0..KEPT + 3 {
            embeddings::ask_for_fit(&mut *trial.conn().await).await.expect("ask");
            trial.fitted().await.expect("an embedding");
        }
        trial.fitted().await.expect("an embedding");
        assert_eq!(trial.count("select count(*) from embeddings").await, KEPT + 1, "one site waits in the first");
        assert_eq!(trial.count("select site_id from site_placements").await, waiting.get());
        assert_eq!(trial.count("select count(*) from embedding_history").await, KEPT + 4);

        trial.execute("update tasks set state = 'cancelled'").await;
        trial.fitted().await.expect("an embedding");
        assert_eq!(trial.count("select count(*) from embeddings").await, KEPT);
        assert_eq!(trial.count("select count(distinct epoch) from agent_placements").await, KEPT);
    }
}
