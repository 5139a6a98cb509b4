//! Outcomes, recorded together: those that wait on an agent's stream go into one transaction, with those of the agents that come at
//! the same time, and are answered after its commit, one by one.

use futures::FutureExt as _;
use landfall_proto::v1;
use landfall_proto::v1::session_request::Message;
use sqlx::PgConnection;
use tokio_stream::StreamExt as _;
use tonic::{Status, Streaming};

use super::stream::Session;
use super::together::Request;
use crate::grpc::agent_convert as convert;
use crate::model::{AgentId, SiteId};
use crate::store::contradictions::{self, Crawled};
use crate::store::outcomes::{self, Answer, Report};
use crate::store::{self, sites_origin};

/// Outcomes recorded at once: enough that the commit costs each little, few enough that it takes some tens of milliseconds.
const MOST_AT_ONCE: usize = 512;

/// Takes the outcomes that have come already, the first of which is `request`; returns what came after them, if it is something
/// else, or the way the stream broke.
pub(super) fn gather(
    request: v1::SessionRequest,
    inbound: &mut Streaming<v1::SessionRequest>,
    reports: &mut Vec<v1::OutcomeReport>,
) -> Option<Result<v1::SessionRequest, Status>> {
    let mut next = Some(Ok(request));
    loop {
        match next {
            Some(Ok(v1::SessionRequest { message: Some(Message::Outcome(report)) })) => reports.push(report),
            other => return other,
        }
        if reports.len() == MOST_AT_ONCE {
            return None;
        }
        // Nothing has come, or the stream has ended: whoever looks next is told again.
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
                // Those before it count.
                Err(status) => {
                    wrong = Some(status);
                    break;
                }
            }
        }
        let keys: Vec<_> = converted.iter().map(|(report, _)| (report.task, report.token)).collect();
        let recording = Recording { agent: self.agent, reports: converted };
        let answers = self.transactions.recordings.ask(&self.scheduler.pool, recording).await?;
        let freed = answers.iter().filter(|answer| matches!(answer, Answer::Accepted { freed: true, .. })).count();
        for ((task, token), answer) in keys.into_iter().zip(answers) {
            self.send(convert::outcome_ack(task, token, answer)).await?;
        }
        match wrong {
            Some(status) => Err(status),
            None => self.refill(freed).await,
        }
    }
}

/// Outcomes of one agent, to be recorded.
#[derive(Debug)]
pub(super) struct Recording {
    agent: AgentId,
    /// Each with the origin that its site was found at.
    reports: Vec<(Report, Option<String>)>,
}

impl Request for Recording {
    type Answer = Vec<Answer>;

    fn rows(&self) -> usize {
        self.reports.len()
    }

    async fn run(conn: &mut PgConnection, requests: &[&Self]) -> Result<Vec<Vec<Answer>>, store::Error> {
        let reported: Vec<(AgentId, &Report, Option<&str>)> = requests
            .iter()
            .flat_map(|asked| asked.reports.iter().map(|(report, origin)| (asked.agent, report, origin.as_deref())))
            .collect();
        let reports: Vec<_> = reported.iter().map(|&(agent, report, _)| (agent, report)).collect();
        let answers = outcomes::record_all(conn, &reports).await?;
        let (mut settled, mut crawls) = (Vec::new(), Vec::new());
        for (&(agent, report, origin), answer) in reported.iter().zip(&answers) {
            if let Answer::Accepted { site, .. } = *answer {
                settled.extend(origin.map(|origin| (site, origin)));
                crawls.extend(report.rtt.map(|rtt| Crawled { agent, site, task: report.task, rtt }));
            }
        }
        settle(conn, settled).await?;
        note(conn, crawls).await?;
        let mut answers = answers.into_iter();
        Ok(requests.iter().map(|asked| answers.by_ref().take(asked.reports.len()).collect()).collect())
    }
}

async fn settle(conn: &mut PgConnection, mut settled: Vec<(SiteId, &str)>) -> Result<(), store::Error> {
    if settled.is_empty() {
        return Ok(());
    }
    // In one order everywhere: two transactions lock the same origins, and must not wait for each other.
    settled.sort_unstable_by_key(|&(_, origin)| origin);
    let sites: Vec<_> = settled.iter().map(|(site, _)| *site).collect();
    let unsettled = sites_origin::unsettled(conn, &sites).await?;
    for (site, origin) in settled.into_iter().filter(|(site, _)| unsettled.contains(site)) {
        sites_origin::settle(conn, site, origin).await?;
    }
    Ok(())
}

async fn note(conn: &mut PgConnection, mut crawls: Vec<Crawled>) -> Result<(), store::Error> {
    if crawls.is_empty() {
        return Ok(());
    }
    // As above, of sites.
    crawls.sort_unstable_by_key(|crawled| crawled.site);
    for site in contradictions::note(conn, &crawls).await? {
        tracing::debug!(site.id = %site, "a site is to be measured again: crawls contradict");
    }
    Ok(())
}
