//! Records a run for the judge.
//!
//! Each read begins with the proxies and the sites' logs, and ends with the database. So every task
//! that occurs in a proxy or a log is also in the data from the database.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use anyhow::Context;
use chrono::{DateTime, Utc};
use sqlx::{Connection, PgConnection};

use super::inject::InjectedFault;
use super::proxy::StreamProxy;
use crate::chaos::judge::record_format::{Event, FaultRecord, History, Notice, Request};
use crate::cluster::Cluster;

/// Time limit of a read, because a fault may have stopped the database.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub struct Recorder {
    /// The record so far.
    pub history: History,
    start: Instant,
    /// The time of `start` by the database's clock.
    start_db: DateTime<Utc>,
    /// The database ids of the agents, in the order of the scenario.
    agents: Vec<i64>,
    sites: Vec<String>,
    seen: BTreeSet<i64>,
    /// All transactions with an id below this value have ended, and their events were read.
    read_below: String,
    requests_read: usize,
    notices_read: Vec<Vec<usize>>,
}

impl Recorder {
    /// Starts to record a run. All agents must be enrolled.
    pub async fn start(cluster: &Cluster, seed: u64, lifetime: Duration) -> anyhow::Result<Self> {
        let start_db = sqlx::query_scalar("select clock_timestamp()").fetch_one(&cluster.pool).await;
        let (start_db, start) = (start_db.context("ask the database for the time")?, Instant::now());
        let known: Vec<(i64, String)> =
            sqlx::query_as("select id, name from agents").fetch_all(&cluster.pool).await.context("read the agents")?;
        let ids: HashMap<&str, i64> = known.iter().map(|(id, name)| (name.as_str(), *id)).collect();
        let names = cluster.agent_names();
        let agents = names.iter().map(|name| ids.get(name.as_str()).copied().context("an agent is not enrolled"));
        let agents = agents.collect::<anyhow::Result<Vec<_>>>()?;
        let history = History {
            seed,
            lifetime_us: micros(lifetime),
            schedulers: cluster.schedulers.len(),
            agents: known.into_iter().collect(),
            ..History::default()
        };
        Ok(Self {
            history,
            start,
            start_db,
            notices_read: vec![vec![0; cluster.schedulers.len()]; agents.len()],
            agents,
            sites: cluster.site_names(),
            seen: BTreeSet::new(),
            read_below: "0".to_owned(),
            requests_read: 0,
        })
    }

    /// Reads new data. If a read fails, the next call reads the data that it missed.
    pub async fn advance(
        &mut self,
        cluster: &Cluster,
        proxies: &[Vec<StreamProxy>],
        acknowledged: &[String],
    ) -> anyhow::Result<()> {
        self.history.acknowledged = acknowledged.to_vec();
        for (index, own_proxies) in proxies.iter().enumerate() {
            for (read, proxy) in self.notices_read[index].iter_mut().zip(own_proxies) {
                let notices = proxy.notices();
                let new = notices.iter().skip(*read);
                self.history.notices.extend(new.map(|notices| Notice {
                    at_us: micros(notices.at.saturating_duration_since(self.start)),
                    agent: self.agents[index],
                    task: notices.task,
                    token: notices.token,
                    accepted: notices.accepted,
                }));
                *read = notices.len();
            }
        }
        let log = cluster.world.log.entries();
        let crawled = log.iter().skip(self.requests_read).filter(|access| access.get);
        self.history.requests.extend(crawled.filter_map(|access| {
            Some(Request {
                at_us: micros(access.at.saturating_duration_since(self.start)),
                site: self.sites[access.site].clone(),
                agent: self.agents[access.agent?],
            })
        }));
        self.requests_read = log.len();
        let read = tokio::time::timeout(PATIENCE, self.read(cluster)).await;
        read.context("the database did not answer in time").flatten()
    }

    async fn read(&mut self, cluster: &Cluster) -> anyhow::Result<()> {
        let mut conn = cluster.pool.acquire().await.context("reach the database")?;
        let mut tx = conn.begin().await.context("begin to read")?;
        sqlx::query("set transaction isolation level repeatable read, read only").execute(&mut *tx).await?;
        let (events, next) = self.new_events(&mut tx).await?;
        let tasks = sqlx::query_as(TASKS).fetch_all(&mut *tx).await.context("read the tasks")?;
        let outcomes = sqlx::query_as(OUTCOMES).fetch_all(&mut *tx).await.context("read the outcomes")?;
        tx.commit().await.context("end reading")?;
        self.read_below = next;
        self.history.events.extend(events.into_iter().filter(|event| self.seen.insert(event.id)));
        (self.history.tasks, self.history.outcomes) = (tasks, outcomes);
        Ok(())
    }

    /// The events since the previous read, and the transaction id from which the next read must
    /// start.
    async fn new_events(&self, tx: &mut PgConnection) -> anyhow::Result<(Vec<Event>, String)> {
        let next: String = sqlx::query_scalar("select pg_snapshot_xmin(pg_current_snapshot())::text")
            .fetch_one(&mut *tx)
            .await
            .context("ask for the oldest transaction")?;
        let events = sqlx::query_as(EVENTS).bind(&self.read_below).bind(self.start_db).fetch_all(tx);
        let events = events.await.context("read the log")?;
        Ok((events, next))
    }

    /// Completes the record with the faults, and with the times at which the faults and the run
    /// ended.
    pub fn close(&mut self, done: &[InjectedFault], healed: Instant) {
        let since = |at: Instant| micros(at.saturating_duration_since(self.start));
        self.history.healed_us = since(healed);
        self.history.ended_us = since(Instant::now());
        self.history.faults = done
            .iter()
            .map(|done| FaultRecord {
                kind: done.fault.kind.name().to_owned(),
                agent: done.fault.kind.affects_an_agent().then(|| self.agents[done.target]),
                from_us: since(done.from),
                to_us: since(done.to.unwrap_or(healed)),
            })
            .collect();
        self.history.faults.sort_by_key(|fault| fault.from_us);
    }
}

const EVENTS: &str = "
    select id, xact::text::bigint as xact, (extract(epoch from at - $2) * 1000000)::bigint as at_us, noun, what,
           task_id as task, token, agent_id as agent, session_id as session, incarnation, term, cause
    from events where xact >= $1::text::xid8 order by id";

const TASKS: &str = "
    select t.id, s.name as site, t.state::text as state, coalesce(t.reason, '') as reason, t.token
    from tasks t join sites s on s.id = t.site_id";

const OUTCOMES: &str = "select task_id as task, token from outcomes";

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
