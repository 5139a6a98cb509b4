//! Receives and stores a submission of sites: checks its header and its sites, and limits its size
//! and duration.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use landfall_proto::v1;
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use sqlx::PgConnection;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::list_show_watch::constraints_of;
use crate::Scheduler;
use crate::config::Draws;
use crate::grpc::errors;
use crate::grpc::operator::convert::{InvalidField, MAX_CHUNK};
use crate::grpc::submission_places::MOST_AT_ONCE;
use crate::model::constraints::{AgentTraits, Constraints};
use crate::model::geo::Position;
use crate::model::site_list::MAX_SITES;
use crate::model::site_name::SiteName;
use crate::model::{CrawlPolicy, Strategy, naming};
use crate::store::batches::submissions::{self, Idempotency, Submission, SubmissionResult, SubmitError};
use crate::store::batches::{self, constraints_and_quotas};
use crate::store::db::MayConflict;
use crate::store::{self, Tx, agents};

/// Maximum length of an idempotency key, in bytes.
const MAX_KEY: usize = 200;
/// Maximum time to wait for the next message of a submission.
const NEXT_CHUNK: Duration = Duration::from_secs(60);

/// Number of names up to which a submission is small. Most submissions are.
const SMALL: usize = 10_000;
/// Why the transaction of a submission is rolled back.
enum RolledBack {
    DryRun(v1::SubmitResponse),
    Refused(Status),
}

impl From<Status> for RolledBack {
    fn from(status: Status) -> Self {
        Self::Refused(status)
    }
}

impl From<SubmitError> for RolledBack {
    fn from(error: SubmitError) -> Self {
        Self::Refused(error.into())
    }
}

impl From<store::Error> for RolledBack {
    fn from(error: store::Error) -> Self {
        Self::Refused(error.into())
    }
}

impl MayConflict for RolledBack {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused(status) if status.is_conflict())
    }
}

/// Receives a submission and stores it, unless it is a dry run.
pub(in crate::grpc::operator) async fn submit(
    scheduler: &Scheduler,
    shutdown: &CancellationToken,
    incoming: Streaming<v1::SubmitRequest>,
) -> Result<v1::SubmitResponse, Status> {
    let place = Arc::clone(&scheduler.submissions.all).try_acquire_owned();
    let _place = place.map_err(|_| {
        Status::resource_exhausted(format!("{MOST_AT_ONCE} submissions are under way: try again when one has ended"))
    })?;
    let (submission, dry_run, _place_among_large) = receive(scheduler, shutdown, incoming).await?;
    let submission = &submission;
    let stored = scheduler.operators.tx("submit", |tx| keep(scheduler, tx, submission, dry_run).boxed()).await;
    let (submitted, warnings) = match stored {
        Ok(stored) => stored,
        Err(RolledBack::DryRun(would)) => return Ok(would),
        Err(RolledBack::Refused(status)) => return Err(status),
    };
    tracing::info!(batch = submission.batch, added = submitted.added, total = submitted.batch_total, "submitted");
    scheduler.wakes.measure.notify_one();
    scheduler.wakes.assign.notify_one();
    Ok(v1::SubmitResponse { warnings, ..submitted.into() })
}

async fn keep(
    scheduler: &Scheduler,
    tx: &mut Tx<'_>,
    submission: &Submission,
    dry_run: bool,
) -> Result<(SubmissionResult, Vec<String>), RolledBack> {
    check_strategy(scheduler, tx, submission.strategy.unwrap_or_default()).await?;
    let submitted = submissions::submit(tx, submission).await?;
    let warnings = unheard_of(tx, &submission.batch).await?;
    if dry_run {
        return Err(RolledBack::DryRun(v1::SubmitResponse { warnings, ..submitted.into() }));
    }
    submissions::has_grown(tx, submitted.added).await?;
    Ok((submitted, warnings))
}

