//! A small fleet with a real database, for the tests of the background jobs.

use std::convert::identity;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgRow;
use sqlx::{Decode, FromRow, PgPool, Postgres, Type};

use crate::Scheduler;
use crate::config::{Config, TermConfig};
use crate::gnp::Embedding;
use crate::model::{AgentId, BatchId, LeaseToken, Rtt, SessionId, SiteId, TaskId, WaitCause};
use crate::store::agents::sessions::Registration;
use crate::store::embeddings::{self, landmarks};
use crate::store::measurements::orders::{self, Order, OrderTarget};
use crate::store::measurements::results_and_failures::MeasurementResult;
use crate::store::measurements::{Measured, MeasurementReport, ReportTarget};
use crate::store::schedulers::Role;
use crate::store::tasks::unmet_and_wait_causes;
use crate::store::{Db, fixtures};
use crate::strategy::explain::ExplainedWait;

use super::assign::balance::Balance;
use super::assign::{Assign, confirmation};
use super::fit::{self, Fit, trust};
use super::leadership::{HeldTerms, Leader};
use super::locate::Locate;
use super::measure::Measure;
use super::{prune, reap, recrawl};

pub(super) type Agent = (AgentId, SessionId);

pub(super) struct Trial {
    pub(super) scheduler: Scheduler,
    terms: HeldTerms,
    /// The connected agents, in the order in which they connected.
    pub(super) agents: Vec<Agent>,
}

/// Declares the passes of all jobs. Each pass can be called as a method or by its name.
macro_rules! passes {
    ($($name:ident $role:ident $new:path, $pass:path;)+) => {
        impl Trial {
            pub(super) const PASSES: &[&str] = &[$(stringify!($name),)+ "prune"];

            $(pub(super) async fn $name(&self) {
                self.try_pass(stringify!($name)).await.expect("a pass");
            })+

            pub(super) async fn try_pass(&self, name: &str) -> anyhow::Result<()> {
                match name {
                    $(stringify!($name) => $pass(&$new(self.on(Role::$role))).await,)+
                    "prune" => prune::run_once(&self.on(Role::Reap)).await,
                    other => panic!("no job is called {other}"),
                }
            }
        }
    };
}

passes! {
    measure Plan Measure::new, Measure::run_once;
    locate Plan Locate::new, Locate::run_once;
    confirm Plan identity, confirmation::run_once;
    assign Plan Assign::new, Assign::run_once;
    balance Plan Balance::new, Balance::run_once;
    recrawl Plan identity, recrawl::run_once;
    fit Fit Fit::new, Fit::run_once;
    replace_landmarks Fit identity, fit::landmarks::run_once;
    review Fit identity, trust::run_once;
    reap Reap identity, reap::run_once;
}

impl Trial {
    /// A scheduler that leads every role for longer than a test takes, and `agents` connected
    /// agents.
    pub(super) async fn new(pool: PgPool, agents: usize) -> Self {
        Self::with(pool, agents, Config::default()).await
    }

    /// Like [`Trial::new`], with a given configuration.
    pub(super) async fn with(pool: PgPool, agents: usize, config: Config) -> Self {
        let mut trial = Self::beside(&pool, config);
        trial.renew().await;
        for _ in 0..agents {
            trial.join().await;
        }
        trial
    }

    /// A scheduler that does not lead any role yet. Once taken, a role lasts longer than a test.
    pub(super) fn beside(pool: &PgPool, config: Config) -> Self {
        let config = Config { term: TermConfig { life: Duration::from_secs(3600) }, ..config };
        let scheduler = Scheduler::new(Db::of(pool.clone()), (*pool.connect_options()).clone().into(), config);
        let terms = HeldTerms::new(&scheduler, "http://127.0.0.1:7171");
        Self { scheduler, terms, agents: Vec::new() }
    }

    /// Renews the scheduler's row and takes free roles, as a running scheduler does periodically.
    pub(super) async fn renew(&self) -> Vec<Role> {
        self.terms.renew(&mut *self.conn().await).await.expect("renew")
    }

    pub(super) async fn leave(&self) {
        self.terms.leave(&mut *self.conn().await).await.expect("leave");
    }

    pub(super) fn on(&self, role: Role) -> Leader {
        self.terms.on(role, &self.scheduler)
    }

    pub(super) async fn conn(&self) -> PoolConnection<Postgres> {
        self.scheduler.db.pool().acquire().await.expect("connect")
    }

    /// Connects another agent, with a beacon and two slots; the first agent is called `a0`.
    pub(super) async fn join(&mut self) -> AgentId {
        let agent = fixtures::agent(&mut *self.conn().await, &format!("a{}", self.agents.len())).await;
        self.agents.push((agent, self.session(agent).await));
        agent
    }

