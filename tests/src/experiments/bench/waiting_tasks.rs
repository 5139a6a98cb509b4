//! Creates databases with tasks that have waited for hours. The rows are written in bulk without
//! triggers and constraints, because writing them is not measured.
//!
//! For each state that a task has passed through, the event log contains the event that a trigger
//! would have written.

use anyhow::Context;
use clap::ValueEnum;
use sqlx::{AssertSqlSafe, Executor as _, PgPool};

/// Number of agents. A fleet of this size has no landmarks, so every agent measures every site.
pub(super) const AGENTS: usize = 9;
/// Number of addresses of the sites in the case `Parked`.
const ADDRESSES: u32 = 100;
const AT_ADDRESS: u32 = 8;
/// Number of slots of each agent in the case `EarliestFinish`. All slots are taken.
const SLOTS: u32 = 4;
/// Maximum number of tasks in the state `measuring`.
const MEASURING: u32 = 4_096;
const ORDERS: u32 = 2_304;
/// Number of rounds of each site in the case `Done`.
const ROUNDS: u32 = 10;

/// The state of the waiting tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum WaitingCase {
    /// Submitted; no agent is connected
    Submitted,
    /// The maximum number is being measured, by agents that each have all their orders; the others
    /// are submitted
    Measuring,
    /// Located, in a `random` batch; every connected agent has paused (this strategy fills queues
    /// of full agents)
    Random,
    /// Measured by nine agents and located, in a `gnp-top3` batch; every connected agent has paused
    #[value(name = "gnp-top3")]
    Top3,
    /// Measured and located, in an `earliest-finish` batch; every slot is taken for hours
    EarliestFinish,
    /// At a hundred addresses that permit no further crawl
    Parked,
    /// In a batch whose constraints no agent meets
    Unmet,
    /// In a batch whose quota every agent has used up today, on a tenth of the sites
    Quota,
    /// Done: ten rounds of each site; the next one is due in a year
    Done,
}

