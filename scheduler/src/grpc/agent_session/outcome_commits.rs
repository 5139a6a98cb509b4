//! One transaction records outcomes of several agents, and grants leases for the freed slots.
//!
//! The outcomes that arrive on an agent's stream together share the transaction with outcomes that
//! other agents send at the same time.

use sqlx::PgConnection;

use super::group_commit::{GroupCommit, Request};
use crate::model::{AgentId, SiteId};
use crate::store;
use crate::store::leases::outcomes::{self, OutcomeAnswer, OutcomeReport};
use crate::store::leases::{self, FreeSlots, Grant};
use crate::store::measurements::contradictions::{self, CrawlRtt};
use crate::store::sites::origins_and_aliases;

/// Storing this many discovered hosts takes about as long as recording one outcome.
pub(super) const HOSTS_PER_ROW: usize = 10;
/// Maximum number of leases granted to an agent in a shared transaction that records outcomes. A
/// session that got this many leases is woken to fill its other free slots.
pub(super) const FILLED_AT_ONCE: i64 = 512;

/// The group commit of outcomes, shared by the sessions of one scheduler.
pub(super) type OutcomeCommits = GroupCommit<OutcomeBatch>;

/// The outcomes of one agent, which are recorded together.
#[derive(Debug)]
pub(super) struct OutcomeBatch {
    pub(super) agent: AgentId,
    /// Each report, with the origin at which the agent found the site.
    pub(super) reports: Vec<(OutcomeReport, Option<String>)>,
    /// The agent's free slots; `None` if no leases may be granted, not even for the slots that
    /// these outcomes free.
    pub(super) free: Option<FreeSlots>,
}

/// The result of recording an agent's outcomes.
#[derive(Debug)]
pub(super) struct RecordedOutcome {
    /// One answer per report, in the order of the reports.
    pub(super) answers: Vec<OutcomeAnswer>,
    /// The granted leases, and the number of free slots for which leases could be granted.
    pub(super) grants: Vec<Grant>,
    pub(super) slots: i64,
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
        let reported: Vec<(AgentId, &OutcomeReport, Option<&str>)> = requests
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
    let unsettled = origins_and_aliases::unsettled(conn, &sites).await?;
    for (site, origin) in settled.into_iter().filter(|(site, _)| unsettled.contains(site)) {
        origins_and_aliases::settle(conn, site, origin).await?;
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