    pub(super) async fn session(&self, agent: AgentId) -> SessionId {
        let registration = Registration { beacon_url: Some("http://127.0.0.1:9/".into()), ..fixtures::registration() };
        let mut conn = self.conn().await;
        fixtures::open_session(&mut conn, agent, &registration).await.expect("open a session").session
    }

    pub(super) async fn disconnect(&self, agent: AgentId) {
        self.execute_for("update sessions set state = 'expired' where state = 'active' and agent_id = $1", agent.get())
            .await;
    }

    /// The index of an agent among the connected agents.
    pub(super) fn place(&self, agent: AgentId) -> usize {
        self.agents.iter().position(|(id, _)| *id == agent).expect("one of them")
    }

    pub(super) async fn tag(&self, place: usize, tags: &[&str]) {
        let tags: Vec<String> = tags.iter().map(|&tag| tag.to_owned()).collect();
        fixtures::tag(&mut *self.conn().await, &format!("a{place}"), &tags).await;
    }

    /// Grants leases to the agent at this index.
    pub(super) async fn grant(&self, place: usize) -> Vec<(TaskId, LeaseToken)> {
        let (agent, session) = self.agents[place];
        fixtures::grant(&mut *self.conn().await, agent, session).await
    }

    /// Makes the agent at this index return the first lease of a task.
    pub(super) async fn hand_back(&self, place: usize, task: TaskId) {
        assert!(fixtures::hand_back(&mut *self.conn().await, self.agents[place].0, task).await);
    }

    pub(super) async fn set_landmarks(&self, agents: &[Agent]) {
        let chosen: Vec<(AgentId, String)> = agents.iter().map(|(agent, _)| (*agent, "chosen".to_owned())).collect();
        fixtures::set_landmarks(&mut *self.conn().await, &chosen, landmarks::ChosenBy::Hand).await;
    }

    /// A submitted task of a batch whose strategy needs distances.
    pub(super) async fn task(&self, name: &str) -> (TaskId, SiteId) {
        let batch = self.batch(name, "gnp-top3").await;
        self.task_of(batch, name, "submitted").await
    }

    pub(super) async fn task_of(&self, batch: BatchId, host: &str, state: &str) -> (TaskId, SiteId) {
        let mut conn = self.conn().await;
        let site = fixtures::site(&mut conn, host).await;
        (fixtures::task(&mut conn, batch, site, state).await, site)
    }

    /// A located task whose site is 10, 20, 30 ms and so on from the agents.
    pub(super) async fn located(&self, batch: BatchId, host: &str) -> TaskId {
        let (task, site) = self.task_of(batch, host, "located").await;
        let millis: Vec<u64> = (1..).map(|place| place * 10).take(self.agents.len()).collect();
        self.measured_by_all(site, &millis).await;
        task
    }

    /// A task assigned to the agent at this index; no distance of its site is known.
    pub(super) async fn assigned(&self, batch: BatchId, host: &str, place: usize) -> TaskId {
        let mut conn = self.conn().await;
        let site = fixtures::site(&mut conn, host).await;
        fixtures::assigned(&mut conn, batch, site, self.agents[place].0).await
    }

    pub(super) async fn batch(&self, name: &str, strategy: &str) -> BatchId {
        fixtures::batch(&mut *self.conn().await, name, strategy).await
    }

    /// The index of the task's current agent.
    pub(super) async fn at(&self, task: TaskId) -> Option<usize> {
        let agent: Option<i64> = self.read_for("select agent_id from tasks where id = $1", task.get()).await;
        agent.map(|agent| self.place(AgentId::new(agent)))
    }

    /// The newest map; `None` while there is none.
    pub(super) async fn map(&self) -> Option<Embedding> {
        embeddings::latest(&mut *self.conn().await).await.expect("read the embedding")
    }

    /// Runs the job that fits, and returns the newest map.
    pub(super) async fn fitted(&self) -> Option<Embedding> {
        self.fit().await;
        self.map().await
    }

    /// The prober and the site of each open site order.
    pub(super) async fn site_orders(&self) -> Vec<(AgentId, SiteId)> {
        let open = "select prober_id, site_id from measurement_orders where site_id is not null order by site_id";
        let open: Vec<(i64, i64)> = self.rows(open).await;
        open.into_iter().map(|(prober, site)| (AgentId::new(prober), SiteId::new(site))).collect()
    }

