//! A small fleet on a real database, for the tests of the tasks.

use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{PgPool, Postgres};

use crate::Scheduler;
use crate::config::{Config, TermConfig};
use crate::explain::Wait;
use crate::model::{AgentId, BatchId, Rtt, SessionId, SiteId, TaskId, WaitCause};
use crate::store::measurement_orders::{self, Order, OrderTarget};
use crate::store::measurements::{self, Measured, MeasurementResult, Recorded, Report};
use crate::store::sessions::{self, Registration};
use crate::store::terms::Duty;
use crate::store::{fixtures, landmarks, waits};

use super::duty::{OnDuty, Terms};

pub(super) struct Trial {
    pub(super) scheduler: Scheduler,
    terms: Terms,
}

impl Trial {
    /// With every duty, for longer than a test takes.
    pub(super) async fn new(pool: PgPool) -> Self {
        let config = Config { term: TermConfig { life: Duration::from_secs(3600) }, ..Config::default() };
        let trial = Self::beside(pool, config);
        trial.renew().await;
        trial
    }

    /// One that has no duty yet.
    pub(super) fn beside(pool: PgPool, config: Config) -> Self {
        let scheduler = Scheduler::new(pool, config);
        let terms = Terms::new(&scheduler, "http://127.0.0.1:7171");
        Self { scheduler, terms }
    }

    /// Renews its row and takes what is free, as the scheduler does all the time.
    pub(super) async fn renew(&self) -> Vec<Duty> {
        self.terms.renew(&mut *self.conn().await).await.expect("renew")
    }

    /// Ends in good order.
    pub(super) async fn leave(&self) {
        self.terms.leave(&mut *self.conn().await).await.expect("leave");
    }

    pub(super) fn reap(&self) -> OnDuty {
        self.terms.on(Duty::Reap, &self.scheduler)
    }

    pub(super) fn fit(&self) -> OnDuty {
        self.terms.on(Duty::Fit, &self.scheduler)
    }

    pub(super) fn plan(&self) -> OnDuty {
        self.terms.on(Duty::Plan, &self.scheduler)
    }

    pub(super) async fn conn(&self) -> PoolConnection<Postgres> {
        self.scheduler.pool.acquire().await.expect("connect")
    }

    /// Connects agents called `a0`, `a1` and so on, with a beacon each.
    pub(super) async fn connect(&self, count: usize) -> Vec<(AgentId, SessionId)> {
        let mut agents = Vec::new();
        for index in 0..count {
            let agent = fixtures::agent(&mut *self.conn().await, &format!("a{index}")).await;
            agents.push((agent, self.session(agent).await));
        }
        agents
    }

    pub(super) async fn session(&self, agent: AgentId) -> SessionId {
        let registration = Registration { beacon_url: Some("http://127.0.0.1:9/".into()), ..fixtures::registration() };
        let mut conn = self.conn().await;
        sessions::open(&mut conn, agent, &registration, fixtures::TERMS).await.expect("open a session").session
    }

    pub(super) async fn set_landmarks(&self, agents: &[(AgentId, SessionId)]) {
        let chosen: Vec<(AgentId, String)> = agents.iter().map(|(agent, _)| (*agent, "chosen".to_owned())).collect();
        landmarks::replace(&mut *self.conn().await, &chosen, landmarks::ChosenBy::Hand).await.expect("set landmarks");
    }

    /// A submitted task of a batch that needs distances.
    pub(super) async fn task(&self, name: &str) -> (TaskId, SiteId) {
        let mut conn = self.conn().await;
        let batch = self.batch(name, "gnp-top3").await;
        let site = fixtures::site(&mut conn, name).await;
        (fixtures::task(&mut conn, batch, site, "submitted").await, site)
    }

    pub(super) async fn batch(&self, name: &str, strategy: &str) -> BatchId {
        fixtures::batch(&mut *self.conn().await, name, strategy).await
    }

    /// The open site orders: who measures what.
    pub(super) async fn site_orders(&self) -> Vec<(AgentId, SiteId)> {
        sqlx::query_as::<_, (i64, i64)>(
            "select prober_id, site_id from measurement_orders where site_id is not null order by site_id",
        )
        .fetch_all(&self.scheduler.pool)
        .await
        .expect("read orders")
        .into_iter()
        .map(|(prober, site)| (AgentId::new(prober), SiteId::new(site)))
        .collect()
    }

