//! Converts and validates the messages of the gRPC service for sites.

use std::collections::HashSet;

use landfall_proto::v1;

use crate::gnp::Placement;
use crate::model::PolicyRequest;
use crate::model::constraints::{Constraints, ConstraintsRequest};
use crate::model::geo::Position;
use crate::model::site_name::SiteName;
use crate::store::batches::cancel_and_retry::{CancelResult, ChangeScope, RetryResult};
use crate::store::batches::end_reasons::EndReason;
use crate::store::batches::submissions::SubmissionResult;
use crate::store::batches::{Batch, BatchSummary, Progress};
use crate::store::measurements::orders::OpenOrder;
use crate::store::measurements::resolved_addresses::ResolvedAddress;
use crate::store::sites::open_circuits::OpenCircuit;
use crate::store::sites::positions::Source;
use crate::store::sites::verdicts::SuspectedSite;
use crate::store::sites::{Candidate, Site, SiteMeasurement, SiteTask};
use crate::strategy::explain;
use crate::throughput::Estimate;

use super::{InvalidField, duration, rtt, timestamp};

/// Maximum number of names in one message.
pub(in crate::grpc) const MAX_CHUNK: usize = 10_000;

pub(in crate::grpc) fn site_name(site: &str) -> Result<SiteName, InvalidField> {
    site.parse().map_err(InvalidField::of("site"))
}

impl From<OpenCircuit> for v1::OpenCircuit {
    fn from(circuit: OpenCircuit) -> Self {
        let OpenCircuit { site, since, agent, message, waiting } = circuit;
        Self { site, since: Some(timestamp(since)), agent, message, waiting }
    }
}

/// Parses which tasks of a batch a request affects: all tasks, or those of the named sites.
pub(in crate::grpc) fn extent(sites: &[String], all: bool, flag: &str) -> Result<ChangeScope, InvalidField> {
    match (sites.len(), all) {
        (0, true) => return Ok(ChangeScope::All),
        (0, false) => return Err(InvalidField::new("sites", format!("no site is named, and `{flag}` is not set"))),
        (_, true) => return Err(InvalidField::new(flag, "sites are named too")),
        (named, false) if named > MAX_CHUNK => {
            return Err(InvalidField::new("sites", format!("more than {MAX_CHUNK} in one message")));
        }
        (_, false) => {}
    }
    let parsed =
        sites.iter().enumerate().map(|(index, text)| text.parse().map_err(InvalidField::of(format!("sites[{index}]"))));
    // Repeated names are dropped, so that each site is counted once.
    let mut seen = HashSet::new();
    let names: Vec<SiteName> = parsed.collect::<Result<_, _>>()?;
    Ok(ChangeScope::Sites(names.into_iter().filter(|name: &SiteName| seen.insert(name.clone())).collect()))
}

impl From<SubmissionResult> for v1::SubmitResponse {
    fn from(submitted: SubmissionResult) -> Self {
        Self {
            added: submitted.added,
            already_present: submitted.already_present,
            duplicates: submitted.duplicates,
            batch_total: submitted.batch_total,
            warnings: Vec::new(),
        }
    }
}

impl From<CancelResult> for v1::CancelTasksResponse {
    fn from(cancelled: CancelResult) -> Self {
        let CancelResult { tasks, leases, ended, recrawls, agents: _ } = cancelled;
        Self { tasks, leases, ended, recrawls }
    }
}

impl From<RetryResult> for v1::RetryTasksResponse {
    fn from(RetryResult { tasks, open }: RetryResult) -> Self {
        Self { tasks, open }
    }
}

impl From<BatchSummary> for v1::Batch {
    fn from(batch: BatchSummary) -> Self {
        Self {
            name: batch.name,
            strategy: batch.strategy.to_string(),
            created_at: Some(timestamp(batch.created_at)),
            open: batch.open,
            done: batch.done,
            failed: batch.failed,
            cancelled: batch.cancelled,
        }
    }
}

/// The message with all stored facts about a batch.
pub(in crate::grpc) fn shown_batch(
    batch: Batch,
    asked: Constraints,
    progress: v1::BatchProgress,
    endings: Vec<EndReason>,
) -> v1::ShowBatchResponse {
    v1::ShowBatchResponse {
        name: batch.name,
        strategy: batch.strategy.to_string(),
        policy: Some(PolicyRequest::from(batch.policy).into()),
        progress: Some(progress),
        endings: endings.into_iter().map(Into::into).collect(),
        constraints: Some(ConstraintsRequest::from(asked).into()),
    }
}

impl From<EndReason> for v1::Ending {
    fn from(ended: EndReason) -> Self {
        let EndReason { kind, tasks, site, reason } = ended;
        Self { reason, tasks, kind: v1::ReasonKind::from(kind).into(), site }
    }
}

/// The message about a batch's progress, with the estimated remaining time.
pub(in crate::grpc) fn progress(batch: &str, progress: &Progress, estimate: Option<Estimate>) -> v1::BatchProgress {
    v1::BatchProgress {
        batch: batch.to_owned(),
        submitted: progress.submitted,
        measuring: progress.measuring,
        located: progress.located,
        assigned: progress.assigned,
        leased: progress.leased,
        complete: progress.complete,
        truncated: progress.truncated,
        failed: progress.failed,
        cancelled: progress.cancelled,
        pages: progress.pages,
        bytes: progress.bytes,
        waiting_for: progress
            .waiting_for
            .as_ref()
            .map(|(wait, sites)| explain::sites_wait(wait, *sites))
            .unwrap_or_default(),
        wait: progress.waiting_for.as_ref().map(|(wait, _)| wait.into()),
        waiting_for_it: progress.waiting_for.as_ref().map_or(0, |(_, sites)| *sites),
        next_recrawl: progress.next_recrawl.map(timestamp),
        estimate: estimate.map(Into::into),
    }
}

