//! Records outcomes in groups: the waiting outcomes of an agent's stream share one transaction with
//! outcomes that other agents send at the same time. The transaction also grants leases for the
//! slots that these outcomes free. Each outcome is acknowledged after the commit.

use futures_util::FutureExt as _;
use landfall_proto::v1;
use landfall_proto::v1::session_request::Message;
use sqlx::PgConnection;
use tokio_stream::StreamExt as _;
use tonic::{Status, Streaming};

use super::convert;
use super::group_commit::Request;
use super::stream::{FILLED_AT_ONCE, Session};
use crate::model::{AgentId, SiteId};
use crate::store;
use crate::store::leases::outcomes::{self, OutcomeAnswer, Report};
use crate::store::leases::{self, FreeSlots, Grant};
use crate::store::measurements::contradictions::{self, CrawlRtt};
use crate::store::sites::origin;

/// Maximum number of outcomes from one stream that are recorded at once. It is high enough to share
/// the cost of the commit, and low enough for a transaction that takes only tens of milliseconds.
const MOST_AT_ONCE: usize = 512;
/// Storing this many discovered hosts takes about as long as recording one outcome.
const HOSTS_PER_ROW: usize = 10;

/// Adds the outcomes that have already arrived to `reports`, beginning with `request`. Returns the
/// next message if it is of another kind, or the error that broke the stream.
pub(super) fn gather(
    request: v1::SessionRequest,
    inbound: &mut Streaming<v1::SessionRequest>,
    reports: &mut Vec<v1::OutcomeReport>,
) -> Option<Result<v1::SessionRequest, Status>> {
    let (mut next, mut rows) = (Some(Ok(request)), 0);
    loop {
        match next {
            Some(Ok(v1::SessionRequest { message: Some(Message::Outcome(report)) })) => {
                rows += 1 + report.hosts.len() / HOSTS_PER_ROW;
                reports.push(report);
            }
            other => return other,
        }
        if rows >= MOST_AT_ONCE {
            return None;
        }
        // Stops if no message has arrived or the stream has ended. The end of the stream is not
        // lost, because the next read of the stream returns it again.
        next = inbound.next().now_or_never()?;
    }
}

impl Session {
    pub(super) async fn record_outcomes(&mut self, reports: Vec<v1::OutcomeReport>) -> Result<(), Status> {
        let mut converted = Vec::with_capacity(reports.len());
        let mut wrong = None;
        for report in reports {
            match convert::outcome(report) {
                Ok(report) => converted.push(report),
                // The outcomes before the error are still recorded.
                Err(status) => {
                    wrong = Some(status);
                    break;
                }
            }
        }
        let keys: Vec<_> = converted.iter().map(|(report, _)| (report.task, report.token)).collect();
        // An invalid outcome ends the session, which then gets no more leases.
        let free = if wrong.is_none() { self.fillable() } else { None };
        let recording = OutcomeBatch { agent: self.agent, reports: converted, free };
        let RecordedOutcome { answers, grants, slots } = self.recordings.ask(&self.scheduler.pool, recording).await?;
        self.freed(&answers);
        self.scheduler.wakes.crawls.notify_one();
        if answers.iter().any(|answer| matches!(answer, OutcomeAnswer::Accepted { waited_for: true, .. })) {
            // Tasks on hold wait for the address of an ended crawl. The assignment job is woken at
            // once, because the address stays idle until another crawl begins there.
            self.scheduler.wakes.assign.notify_one();
        }
        for ((task, token), answer) in keys.into_iter().zip(answers) {
            self.send(convert::outcome_ack(task, token, answer)).await?;
        }
        self.filled(grants, slots).await?;
        wrong.map_or(Ok(()), Err)
    }
}

#[derive(Debug)]
pub(super) struct OutcomeBatch {
    agent: AgentId,
    /// Each report, with the origin at which the agent found the site.
    reports: Vec<(Report, Option<String>)>,
    /// The agent's free slots; `None` if no leases may be granted, not even for the slots that
    /// these outcomes free.
    free: Option<FreeSlots>,
}

/// The result of recording an agent's outcomes.
#[derive(Debug)]
pub(super) struct RecordedOutcome {
    /// One answer per report, in the order of the reports.
    answers: Vec<OutcomeAnswer>,
    /// The granted leases, and the number of free slots for which leases could be granted.
    grants: Vec<Grant>,
    slots: i64,
}

