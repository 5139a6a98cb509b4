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
    /// The time of the newest event.
    newest_us: i64,
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
            newest_us: 0,
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
        // Read after the events, so that no event is of a fault that is not listed.
        let faults = self.clock_faults(cluster).await;
        self.read_below = next;
        let new = events.into_iter().filter(|event| self.seen.insert(event.id));
        for event in new {
            self.newest_us = true_time(event.at_us, self.newest_us, &faults);
            self.history.events.push(Event { at_us: self.newest_us, ..event });
        }
        (self.history.tasks, self.history.outcomes) = (tasks, outcomes);
        Ok(())
    }

    async fn clock_faults(&self, cluster: &Cluster) -> Vec<ShiftedTime> {
        let Some(postgres) = &cluster.postgres else { return Vec::new() };
        let since = |at: Instant| micros(at.saturating_duration_since(self.start));
        let faults = postgres.lock().await.clock_faults.clone().into_iter();
        faults
            .map(|fault| ShiftedTime {
                from_us: since(fault.from),
                to_us: fault.to.map_or(i64::MAX, since),
                shift_us: fault.seconds * 1_000_000,
            })
            .collect()
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

/// A time in which the database's clock was wrong.
#[derive(Debug, Clone, Copy)]
struct ShiftedTime {
    from_us: i64,
    to_us: i64,
    shift_us: i64,
}

/// Inaccuracy of the times at which the database's clock jumps.
const SLACK_US: i64 = 100_000;

/// The true time of an event that the database's clock dates at `at_us`: of the times that are
/// possible, the one closest to the event before.
fn true_time(at_us: i64, previous_us: i64, faults: &[ShiftedTime]) -> i64 {
    let possible = faults.iter().filter_map(|fault| {
        let at_us = at_us - fault.shift_us;
        let lasted = fault.from_us - SLACK_US..fault.to_us.saturating_add(SLACK_US);
        lasted.contains(&at_us).then_some(at_us)
    });
    possible.chain([at_us]).min_by_key(|possible| possible.abs_diff(previous_us)).unwrap_or(at_us)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_their_true_time_although_the_clock_jumped() {
        let fault = |from_us, shift_us| ShiftedTime { from_us, to_us: from_us + 1_000_000, shift_us };
        let faults = [fault(5_000_000, 600_000_000), fault(8_000_000, -5_000_000)];
        let (mut previous, mut found) = (0, Vec::new());
        for at_us in [4_900_000, 605_100_000, 605_900_000, 6_200_000, 3_200_000, 3_900_000, 9_100_000] {
            previous = true_time(at_us, previous, &faults);
            found.push(previous);
        }
        assert_eq!(found, [4_900_000, 5_100_000, 5_900_000, 6_200_000, 8_200_000, 8_900_000, 9_100_000]);
    }
}