impl WaitingCase {
    /// The name of the case on the command line and in tables.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    pub(super) const fn waits(self) -> bool {
        !matches!(self, Self::Done)
    }

    /// Number of sites to which `tasks` tasks belong.
    pub(super) const fn sites(self, tasks: u32) -> u32 {
        if self.waits() { tasks } else { tasks / ROUNDS }
    }

    /// SQL that creates `tasks` tasks.
    fn text(self, tasks: u32) -> String {
        let located = "submitted,located";
        let measured = "submitted,measuring,located";
        let waiting = WaitingTasks { tasks, state: "located", ..WaitingTasks::default() };
        let text = match self {
            Self::Submitted => waiting.submitted().text(),
            Self::Measuring => [connected(1, false), waiting.submitted().text(), measuring(tasks)].concat(),
            Self::Random => [connected(1, true), WaitingTasks { log: located, ..waiting }.text()].concat(),
            Self::Top3 => {
                let waiting = WaitingTasks { strategy: "gnp-top3", log: measured, known: true, ..waiting };
                [connected(1, true), waiting.text(), mapped(tasks)].concat()
            }
            Self::EarliestFinish => {
                let waiting = WaitingTasks { strategy: "earliest-finish", log: measured, known: true, ..waiting };
                let busy = busy(tasks, u32::try_from(AGENTS).unwrap_or(u32::MAX) * SLOTS);
                [connected(SLOTS, false), waiting.text(), mapped(tasks), busy].concat()
            }
            Self::Parked => {
                let waiting = WaitingTasks { log: located, known: true, held: true, ..waiting };
                let slots = ADDRESSES * AT_ADDRESS / u32::try_from(AGENTS).unwrap_or(1) + 1;
                [connected(slots, false), waiting.text(), busy(tasks, ADDRESSES * AT_ADDRESS), held("address")].concat()
            }
            Self::Unmet => {
                let waiting = WaitingTasks { log: located, held: true, ..waiting };
                [connected(1, false), waiting.text(), constrained(r#"{"countries": ["AQ"]}"#, "country")].concat()
            }
            Self::Quota => {
                let waiting = WaitingTasks { log: located, held: true, ..waiting };
                let done = "update tasks set state = 'done', held = false, token = 1, assignment_id = id
                    where id % 10 = 0;"
                    .to_owned();
                let crawled = crawled("now() - interval '1 hour'");
                let constrained = constrained(r#"{"bytes_per_day": 1000}"#, "quota");
                [connected(1, false), waiting.text(), done, crawled, SPENT.to_owned(), constrained].concat()
            }
            Self::Done => [connected(1, false), rounds(self.sites(tasks)), crawled("t.state_since")].concat(),
        };
        format!("{text}{EPILOGUE}")
    }
}

/// Records the quota that the finished crawls have spent.
const SPENT: &str = "
    insert into quota_spending (batch_id, agent_id, hour, bytes, crawls)
    select 1, agent_id, date_trunc('hour', accepted_at), 30000 * count(*), count(*) from crawl group by agent_id, accepted_at;";
const PROLOGUE: &str =
    "set statement_timeout = 0; set synchronous_commit = off; set session_replication_role = replica;";
/// Advances the sequences beyond the inserted ids.
const EPILOGUE: &str = "
    select setval(pg_get_serial_sequence('sites', 'id'), max(id)) from sites;
    select setval(pg_get_serial_sequence('tasks', 'id'), max(id)) from tasks;
    select setval(pg_get_serial_sequence('assignments', 'id'), (select max(id) from tasks));
    set session_replication_role = origin;";

/// Creates `tasks` tasks that have waited for hours. A vacuum and a checkpoint at the end leave
/// Postgres no maintenance to do during the measurement.
pub(super) async fn create(pool: &PgPool, case: WaitingCase, tasks: u32) -> anyhow::Result<()> {
    let mut conn = pool.acquire().await.context("connect")?;
    conn.execute(PROLOGUE).await.context("take time")?;
    conn.execute(AssertSqlSafe(case.text(tasks))).await.context("make tasks that wait")?;
    conn.execute("vacuum analyze").await.context("vacuum")?;
    conn.execute("checkpoint").await.context("write all of it")?;
    // The statistics of a session are complete only after its end.
    conn.close().await.context("end the session")?;
    Ok(())
}

/// Opens a session with `slots` slots for every agent.
fn connected(slots: u32, paused: bool) -> String {
    let paused = if paused { "'its disk is full'" } else { "null" };
    format!(
        "update agents set incarnation = 1, capacity = {slots};
         insert into sessions (agent_id, incarnation, expires_at, paused)
         select id, 1, now() + interval '1 day', {paused} from agents;"
    )
}

/// The waiting tasks of one batch. Sites and tasks are numbered from 1.
#[derive(Debug, Clone, Copy)]
struct WaitingTasks<'a> {
    tasks: u32,
    strategy: &'a str,
    state: &'a str,
    held: bool,
    /// Whether the sites' addresses are known.
    known: bool,
    /// The states with an event in the event log, separated by commas.
    log: &'a str,
}

impl Default for WaitingTasks<'_> {
    fn default() -> Self {
        Self { tasks: 0, strategy: "random", state: "", held: false, known: false, log: "" }
    }
}

impl WaitingTasks<'_> {
    fn submitted(self) -> Self {
        Self { strategy: "gnp-top3", state: "submitted", log: "submitted", ..self }
    }

    fn text(self) -> String {
        let Self { tasks, strategy, state, held, known, log } = self;
        format!(
            "insert into batches (name, strategy) values ('waiting', '{strategy}');
             insert into sites (id, name, origin, address, crawled_address) overriding system value
             select n, 's' || n || '.bench.test', case when {known} then 'https://s' || n || '.bench.test' end,
                    case when {known} then inet '10.0.0.0' + n end,
                    case when {known} and {held} then inet '10.1.0.0' + n % {ADDRESSES} end
             from generate_series(1, {tasks}) n;
             insert into tasks (id, batch_id, site_id, state, choice, held, state_since) overriding system value
             select n, 1, n, '{state}', b.choice, {held}, now() - interval '1 hour'
             from generate_series(1, {tasks}) n join batches b on b.id = 1;
             insert into events (noun, what, task_id)
             select 'task', state, n from generate_series(1, {tasks}) n cross join unnest(string_to_array('{log}', ',')) state;"
        )
    }
}

