//! Converts and validates the messages of the gRPC service for sites.

use std::collections::HashSet;

use landfall_proto::v1;

use crate::gnp::{Placement, Position};
use crate::model::constraints::{Constraints, ConstraintsRequest};
use crate::model::site_name::SiteName;
use crate::model::{CrawlPolicy, PolicyRequest, Strategy, naming};
use crate::store::batches::changes::{CancelResult, ChangeScope, RetryResult};
use crate::store::batches::submissions::{Submission, SubmissionResult};
use crate::store::batches::{Batch, BatchSummary, EndReason, Progress};
use crate::store::measurements::of_sites::ResolvedAddress;
use crate::store::measurements::orders::OpenOrder;
use crate::store::sites::open_circuits::OpenCircuit;
use crate::store::sites::positions::Source;
use crate::store::sites::verdicts::SuspectedSite;
use crate::store::sites::{Candidate, Site, SiteMeasurement, SiteTask};
use crate::strategy::explain;
use crate::throughput::Estimate;

use super::{InvalidField, duration, rtt, timestamp};

/// Maximum length of an idempotency key, in bytes.
const MAX_KEY: usize = 200;
/// Maximum number of names in one message.
const MAX_CHUNK: usize = 10_000;
/// Maximum number of names in a submission. The names stay in memory until the stream ends; each
/// takes some 100 bytes.
const MAX_SITES: usize = 1_000_000;
/// A submission whose stream is still open.
#[derive(Debug)]
pub(in crate::grpc) struct Intake {
    submission: Submission,
    seen: HashSet<SiteName>,
    /// Number of names received so far, including repetitions.
    taken: usize,
}

impl Intake {
    /// Begins a submission with its header. `usual` is the policy that applies where the batch sets
    /// no value of its own.
    pub(in crate::grpc) fn new(header: v1::SubmitHeader, usual: &CrawlPolicy) -> Result<Self, InvalidField> {
        if header.idempotency_key.len() > MAX_KEY {
            return Err(InvalidField::new("idempotency_key", format!("longer than {MAX_KEY} bytes")));
        }
        Ok(Self {
            submission: Submission {
                batch: naming::batch(&header.batch).map_err(InvalidField::of("batch"))?.to_owned(),
                strategy: strategy(&header.strategy)?,
                policy: header.policy.map(TryInto::try_into).transpose()?.unwrap_or_default(),
                constraints: header.constraints.map(TryInto::try_into).transpose()?.unwrap_or_default(),
                default_policy: usual.clone(),
                idempotency_key: Some(header.idempotency_key).filter(|key| !key.is_empty()),
                sites: Vec::new(),
                positions: Vec::new(),
                duplicates: 0,
            },
            seen: HashSet::new(),
            taken: 0,
        })
    }

    /// Adds the sites of a further message.
    pub(in crate::grpc) fn take(&mut self, request: v1::SubmitRequest) -> Result<(), InvalidField> {
        let chunk = match request.part {
            Some(v1::submit_request::Part::Chunk(chunk)) => chunk,
            Some(v1::submit_request::Part::Header(_)) => return Err(InvalidField::new("header", "sent twice")),
            None => return Err(InvalidField::new("part", "missing")),
        };
        if chunk.sites.len() > MAX_CHUNK || chunk.positions.len() > chunk.sites.len() {
            return Err(InvalidField::new("sites", format!("more than {MAX_CHUNK} in one message")));
        }
        for listed in chunk.positions {
            self.submission.positions.push(self::position(&chunk.sites, listed)?);
        }
        for text in chunk.sites {
            if self.taken == MAX_SITES {
                return Err(InvalidField::new("sites", format!("more than {MAX_SITES}: split the submission")));
            }
            let site: SiteName = text.parse().map_err(InvalidField::of(format!("sites[{}]", self.taken)))?;
            self.taken += 1;
            if self.seen.insert(site.clone()) {
                self.submission.sites.push(site);
            } else {
                self.submission.duplicates += 1;
            }
        }
        Ok(())
    }

    pub(in crate::grpc) fn finish(self) -> Result<Submission, InvalidField> {
        if self.submission.sites.is_empty() {
            return Err(InvalidField::new("sites", "the submission holds none"));
        }
        Ok(self.submission)
    }
}

/// Parses the position of one of the sites in a message.
fn position(sites: &[String], listed: v1::ListedPosition) -> Result<(SiteName, Position), InvalidField> {
    let field = || format!("positions[{}]", listed.index);
    let named = usize::try_from(listed.index).ok().and_then(|index| sites.get(index));
    let named = named.ok_or_else(|| InvalidField::new(field(), "this message has no site with that index"))?;
    let site = named.parse().map_err(InvalidField::of(field()))?;
    let position = Position::try_new(listed.latitude, listed.longitude).map_err(InvalidField::of(field()))?;
    Ok((site, position))
}

/// The header, which must be the first message.
pub(in crate::grpc) fn header(first: Option<v1::SubmitRequest>) -> Result<v1::SubmitHeader, InvalidField> {
    match first.and_then(|request| request.part) {
        Some(v1::submit_request::Part::Header(header)) => Ok(header),
        Some(v1::submit_request::Part::Chunk(_)) | None => Err(InvalidField::new("header", "must come first")),
    }
}

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

fn strategy(text: &str) -> Result<Option<Strategy>, InvalidField> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(InvalidField::of("strategy"))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn intake(policy: v1::CrawlPolicy, usual: &CrawlPolicy) -> Result<CrawlPolicy, InvalidField> {
        let header = v1::SubmitHeader { batch: "b".into(), policy: Some(policy), ..v1::SubmitHeader::default() };
        let submission = Intake::new(header, usual)?.submission;
        Ok(submission.policy.or(&submission.default_policy))
    }

    #[test]
    fn what_a_policy_leaves_out_is_the_schedulers_configuration() {
        let usual = CrawlPolicy { max_pages: 7, max_depth: 3, ..CrawlPolicy::default() };
        let asked = v1::CrawlPolicy { max_bytes: Some(9), max_depth: Some(0), ..v1::CrawlPolicy::default() };
        let policy = intake(asked, &usual).expect("a policy");
        assert_eq!((policy.max_pages, policy.max_bytes, policy.max_depth), (7, 9, 0), "a depth of 0 means something");
    }

    #[test]
    fn a_policy_out_of_its_bounds_is_refused_by_field() {
        let pages = v1::CrawlPolicy { max_pages: Some(0), ..v1::CrawlPolicy::default() };
        let depth = v1::CrawlPolicy { max_depth: Some(u32::MAX), ..v1::CrawlPolicy::default() };
        for (asked, message) in
            [(pages, "policy.max_pages: must be 1 or more"), (depth, "policy.max_depth: must be at most 2147483647")]
        {
            assert_eq!(intake(asked, &CrawlPolicy::default()).expect_err("refused").to_string(), message);
        }
    }
}