    /// Its state, and why it ended.
    pub(super) async fn state(&self, task: TaskId) -> (String, Option<String>) {
        sqlx::query_as("select state::text, reason from tasks where id = $1")
            .bind(task.get())
            .fetch_one(&self.scheduler.pool)
            .await
            .expect("read a task")
    }

    /// What a task without an agent waits for.
    pub(super) async fn waits(&self, task: TaskId) -> Option<WaitCause> {
        self.wait(task).await.map(|wait| wait.cause)
    }

    /// The same, with what it is about.
    pub(super) async fn wait(&self, task: TaskId) -> Option<Wait> {
        waits::of(&mut *self.conn().await, &[task]).await.expect("read why a task waits").remove(&task)
    }

    /// Sends an agent its orders and answers those that `result` has something to say about.
    pub(super) async fn answer(
        &self,
        agent: (AgentId, SessionId),
        result: impl Fn(&OrderTarget) -> Option<MeasurementResult>,
    ) -> Vec<Recorded> {
        self.answer_at(agent, |target| result(target).map(|result| (result, None))).await
    }

    /// The same, with the origin the agent settled the target at.
    pub(super) async fn answer_at(
        &self,
        (agent, session): (AgentId, SessionId),
        result: impl Fn(&OrderTarget) -> Option<(MeasurementResult, Option<String>)>,
    ) -> Vec<Recorded> {
        let mut conn = self.conn().await;
        let orders: Vec<Order> = measurement_orders::take_unsent(&mut conn, agent, session).await.expect("take orders");
        let mut recorded = Vec::new();
        for order in orders {
            if let Some((result, origin)) = result(&order.target) {
                let report = Report { origin, ..result.into() };
                recorded.push(measurements::record(&mut conn, agent, order.id, &report).await.expect("record"));
            }
        }
        recorded
    }

    /// Stores the mesh of these agents as if each stood on a line, 10 ms apart.
    pub(super) async fn mesh(&self, agents: &[(AgentId, SessionId)]) {
        for (i, (prober, _)) in agents.iter().enumerate() {
            for (j, (target, _)) in agents.iter().enumerate().filter(|(j, _)| *j != i) {
                let rtt_us = i64::try_from(i.abs_diff(j) * 10_000).expect("a short line");
                sqlx::query(
                    "insert into mesh_measurements (prober_id, agent_id, rtt_us, answered, lost) values ($1, $2, $3, 5, 0)
                     on conflict (prober_id, agent_id) do update set rtt_us = excluded.rtt_us, measured_at = now()",
                )
                .bind(prober.get())
                .bind(target.get())
                .bind(rtt_us)
                .execute(&self.scheduler.pool)
                .await
                .expect("store a round trip");
            }
        }
    }

    /// Stores one site's measurements.
    pub(super) async fn measured(&self, site: SiteId, millis: &[(AgentId, Option<u64>)]) {
        for (prober, millis) in millis {
            sqlx::query(
                "insert into site_measurements (site_id, prober_id, rtt_us, answered, lost, failure)
                 values ($1, $2, $3, 5, 0, $4)
                 on conflict (site_id, prober_id) do update
                 set rtt_us = excluded.rtt_us, failure = excluded.failure, measured_at = now()",
            )
            .bind(site.get())
            .bind(prober.get())
            .bind(millis.map(|millis| i64::try_from(millis * 1000).expect("short")))
            .bind(millis.is_none().then_some("connect: refused"))
            .execute(&self.scheduler.pool)
            .await
            .expect("store a measurement");
        }
    }

    pub(super) async fn execute(&self, sql: &'static str) {
        sqlx::query(sql).execute(&self.scheduler.pool).await.expect("execute");
        // A change of tasks or agents is signalled.
        self.scheduler.wakes.assign.notify_one();
    }

    pub(super) async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(&self.scheduler.pool).await.expect("count")
    }
}

/// A measurement of so many milliseconds.
pub(super) fn took(millis: u64) -> MeasurementResult {
    let rtt = Rtt::try_new(Duration::from_millis(millis)).expect("a round trip");
    Ok(Measured { rtt, min: rtt, median: rtt, spread: Duration::ZERO, answered: 5, lost: 0 })
}
