//! Runs one pass: fits a new embedding if there is a reason, and discards it if another one was
//! stored meanwhile.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::gnp::{self, Embedding, FEWEST_LANDMARKS, PlainSwitches};
use crate::jobs::fit::due::{self, Drift};
use crate::jobs::fit::fittable_landmarks::MeshState;
use crate::jobs::fit::refusals::{refuse, too_few};
use crate::jobs::fit::solve::DueFit;
use crate::jobs::fit::{kept_embeddings, trust};
use crate::jobs::leadership::Leader;
use crate::jobs::measure::Fleet;
use crate::store::embeddings::{self, FitRequest};
use crate::store::measurements::{self, MeshMeasurement, reach};
use crate::store::settings;

/// Maximum time that a fit waits for missing measurements of landmarks' beacons. The time is long
/// enough for a lost measurement order to expire and be sent again, so a fit leaves out only agents
/// that disconnect again and again.
const PATIENCE: Duration = Duration::from_secs(120);

/// Minimum time between two judgements of the map's drift. Drift means that the map fits newer
/// round trips worse than the round trips from which it was made. A judgement reads the whole mesh.
const JUDGED_EVERY: Duration = Duration::from_secs(60);

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
        kept_embeddings::prune(&self.scheduler).await?;
        let mut tx = self.scheduler.begin().await?;
        let asked = embeddings::fit_request(&mut tx).await.context("read the request for a fit")? == FitRequest::Open;
        let fleet = Fleet::read(&mut tx).await.context("read the fleet")?;
        let mesh_state = MeshState::survey(&mut tx, &fleet).await.context("survey the mesh")?;
        if mesh_state.landmarks.len() < FEWEST_LANDMARKS {
            if !asked {
                return Ok(());
            }
            let trouble = reach::trouble(&mut tx).await.context("read who does not reach whom")?;
            let unmeasured = measurements::mesh(&mut tx).await.context("read the mesh")?.is_empty();
            return refuse(tx, &too_few(&fleet, &mesh_state, trouble.as_ref(), unmeasured)).await;
        }
        let max_age = self.scheduler.config.measure.mesh_max_age;
        let newest = embeddings::newest(&mut tx, max_age).await.context("read the newest embedding")?;
        let wanted = settings::dimensions(&mut tx).await.context("read the settings")?;
        let wanted = wanted.map(|wanted| usize::try_from(wanted).unwrap_or(usize::MAX));
        let dimensions = gnp::dimensions_of_fit(mesh_state.landmarks.len(), wanted);
        let drift = match &newest {
            Some(newest) if due::may_be_enough(newest) && self.may_judge(Instant::now()) => {
                Drift::survey(&mut tx, newest).await.context("survey the drift")?
            }
            _ => None,
        };
        let Some(reason) = due::reason(&mesh_state, dimensions, newest.as_ref(), drift, asked) else {
            self.due_since.lock().unwrap_or_else(PoisonError::into_inner).take();
            return Ok(());
        };
        if !asked && self.waits_for(&mesh_state) {
            return Ok(());
        }
        let mesh = measurements::mesh(&mut tx).await.context("read the mesh")?;
        if !asked && self.has_refused(&mesh) {
            return Ok(());
        }
        tx.commit().await.context("end reading")?;
        let review = trust::review(&self.scheduler).await.context("judge the agents")?;
        if let Some(alarm) = review.alarm {
            // The last good embedding stays. No fit is tried again until there are new
            // measurements, or until the operator requests a fit.
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(mesh);
            return refuse(self.scheduler.begin().await?, &alarm).await;
        }
        if review.changed {
            // A quarantine began or ended, so the set of agents whose measurements are used has
            // changed. The next pass reads the mesh again.
            return Ok(());
        }
        let mut tx = self.scheduler.begin().await?;
        if let Some(wanted) = wanted.filter(|wanted| *wanted > dimensions) {
            let landmarks = mesh_state.landmarks.len();
            tracing::warn!(
                wanted,
                landmarks,
                fitted = dimensions,
                "the dimensions need more landmarks than can be fitted"
            );
        }
        let former = embeddings::latest(&mut tx).await.context("read the newest embedding")?;
        let epoch = embeddings::next_epoch(&mut tx).await.context("draw an epoch")?;
        tx.commit().await.context("commit the epoch")?;
        let switches = PlainSwitches::of(self.scheduler.config.map);
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
        let solved = tokio::task::spawn_blocking(move || due.solve()).await.context("run the fit")?;
        let solved = match solved {
            Ok(solved) => solved,
            Err((error, mesh)) => {
                *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(mesh);
                refuse(self.scheduler.begin().await?, &error.to_string()).await?;
                return Err(error).context("fit the landmarks");
            }
        };
        if let Err(untrusted) = gnp::check_fit(&solved.embedding, last_good) {
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(fitted_on);
            refuse(self.scheduler.begin().await?, &untrusted.to_string()).await?;
            return Err(untrusted.into());
        }
        let mut tx = self.scheduler.begin().await?;
        let fitted = solved.fitted(as_of);
        let taken = embeddings::take_over(&mut tx, &fitted, former).await.context("store the embedding")?;
        if taken {
            embeddings::answer_fit(&mut tx, as_of).await.context("answer the request for a fit")?;
        }
        tx.commit().await.context("commit the embedding")?;
        if taken {
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
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use sqlx::PgPool;

    use crate::jobs::fixtures::Trial;
    use crate::model::AgentId;
    use crate::store::embeddings::NewEmbedding;
    use crate::store::schedulers::terms::Role;

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
        let mut tx = crate::store::begin(&trial.scheduler.pool).await.expect("begin");
        let as_of = embeddings::clock(&mut tx).await.expect("the time");
        let late = NewEmbedding { embedding: &first, as_of, reason: "late", mesh_error: None, median_move: None };
        let taken = embeddings::take_over(&mut tx, &late, None).await.expect("no failure");
        assert!(!taken, "it knew of no former embedding");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn too_few_landmarks_make_no_map(pool: PgPool) {
        let trial = Trial::new(pool, 2).await;
        trial.mesh(&trial.agents).await;
        assert!(trial.fitted().await.is_none());
    }
}