/// Puts the first tasks into the state `measuring`, and gives each agent the maximum number of
/// measurement orders.
fn measuring(tasks: u32) -> String {
    let (measuring, orders) = (tasks.min(MEASURING), tasks.min(ORDERS));
    format!(
        "update tasks set state = 'measuring' where id <= {measuring};
         insert into events (noun, what, task_id) select 'task', 'measuring', n from generate_series(1, {measuring}) n;
         insert into measurement_orders (prober_id, site_id, address, expires_at)
         select a.id, n, inet '10.0.0.0' + n, now() + interval '1 day'
         from generate_series(1, {orders}) n
         join (select id, row_number() over (order by id) as turn from agents) a on a.turn = 1 + n % {AGENTS};"
    )
}

/// Places agents and sites in a two-dimensional map, in milliseconds. Every agent has measured all
/// other agents and all sites, with results that match the map. All agents resolve a site's name to
/// the stored address, so there is no resolved address.
fn mapped(sites: u32) -> String {
    format!(
        "create temporary table agent_at as
             select id, 50 + 40 * cos(id) as x, 50 + 40 * sin(id) as y from agents;
         create temporary table site_at as
             select n as id, n * 7919::bigint % 1000 / 10.0::float8 as x, n * 104729::bigint % 1000 / 10.0::float8 as y
             from generate_series(1, {sites}) n;
         insert into embeddings (dimensions, landmarks, fit_error, mesh_error)
         select 2, array_agg(id order by id), 0.05, 0.05 from agents;
         insert into agent_placements (epoch, agent_id, coordinate, fit_error)
         select e.epoch, a.id, array[a.x, a.y, 1], 0.05 from embeddings e cross join agent_at a;
         insert into mesh_measurements
             (prober_id, agent_id, rtt_us, answered, lost, reached_us, reached_at)
         select a.id, b.id, rtt, 10, 0, rtt, now()
         from agent_at a join agent_at b on a.id <> b.id
         cross join lateral (select (1000 * (2 + sqrt((a.x - b.x) ^ 2 + (a.y - b.y) ^ 2)))::bigint as rtt) far;
         insert into site_measurements
             (site_id, prober_id, rtt_us, min_us, median_us, spread_us, answered, lost, address, requests)
         select s.id, a.id, rtt, rtt, rtt, 100, 10, 0, inet '10.0.0.0' + s.id, 12
         from site_at s cross join agent_at a
         cross join lateral (select (1000 * (2 + sqrt((a.x - s.x) ^ 2 + (a.y - s.y) ^ 2)))::bigint as rtt) far;
         insert into site_verdicts (site_id, suspect, confidence, evidence) select id, false, 0, '' from site_at;
         insert into site_placements (site_id, epoch, coordinate, fit_error)
         select s.id, e.epoch, array[s.x, s.y, 1], 0.05 from site_at s cross join embeddings e;"
    )
}

/// Creates running crawls that take ten hours, distributed over the agents. The ids of sites and
/// tasks begin after `taken`.
fn busy(taken: u32, crawls: u32) -> String {
    format!(
        "insert into batches (name, strategy) values ('busy', 'random');
         update batches set policy = policy || jsonb_build_object(
             'max_pages', 1000000, 'max_bytes', 100000000000, 'max_depth', 30, 'max_duration_ms', 86400000
         ) where name = 'busy';
         create temporary table busy as
             select {taken} + n as id, inet '10.1.0.0' + n % {ADDRESSES} as address, a.id as agent_id, s.id as session_id
             from generate_series(1, {crawls}) n
             join (select id, row_number() over (order by id) as turn from agents) a on a.turn = 1 + n % {AGENTS}
             join sessions s on s.agent_id = a.id;
         insert into sites (id, name, origin, address, crawled_address) overriding system value
         select id, 'b' || id || '.bench.test', 'https://b' || id || '.bench.test', address, address from busy;
         insert into tasks (id, batch_id, site_id, state, token, assignment_id, agent_id) overriding system value
         select id, 2, id, 'leased', 1, id, agent_id from busy;
         insert into assignments (id, task_id, agent_id, strategy, seed, candidates, predicted_us, measured_us, crawl_ms)
         overriding system value
         select id, id, agent_id, 'random', 1, array[agent_id], array[null]::bigint[], array[null]::bigint[], 36000000
         from busy;
         insert into leases (task_id, token, site_id, agent_id, session_id, address)
         select id, 1, id, agent_id, session_id, address from busy;"
    )
}