/// Refuses a strategy that this fleet or this configuration cannot follow. The default strategy
/// is accepted even if the fleet is too small, because the operator did not choose it.
async fn check_strategy(scheduler: &Scheduler, conn: &mut PgConnection, strategy: Strategy) -> Result<(), Status> {
    if strategy.needs_load() && scheduler.config.draws == Draws::Static {
        return Err(SubmitError::IgnoresLoad(strategy).into());
    }
    if let Strategy::GnpTop(k) = strategy
        && strategy != Strategy::default()
    {
        let agents = agents::list(conn).await?.len();
        if k.get() > agents {
            return Err(SubmitError::TooFewAgents { strategy, agents }.into());
        }
    }
    Ok(())
}

/// Reads a complete submission. Nothing is stored until the stream has ended. Also returns whether
/// the submission is a dry run, and its place if it is large.
async fn receive(
    scheduler: &Scheduler,
    shutdown: &CancellationToken,
    mut stream: Streaming<v1::SubmitRequest>,
) -> Result<(Submission, bool, Option<OwnedSemaphorePermit>), Status> {
    let header = header(next(shutdown, &mut stream).await?)?;
    let dry_run = header.dry_run;
    let mut intake = Intake::new(header, &scheduler.config.crawl)?;
    let mut place = None;
    while let Some(request) = next(shutdown, &mut stream).await? {
        intake.take(request)?;
        if intake.taken > SMALL && place.is_none() {
            place = Some(tokio::select! {
                () = shutdown.cancelled() => return Err(errors::stopping()),
                place = Arc::clone(&scheduler.submissions.large).acquire_owned() => place.map_err(|_| errors::stopping())?,
            });
        }
    }
    Ok((intake.finish()?, dry_run, place))
}

async fn next(
    shutdown: &CancellationToken,
    stream: &mut Streaming<v1::SubmitRequest>,
) -> Result<Option<v1::SubmitRequest>, Status> {
    tokio::select! {
        () = shutdown.cancelled() => Err(errors::stopping()),
        message = tokio::time::timeout(NEXT_CHUNK, stream.message()) => message.map_err(|_| errors::stalled())?,
    }
}

/// A submission whose stream is still open.
#[derive(Debug)]
struct Intake {
    submission: Submission,
    /// The client's idempotency key, if it gave one.
    key: Option<String>,
    /// Hashes of the header and the names, and of the positions. The positions have a hash of their
    /// own, because the messages' sizes decide where positions stand among the names.
    names_hash: Sha256,
    positions_hash: Sha256,
    seen: HashSet<SiteName>,
    /// Number of names received so far, including repeated names.
    taken: usize,
}

impl Intake {
    /// Begins a submission with its header. `usual` is the policy that applies where the batch sets
    /// no value of its own.
    fn new(header: v1::SubmitHeader, usual: &CrawlPolicy) -> Result<Self, InvalidField> {
        if header.idempotency_key.len() > MAX_KEY {
            return Err(InvalidField::new("idempotency_key", format!("longer than {MAX_KEY} bytes")));
        }
        Ok(Self {
            // A dry run is the same request, so that it tells what the submission would do.
            names_hash: Sha256::new_with_prefix(v1::SubmitHeader { dry_run: false, ..header.clone() }.encode_to_vec()),
            positions_hash: Sha256::new(),
            submission: Submission {
                batch: naming::batch(&header.batch).map_err(InvalidField::of("batch"))?.to_owned(),
                strategy: strategy(&header.strategy)?,
                policy: header.policy.map(TryInto::try_into).transpose()?.unwrap_or_default(),
                constraints: header.constraints.map(TryInto::try_into).transpose()?.unwrap_or_default(),
                default_policy: usual.clone(),
                idempotency: None,
                sites: Vec::new(),
                positions: Vec::new(),
                duplicates: 0,
            },
            key: Some(header.idempotency_key).filter(|key| !key.is_empty()),
            seen: HashSet::new(),
            taken: 0,
        })
    }