pub(in crate::grpc) fn globe_position((position, source): (Position, Source)) -> v1::GlobePosition {
    let (latitude, longitude) = (position.latitude(), position.longitude());
    v1::GlobePosition { latitude, longitude, source: source.name().to_owned() }
}

/// The message with all stored facts about a site.
pub(in crate::grpc) fn shown(
    site: Site,
    measurements: Vec<SiteMeasurement>,
    placement: Option<Placement>,
    verdict: Option<Option<SuspectedSite>>,
    tasks: Vec<SiteTask>,
) -> v1::ShowSiteResponse {
    v1::ShowSiteResponse {
        site_id: site.id.get(),
        name: site.name,
        origin: site.origin.unwrap_or_default(),
        alias_of: site.alias_of.map(|(_, name)| name).unwrap_or_default(),
        measurements: measurements.into_iter().map(Into::into).collect(),
        placement: placement.map(Into::into),
        tasks: tasks.into_iter().map(Into::into).collect(),
        verdict: verdict.map(verdict_message),
        ..v1::ShowSiteResponse::default()
    }
}

impl From<ResolvedAddress> for v1::ResolvedAddress {
    fn from(ResolvedAddress { prober, address, postponed, requests }: ResolvedAddress) -> Self {
        Self { prober, address, postponed, requests }
    }
}

impl From<OpenOrder> for v1::SiteOrder {
    fn from(OpenOrder { prober, address, other }: OpenOrder) -> Self {
        Self { prober, address: address.unwrap_or_default(), site: other.unwrap_or_default() }
    }
}

fn verdict_message(suspicion: Option<SuspectedSite>) -> v1::SiteVerdict {
    suspicion.map_or_else(v1::SiteVerdict::default, |SuspectedSite { confidence, evidence }| v1::SiteVerdict {
        suspect: true,
        confidence,
        evidence,
    })
}

impl From<SiteMeasurement> for v1::SiteMeasurement {
    fn from(measurement: SiteMeasurement) -> Self {
        Self {
            prober: measurement.prober,
            rtt: rtt(measurement.rtt),
            min: rtt(measurement.min),
            median: rtt(measurement.median),
            spread: measurement.spread.map(|spread| duration(spread.0)),
            count: measurement.answered,
            lost: measurement.lost,
            address: measurement.address.unwrap_or_default(),
            failure: measurement.failure.unwrap_or_default(),
            shared_from: measurement.shared_from.unwrap_or_default(),
            requests: measurement.requests,
            measured_at: Some(timestamp(measurement.measured_at)),
            confirming: measurement.confirming,
        }
    }
}

impl From<Placement> for v1::SitePlacement {
    fn from(placement: Placement) -> Self {
        Self { epoch: placement.epoch.get(), coordinate: placement.coordinate, fit_error: placement.fit_error }
    }
}

impl From<SiteTask> for v1::SiteTask {
    fn from(task: SiteTask) -> Self {
        let progress = task.progress.map(|progress| v1::CrawlProgress {
            pages: progress.pages,
            state_bytes: progress.state_bytes,
            saved_at: Some(timestamp(progress.saved_at)),
            interval: progress.rate_state.interval.map(duration),
            paused_until: progress.paused_until.map(timestamp),
            turned_away: progress.rate_state.turned_away,
            failed_in_a_row: progress.rate_state.failed_in_a_row,
            recent_requests: progress.rate_state.recent_requests,
            recent_errors: progress.rate_state.recent_errors,
            last_error: progress.rate_state.last_error,
        });
        let outcome = task.outcome.as_ref();
        Self {
            batch: task.batch,
            round: task.round,
            state: task.state.name().to_owned(),
            reason: explain::reason(task.reason, task.waits.as_ref(), Some(&task.why), task.message),
            agent: task.agent.clone().unwrap_or_default(),
            strategy: task.strategy.map_or_else(String::new, String::from),
            candidates: task.candidates.into_iter().map(Into::into).collect(),
            outcome: outcome.map_or("", |outcome| outcome.kind.name()).to_owned(),
            pages: outcome.map_or(0, |outcome| outcome.pages),
            bytes: outcome.map_or(0, |outcome| outcome.bytes),
            note: explain::note(&task.why).unwrap_or_default(),
            refetched: outcome.map_or(0, |outcome| outcome.refetched),
            trapped: outcome.map_or(0, |outcome| outcome.trapped),
            progress,
            recrawl_at: task.recrawl_at.map(timestamp),
            wait: task.waits.as_ref().map(Into::into),
            why: task.agent.as_ref().map(|_| (&task.why).into()),
        }
    }
}

impl From<Candidate> for v1::Candidate {
    fn from(candidate: Candidate) -> Self {
        Self { agent: candidate.agent, predicted: rtt(candidate.predicted), measured: rtt(candidate.measured) }
    }
}