    /// A task's state, and the reason why it ended.
    pub(super) async fn state(&self, task: TaskId) -> (String, Option<String>) {
        self.row_for("select state::text, reason from tasks where id = $1", task.get()).await
    }

    /// Why a task without an agent waits.
    pub(super) async fn waits(&self, task: TaskId) -> Option<WaitCause> {
        self.wait(task).await.map(|wait| wait.cause)
    }

    /// Why a task waits, with the details.
    pub(super) async fn wait(&self, task: TaskId) -> Option<ExplainedWait> {
        unmet_and_wait_causes::of(&mut *self.conn().await, &[task]).await.expect("read why a task waits").remove(&task)
    }

    /// Sends an agent its orders and answers the orders for which `result` returns a result.
    pub(super) async fn answer(
        &self,
        agent: Agent,
        result: impl Fn(&OrderTarget) -> Option<MeasurementResult>,
    ) -> Vec<ReportTarget> {
        self.answer_at(agent, |target| result(target).map(|result| (result, None))).await
    }

    /// Like `answer`, but `result` also returns the origin to which redirects led the agent.
    pub(super) async fn answer_at(
        &self,
        (agent, session): Agent,
        result: impl Fn(&OrderTarget) -> Option<(MeasurementResult, Option<String>)>,
    ) -> Vec<ReportTarget> {
        let mut conn = self.conn().await;
        let orders: Vec<Order> = orders::take_unsent(&mut conn, agent, session).await.expect("take orders");
        let mut recorded = Vec::new();
        for order in orders {
            if let Some((result, origin)) = result(&order.target) {
                let report = MeasurementReport { origin, ..result.into() };
                recorded.push(fixtures::measure(&mut conn, agent, order.id, &report).await);
            }
        }
        recorded
    }

    /// Stores a mesh of these agents, as if they stood on a line with 10 ms between neighbours.
    pub(super) async fn mesh(&self, agents: &[Agent]) {
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
                .execute(self.scheduler.db.pool())
                .await
                .expect("store a round trip");
            }
        }
    }

    /// Stores the measurements of one site. `None` is a failed measurement.
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
            .execute(self.scheduler.db.pool())
            .await
            .expect("store a measurement");
        }
    }

    /// Stores the round trips from the first agents to a site, in milliseconds: one value per
    /// agent.
    pub(super) async fn measured_by_all(&self, site: SiteId, millis: &[u64]) {
        let of_each = self.agents.iter().zip(millis).map(|((agent, _), millis)| (*agent, Some(*millis)));
        self.measured(site, &of_each.collect::<Vec<_>>()).await;
    }

    pub(super) async fn execute(&self, sql: &'static str) {
        fixtures::execute(&mut *self.conn().await, sql).await;
        // Signals a change of tasks or agents, as a running scheduler would.
        self.scheduler.wakes.assign.notify_one();
    }

    /// Like `execute`, for the row with this identifier.
    pub(super) async fn execute_for(&self, sql: &'static str, id: i64) {
        fixtures::execute_for(&mut *self.conn().await, sql, id).await;
        self.scheduler.wakes.assign.notify_one();
    }

    pub(super) async fn count(&self, sql: &'static str) -> i64 {
        self.read(sql).await
    }

    /// The single value that the statement selects.
    pub(super) async fn read<T>(&self, sql: &'static str) -> T
    where
        T: for<'r> Decode<'r, Postgres> + Type<Postgres> + Send + Unpin,
    {
        fixtures::scalar(&mut *self.conn().await, sql).await
    }

    /// Like `read`, for the row with this identifier.
    pub(super) async fn read_for<T>(&self, sql: &'static str, id: i64) -> T
    where
        T: for<'r> Decode<'r, Postgres> + Type<Postgres> + Send + Unpin,
    {
        let (value,): (T,) = self.row_for(sql, id).await;
        value
    }

    pub(super) async fn rows<R: for<'r> FromRow<'r, PgRow> + Send + Unpin>(&self, sql: &'static str) -> Vec<R> {
        fixtures::rows(&mut *self.conn().await, sql).await
    }

    pub(super) async fn row_for<R: for<'r> FromRow<'r, PgRow> + Send + Unpin>(&self, sql: &'static str, id: i64) -> R {
        sqlx::query_as(sql).bind(id).fetch_one(self.scheduler.db.pool()).await.expect(sql)
    }
}

/// A measurement with this round trip in milliseconds.
pub(super) fn took(millis: u64) -> MeasurementResult {
    let rtt = Rtt::try_new(Duration::from_millis(millis)).expect("a round trip");
    Ok(Measured { rtt, min: rtt, median: rtt, spread: Duration::ZERO, answered: 5, lost: 0 })
}
