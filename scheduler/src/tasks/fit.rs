//! Fitting: turns the mesh into an embedding that takes over in one step.
//!
//! Fits when there is something new to fit (see `is_due`) and the mesh has no gap that is about to close. Several
//! schedulers may fit at once; the first to store wins and the others' work is dropped.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::Scheduler;
use crate::gnp::{self, Embedding, Mesh};
use crate::model::EmbeddingEpoch;
use crate::store::embeddings::Newest;
use crate::store::measurements::MeshMeasurement;
use crate::store::{self, embeddings, settings};

use super::fleet::{FEWEST_LANDMARKS, Fleet, Ground};

/// A fit is done anew when one in this many round trips is newer than it.
const NEWER_SHARE: i64 = 4;
/// How long a fit that is due waits for gaps in the mesh: longer than a beacon order lives, so that only an agent that
/// keeps coming and going is left behind.
const PATIENCE: Duration = Duration::from_secs(120);

/// The task that fits embeddings.
#[derive(Debug)]
pub struct Fit {
    scheduler: Scheduler,
    /// The mesh the last fit failed on. Never held across an await; it spares the processor the same failure again.
    refused: Mutex<Option<Vec<MeshMeasurement>>>,
    /// Since when a fit has been due that waits for the mesh. Never held across an await.
    due_since: Mutex<Option<Instant>>,
    patience: Duration,
}

impl Fit {
    /// A task of this scheduler.
    pub const fn new(scheduler: Scheduler) -> Self {
        Self { scheduler, refused: Mutex::new(None), due_since: Mutex::new(None), patience: PATIENCE }
    }

    /// One pass.
    ///
    /// # Errors
    /// When the database fails, or the mesh cannot be fitted.
    pub async fn run_once(&self) -> anyhow::Result<()> {
        let mut conn = self.scheduler.pool.acquire().await.context("reach the database")?;
        let fleet = Fleet::read(&mut conn).await.context("read the fleet")?;
        let ground = Ground::survey(&mut conn, &fleet).await.context("survey the mesh")?;
        if ground.landmarks.len() < FEWEST_LANDMARKS {
            return Ok(());
        }
        let max_age = self.scheduler.config.measure.mesh_max_age;
        let newest = embeddings::newest(&mut conn, max_age).await.context("read the newest embedding")?;
        let wanted = settings::dimensions(&mut conn).await.context("read the settings")?;
        let wanted = wanted.map(|wanted| usize::try_from(wanted).unwrap_or(usize::MAX));
        let dimensions = dimensions(ground.landmarks.len(), wanted);
        if !is_due(&ground, dimensions, newest.as_ref()) {
            self.due_since.lock().unwrap_or_else(PoisonError::into_inner).take();
            return Ok(());
        }
        if self.waits_for(&ground) || self.has_refused(&ground.mesh) {
            return Ok(());
        }
        if let Some(wanted) = wanted.filter(|wanted| *wanted > dimensions) {
            let landmarks = ground.landmarks.len();
            tracing::warn!(
                wanted,
                landmarks,
                fitted = dimensions,
                "fewer landmarks can be fitted than the dimensions need"
            );
        }
        let epoch = embeddings::next_epoch(&mut conn).await.context("draw an epoch")?;
        drop(conn);
        let as_of = ground.as_of;
        let embedding = self.fit(epoch, ground, dimensions).await?;
        let mut tx = store::begin(&self.scheduler.pool).await.context("reach the database")?;
        let former = newest.map(|newest| newest.epoch);
        let taken = embeddings::take_over(&mut tx, &embedding, former, as_of).await.context("store the embedding")?;
        tx.commit().await.context("commit the embedding")?;
        if taken {
            tracing::info!(
                embedding.epoch = %embedding.epoch(),
                embedding.dimensions = embedding.dimensions(),
                embedding.landmarks = embedding.landmarks().len(),
                embedding.fit_error = embedding.fit_error(),
                "a new embedding took over"
            );
            self.scheduler.wakes.locate.notify_one();
        }
        Ok(())
    }

    async fn fit(&self, epoch: EmbeddingEpoch, ground: Ground, dimensions: usize) -> anyhow::Result<Embedding> {
        let mut mesh = Mesh::new();
        for pair in &ground.mesh {
            mesh.insert(pair.prober, pair.target, pair.rtt);
        }
        let landmarks = ground.landmarks;
        // The epoch is the seed: a fit can be replayed, and one that went wrong is not repeated to the letter.
        let seed = epoch.get().unsigned_abs();
        let fitted = tokio::task::spawn_blocking(move || gnp::fit(epoch, &mesh, &landmarks, dimensions, seed))
            .await
            .context("run the fit")?;
        fitted.context("fit the landmarks").inspect_err(|_| {
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(ground.mesh);
        })
    }

    /// Whether the mesh has gaps that are still worth waiting for.
    fn waits_for(&self, ground: &Ground) -> bool {
        let mut due_since = self.due_since.lock().unwrap_or_else(PoisonError::into_inner);
        let since = *due_since.get_or_insert_with(Instant::now);
        (ground.landmark_gaps || ground.agent_gaps) && since.elapsed() < self.patience
    }

    fn has_refused(&self, mesh: &[MeshMeasurement]) -> bool {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).as_deref() == Some(mesh)
    }
}

