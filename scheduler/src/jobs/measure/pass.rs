//! Runs one pass: gives up overdue orders, and orders measurements of the mesh and of sites.

use anyhow::Context;
use tokio::sync::Mutex;

use crate::jobs::leadership::Leader;
use crate::jobs::measure::mesh::{MeshPause, order_mesh};
use crate::jobs::measure::probers::Fleet;
use crate::jobs::measure::sites::{let_in, order_sites};
use crate::model::Stage;
use crate::store::measurements::{orders, sharing};
use crate::store::tasks::wait_causes;

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
        let mut tx = scheduler.begin().await?;
        let fleet = Fleet::read(&mut tx).await.context("read the fleet")?;
        let probers = fleet.probers();
        wait_causes::close(&mut tx, Stage::Measuring, probers.as_ref().err().copied())
            .await
            .context("say why tasks wait")?;
        tx.commit().await.context("commit why tasks wait")?;
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
    let mut tx = scheduler.begin().await?;
    let given_up = orders::give_up(&mut tx).await.context("give up orders")?;
    sharing::prune_disagreements(&mut tx).await.context("forget old disagreements")?;
    tx.commit().await.context("commit what was given up")?;
    if given_up > 0 {
        wakes.fit.notify_one();
        wakes.locate.notify_one();
        wakes.confirm.notify_one();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    use sqlx::PgPool;

    use crate::jobs::fixtures::{Trial, took};
    use crate::model::WaitCause;
    use crate::store::measurements;
    use crate::store::measurements::orders::OrderTarget;
    use crate::store::schedulers::terms::Role;

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
        measurements::record(&mut conn, trial.agents[0].0, orders[0].id, &took(90).into()).await.expect("record");
        trial.measure().await;
        assert_eq!(trial.site_orders().await, []);
        assert_ne!(task, next);
    }
}
