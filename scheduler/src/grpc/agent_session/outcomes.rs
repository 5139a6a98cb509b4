//! Outcomes of one agent, recorded together: those that wait on its stream go into one transaction, and are answered after
//! its commit, one by one.

use futures::FutureExt as _;
use landfall_proto::v1;
use landfall_proto::v1::session_request::Message;
use tokio_stream::StreamExt as _;
use tonic::{Status, Streaming};

use super::stream::Session;
use crate::grpc::{agent_convert as convert, status};
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
        let (reports, origins): (Vec<Report>, Vec<Option<String>>) = converted.into_iter().unzip();
        let answers = self.record(&reports, &origins).await?;
        let freed = answers.iter().filter(|answer| matches!(answer, Answer::Accepted { freed: true, .. })).count();
        for (report, answer) in reports.iter().zip(answers) {
            self.send(convert::outcome_ack(report, answer)).await?;
        }
        match wrong {
            Some(status) => Err(status),
            None => self.refill(freed).await,
        }
    }

    async fn record(&self, reports: &[Report], origins: &[Option<String>]) -> Result<Vec<Answer>, Status> {
        let mut tx = store::begin(&self.scheduler.pool).await.map_err(status::from_store)?;
        let answers = outcomes::record_all(&mut tx, self.agent, reports).await.map_err(status::from_store)?;
        let (mut settled, mut crawls) = (Vec::new(), Vec::new());
        for ((report, origin), answer) in reports.iter().zip(origins).zip(&answers) {
            if let Answer::Accepted { site, .. } = *answer {
                settled.extend(origin.as_ref().map(|origin| (site, origin)));
                crawls.extend(report.rtt.map(|rtt| Crawled { site, task: report.task, rtt }));
            }
        }
        // In one order everywhere: two agents that record at once lock the same origins and sites, and must not wait for each other.
        settled.sort_unstable_by(|(_, a), (_, b)| a.cmp(b));
        crawls.sort_unstable_by_key(|crawled| crawled.site);
        if !settled.is_empty() {
            let sites: Vec<_> = settled.iter().map(|(site, _)| *site).collect();
            let unsettled = sites_origin::unsettled(&mut tx, &sites).await.map_err(status::from_store)?;
            for (site, origin) in settled.into_iter().filter(|(site, _)| unsettled.contains(site)) {
                sites_origin::settle(&mut tx, site, origin).await.map_err(status::from_store)?;
            }
        }
        if !crawls.is_empty() {
            let doubted = contradictions::note(&mut tx, self.agent, &crawls).await.map_err(status::from_store)?;
            for site in doubted {
                tracing::debug!(site.id = %site, agent.id = %self.agent, "a site is to be measured again: crawls contradict");
            }
        }
        tx.commit().await.map_err(|error| status::from_store(error.into()))?;
        Ok(answers)
    }
}