    /// Adds the sites of another message.
    fn take(&mut self, request: v1::SubmitRequest) -> Result<(), InvalidField> {
        let chunk = match request.part {
            Some(v1::submit_request::Part::Chunk(chunk)) => chunk,
            Some(v1::submit_request::Part::Header(_)) => return Err(InvalidField::new("header", "sent twice")),
            None => return Err(InvalidField::new("part", "missing")),
        };
        if chunk.sites.len() > MAX_CHUNK || chunk.positions.len() > chunk.sites.len() {
            return Err(InvalidField::new("sites", format!("more than {MAX_CHUNK} in one message")));
        }
        for listed in chunk.positions {
            let (site, position) = self::position(&chunk.sites, listed)?;
            self.positions_hash.update(format!("{site} {} {}\n", position.latitude(), position.longitude()));
            self.submission.positions.push((site, position));
        }
        for text in chunk.sites {
            if self.taken == MAX_SITES {
                return Err(InvalidField::new("sites", format!("more than {MAX_SITES}: split the submission")));
            }
            let site: SiteName = text.parse().map_err(InvalidField::of(format!("sites[{}]", self.taken)))?;
            self.names_hash.update(format!("{site}\n"));
            self.taken += 1;
            if self.seen.insert(site.clone()) {
                self.submission.sites.push(site);
            } else {
                self.submission.duplicates += 1;
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<Submission, InvalidField> {
        if self.submission.sites.is_empty() {
            return Err(InvalidField::new("sites", "the submission holds none"));
        }
        let request = self.names_hash.chain_update(self.positions_hash.finalize()).finalize().into();
        Ok(Submission { idempotency: self.key.map(|key| Idempotency { key, request }), ..self.submission })
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
fn header(first: Option<v1::SubmitRequest>) -> Result<v1::SubmitHeader, InvalidField> {
    match first.and_then(|request| request.part) {
        Some(v1::submit_request::Part::Header(header)) => Ok(header),
        Some(v1::submit_request::Part::Chunk(_)) | None => Err(InvalidField::new("header", "must come first")),
    }
}

fn strategy(text: &str) -> Result<Option<Strategy>, InvalidField> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(InvalidField::of("strategy"))
}

/// One warning for each of a batch's constraints that no agent meets.
async fn unheard_of(conn: &mut PgConnection, batch: &str) -> Result<Vec<String>, store::Error> {
    let Some(batch) = batches::by_name(conn, batch).await? else { return Ok(Vec::new()) };
    let asked = constraints_of(conn, batch.id).await?;
    if asked == Constraints::default() {
        return Ok(Vec::new());
    }
    let fleet: Vec<AgentTraits> = constraints_and_quotas::traits(conn).await?.into_values().collect();
    Ok(asked.unheard_of(&fleet))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn intake(policy: v1::CrawlPolicy, usual: &CrawlPolicy) -> Result<CrawlPolicy, InvalidField> {
        let header = v1::SubmitHeader { batch: "b".into(), policy: Some(policy), ..v1::SubmitHeader::default() };
        let submission = Intake::new(header, usual)?.submission;
        Ok(submission.policy.or(&submission.default_policy))
    }

    #[test]
    fn a_request_is_known_by_its_header_its_sites_and_their_positions() {
        let request = |strategy: &str, dry_run, latitude, chunks: &[&[&str]]| {
            let header = v1::SubmitHeader {
                batch: "b".into(),
                strategy: strategy.into(),
                idempotency_key: "k".into(),
                dry_run,
                ..v1::SubmitHeader::default()
            };
            let mut intake = Intake::new(header, &CrawlPolicy::default()).expect("a header");
            for sites in chunks {
                let position = |index| v1::ListedPosition { index, latitude, longitude: 116.0 };
                let chunk = v1::SubmitChunk {
                    sites: sites.iter().map(ToString::to_string).collect(),
                    positions: (0..).take(sites.len()).map(position).collect(),
                };
                let part = Some(v1::submit_request::Part::Chunk(chunk));
                intake.take(v1::SubmitRequest { part }).expect("a chunk");
            }
            intake.finish().expect("a submission").idempotency.expect("a key").request
        };
        let first = request("", false, 40.0, &[&["a.cn", "b.cn"]]);
        assert_eq!(first, request("", true, 40.0, &[&["A.cn"], &["b.cn"]]), "neither dry run nor chunks matter");
        assert_ne!(first, request("random", false, 40.0, &[&["a.cn", "b.cn"]]), "another strategy");
        assert_ne!(first, request("", false, 40.0, &[&["a.cn", "c.cn"]]), "another site");
        assert_ne!(first, request("", false, 39.0, &[&["a.cn", "b.cn"]]), "other positions");
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