/// Number of slots that were freed, which is the number of outcomes that ended an active lease.
pub(super) fn freed(answers: &[OutcomeAnswer]) -> i64 {
    let freed = answers.iter().filter(|answer| matches!(answer, OutcomeAnswer::Accepted { freed: true, .. })).count();
    i64::try_from(freed).unwrap_or(i64::MAX)
}

impl Request for OutcomeBatch {
    type Answer = RecordedOutcome;

    fn rows(&self) -> usize {
        let hosts: usize = self.reports.iter().map(|(report, _)| report.hosts.len()).sum();
        self.reports.len() + hosts / HOSTS_PER_ROW
    }

    async fn run(conn: &mut PgConnection, requests: &[&Self]) -> Result<Vec<RecordedOutcome>, store::Error> {
        // Sessions are locked before tasks, as in every transaction that locks both.
        let asking: Vec<FreeSlots> = requests.iter().filter_map(|asked| asked.free).collect();
        let locked = leases::lock(conn, &asking).await?;
        let reported: Vec<(AgentId, &Report, Option<&str>)> = requests
            .iter()
            .flat_map(|asked| asked.reports.iter().map(|(report, origin)| (asked.agent, report, origin.as_deref())))
            .collect();
        let reports: Vec<_> = reported.iter().map(|&(agent, report, _)| (agent, report)).collect();
        let answers = outcomes::record_all(conn, &reports).await?;
        let (mut settled, mut crawls) = (Vec::new(), Vec::new());
        for (&(agent, report, origin), answer) in reported.iter().zip(&answers) {
            if let OutcomeAnswer::Accepted { site, .. } = *answer {
                settled.extend(origin.map(|origin| (site, origin)));
                crawls.extend(report.rtt.map(|rtt| CrawlRtt { agent, site, task: report.task, rtt }));
            }
        }
        settle(conn, settled).await?;
        note(conn, crawls).await?;
        let mut answers = answers.into_iter();
        let mut recorded: Vec<RecordedOutcome> = requests
            .iter()
            .map(|asked| RecordedOutcome {
                answers: answers.by_ref().take(asked.reports.len()).collect(),
                grants: Vec::new(),
                slots: 0,
            })
            .collect();
        let free = requests.iter().map(|asked| asked.free.filter(|free| locked.contains_key(&free.agent)));
        fill(conn, free.zip(&mut recorded)).await?;
        Ok(recorded)
    }
}

async fn fill(
    conn: &mut PgConnection,
    recorded: impl Iterator<Item = (Option<FreeSlots>, &mut RecordedOutcome)>,
) -> Result<(), store::Error> {
    let (mut filled, mut asking) = (Vec::new(), Vec::new());
    for (free, recorded) in recorded {
        let freed = freed(&recorded.answers);
        if let Some(free) = free.filter(|_| freed > 0) {
            recorded.slots = free.slots.saturating_add(freed).min(FILLED_AT_ONCE);
            asking.push(FreeSlots { slots: recorded.slots, ..free });
            filled.push(recorded);
        }
    }
    for (recorded, grants) in filled.into_iter().zip(leases::fill(conn, &asking).await?) {
        recorded.grants = grants;
    }
    Ok(())
}

async fn settle(conn: &mut PgConnection, mut settled: Vec<(SiteId, &str)>) -> Result<(), store::Error> {
    if settled.is_empty() {
        return Ok(());
    }
    // Origins are always locked in the same order, so that two transactions cannot deadlock.
    settled.sort_unstable_by_key(|&(_, origin)| origin);
    let sites: Vec<_> = settled.iter().map(|(site, _)| *site).collect();
    let unsettled = origin::unsettled(conn, &sites).await?;
    for (site, origin) in settled.into_iter().filter(|(site, _)| unsettled.contains(site)) {
        origin::settle(conn, site, origin).await?;
    }
    Ok(())
}

async fn note(conn: &mut PgConnection, mut crawls: Vec<CrawlRtt>) -> Result<(), store::Error> {
    if crawls.is_empty() {
        return Ok(());
    }
    // Sites are always locked in the same order, so that two transactions cannot deadlock.
    crawls.sort_unstable_by_key(|crawled| crawled.site);
    for site in contradictions::note(conn, &crawls).await? {
        tracing::debug!(site.id = %site, "a site is to be measured again: crawls contradict");
    }
    Ok(())
}