/// Whether there is something new to fit: no embedding yet, other landmarks or dimensions, an agent it lacks, or a mesh
/// that has been measured anew for a good part and is either at rest or long overdue.
fn is_due(ground: &Ground, dimensions: usize, newest: Option<&Newest>) -> bool {
    let Some(newest) = newest else { return true };
    if !ground.holds(&newest.landmarks) || newest.lacks_an_agent {
        return true;
    }
    // In a small fleet somebody may be away; with fewer landmarks there would be fewer dimensions for no reason.
    let same_landmarks = newest.landmarks.len() == ground.landmarks.len();
    let renewed = newest.newer_rows > 0 && newest.newer_rows.saturating_mul(NEWER_SHARE) >= newest.mesh_rows;
    (same_landmarks && newest.dimensions != dimensions) || (renewed && (newest.aged || !newest.mesh_busy))
}

/// What the operator asked for, as far as so many landmarks can bear it; one landmark more than dimensions is needed.
fn dimensions(landmarks: usize, wanted: Option<usize>) -> usize {
    match wanted {
        None => gnp::default_dimensions(landmarks),
        Some(wanted) => wanted.min(landmarks.saturating_sub(1)).max(1),
    }
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::model::AgentId;
    use crate::tasks::trial::Trial;

    async fn pass(trial: &Trial) -> Option<Embedding> {
        Fit::new(trial.scheduler.clone()).run_once().await.expect("a pass");
        embeddings::latest(&mut *trial.conn().await).await.expect("read the embedding")
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_fit_takes_over_with_every_placement_and_is_not_repeated(pool: PgPool) {
        let trial = Trial::new(pool);
        let agents = trial.connect(5).await;
        assert!(pass(&trial).await.is_none(), "nothing is measured yet");
        trial.mesh(&agents).await;
        let first = pass(&trial).await.expect("an embedding");
        assert_eq!(first.landmarks().len(), 5, "a small fleet's agents are its landmarks");
        assert!(agents.iter().all(|(agent, _)| first.placement(*agent).is_some()));
        assert_eq!(pass(&trial).await.expect("still there"), first);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_fit_waits_for_the_mesh_to_be_complete(pool: PgPool) {
        let trial = Trial::new(pool);
        let agents = trial.connect(5).await;
        trial.mesh(&agents[..4]).await;
        assert!(pass(&trial).await.is_none(), "the fifth has tried nobody");
        trial.execute("update sessions set state = 'expired' where agent_id = (select max(id) from agents)").await;
        assert_eq!(pass(&trial).await.expect("an embedding").landmarks().len(), 4, "who is gone is not waited for");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn one_agent_that_never_answers_does_not_keep_the_others_from_a_map(pool: PgPool) {
        let trial = Trial::new(pool);
        let agents = trial.connect(5).await;
        trial.mesh(&agents[..4]).await;
        let impatient = Fit { patience: Duration::ZERO, ..Fit::new(trial.scheduler.clone()) };
        impatient.run_once().await.expect("a pass");
        let embedding = embeddings::latest(&mut *trial.conn().await).await.expect("read").expect("an embedding");
        assert_eq!(embedding.landmarks().len(), 4);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn other_landmarks_or_a_new_agent_are_fitted_anew(pool: PgPool) {
        let trial = Trial::new(pool);
        let mut agents = trial.connect(6).await;
        trial.mesh(&agents).await;
        trial.set_landmarks(&agents[..4]).await;
        let ids = |from: usize, to: usize, agents: &[(AgentId, _)]| -> Vec<AgentId> {
            agents[from..to].iter().map(|(agent, _)| *agent).collect()
        };
        let first = pass(&trial).await.expect("an embedding");
        assert_eq!(first.landmarks(), ids(0, 4, &agents));

        trial.set_landmarks(&agents[1..5]).await;
        let second = pass(&trial).await.expect("an embedding");
        assert_eq!(second.landmarks(), ids(1, 5, &agents));
        assert!(second.epoch() > first.epoch());

        let newcomer = crate::store::fixtures::agent(&mut *trial.conn().await, "newcomer").await;
        agents.push((newcomer, trial.session(newcomer).await));
        assert_eq!(pass(&trial).await.expect("an embedding"), second, "not measured yet");
        trial.mesh(&agents).await;
        let third = pass(&trial).await.expect("an embedding");
        assert!(third.placement(newcomer).is_some());

        trial.execute("update settings set dimensions = 2").await;
        assert_eq!(pass(&trial).await.expect("an embedding").dimensions(), 2);
        assert_eq!(trial.count("select count(*) from embeddings").await, 2, "only the former one is kept");
        assert_eq!(trial.count("select count(distinct epoch) from agent_placements").await, 2);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_fit_begun_before_another_took_over_is_dropped(pool: PgPool) {
        let trial = Trial::new(pool);
        let agents = trial.connect(4).await;
        trial.mesh(&agents).await;
        let first = pass(&trial).await.expect("an embedding");
        let mut tx = store::begin(&trial.scheduler.pool).await.expect("begin");
        let as_of = embeddings::clock(&mut tx).await.expect("the time");
        let taken = embeddings::take_over(&mut tx, &first, None, as_of).await.expect("no failure");
        assert!(!taken, "it knew of no former embedding");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn too_few_landmarks_make_no_map(pool: PgPool) {
        let trial = Trial::new(pool);
        let agents = trial.connect(2).await;
        trial.mesh(&agents).await;
        assert!(pass(&trial).await.is_none());
    }

    #[test]
    fn dimensions_never_outnumber_what_the_landmarks_bear() {
        assert_eq!(dimensions(9, None), 8);
        assert_eq!(dimensions(9, Some(3)), 3);
        assert_eq!(dimensions(4, Some(8)), 3);
    }
}