/// Creates a hold with the cause `cause` for every waiting task.
fn held(cause: &str) -> String {
    format!(
        "insert into task_holds (task_id, batch_id, site_id, cause, address, since)
         select t.id, t.batch_id, t.site_id, '{cause}', case when '{cause}' = 'address' then s.crawled_address end, t.state_since
         from tasks t join sites s on s.id = t.site_id
         where t.state = 'located';"
    )
}

/// Gives the batch constraints that exclude every agent.
fn constrained(constraints: &str, exclusion: &str) -> String {
    let held = held("unmet");
    format!(
        "insert into batch_constraints (batch_id, constraints, unmet_cause, unmet_detail)
         values (1, '{constraints}', 'excluded', '{{\"fleet\": {AGENTS}, \"by\": {{\"{exclusion}\": {AGENTS}}}}}');
         {held}"
    )
}

/// Creates ten rounds of each site, eight days apart. The rounds are so old that the event log has
/// none of their events.
fn rounds(sites: u32) -> String {
    format!(
        "insert into batches (name, strategy) values ('done', 'random');
         update batches set policy = policy || jsonb_build_object('recrawl_interval_ms', 31536000000);
         insert into sites (id, name, origin, address, crawled_address) overriding system value
         select n, 's' || n || '.bench.test', 'https://s' || n || '.bench.test', inet '10.0.0.0' + n, inet '10.0.0.0' + n
         from generate_series(1, {sites}) n;
         insert into tasks (id, batch_id, site_id, round, state, state_since, token, assignment_id, retried_at, recrawl_at)
         overriding system value
         select (r - 1) * {sites} + n, 1, n, r, 'done', at, 1, (r - 1) * {sites} + n, case when r < {ROUNDS} then at + interval '8 days' end,
                case when r = {ROUNDS} then at + interval '1 year' end
         from generate_series(1, {ROUNDS}) r cross join generate_series(1, {sites}) n
         cross join lateral (select now() - ({ROUNDS} + 1 - r) * interval '8 days' as at) ended;"
    )
}

/// Creates a crawl by one of the agents for every finished task. The SQL expression `accepted_at`
/// gives the time when the outcome of the crawl was accepted.
fn crawled(accepted_at: &str) -> String {
    format!(
        "create temporary table crawl as
             select t.id, t.site_id, {accepted_at} as accepted_at, a.id as agent_id, s.id as session_id
             from tasks t
             join (select id, row_number() over (order by id) as turn from agents) a on a.turn = 1 + t.id / 10 % {AGENTS}
             join sessions s on s.agent_id = a.id
             where t.state = 'done';
         insert into assignments
             (id, task_id, agent_id, strategy, seed, candidates, predicted_us, measured_us, levels, available)
         overriding system value
         select id, id, agent_id, 'random', id, array[agent_id], array[null]::bigint[], array[null]::bigint[], array[-1], {AGENTS}
         from crawl;
         insert into leases (task_id, token, site_id, agent_id, session_id, state, granted_at, ended_at)
         select id, 1, site_id, agent_id, session_id, 'completed', accepted_at - interval '1 minute', accepted_at from crawl;
         insert into outcomes (task_id, token, agent_id, kind, pages, bytes, errors, started_at, duration_ms, rtt_us, accepted_at)
         select id, 1, agent_id, 'complete', 10, 30000, 0, accepted_at - interval '1 minute', 59000, 20000, accepted_at
         from crawl;"
    )
}
