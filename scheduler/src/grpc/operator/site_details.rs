//! Shows what is known about one site: its measurements, place, verdict, addresses and tasks.

use landfall_proto::v1;
use sqlx::PgConnection;
use tonic::Status;

use crate::Scheduler;
use crate::gnp::Placement;
use crate::model::geo::Position;
use crate::model::site_name::SiteName;
use crate::store;
use crate::store::measurements::orders::{self, OpenOrder};
use crate::store::measurements::resolved_addresses::{self, ResolvedAddress};
use crate::store::sites::geographic_positions::{self, Source};
use crate::store::sites::open_circuits;
use crate::store::sites::verdicts::{self, SuspectedSite};
use crate::store::sites::{self, Candidate, Site, SiteMeasurement, SiteTask};
use crate::strategy::explain;

use super::convert::{InvalidField, duration, rtt, timestamp};
use super::named;

pub(super) async fn show(scheduler: &Scheduler, request: v1::ShowSiteRequest) -> Result<v1::ShowSiteResponse, Status> {
    let name = site_name(&request.site)?;
    let mut conn = store::acquire(&scheduler.pool).await?;
    let site = named::site(&mut conn, &name).await?;
    let measurements = sites::measurements(&mut conn, &site).await?;
    let placement = sites::placement(&mut conn, &site).await?;
    let tasks = sites::tasks(&mut conn, &site).await?;
    let verdict = verdicts::of_site(&mut conn, &site).await?;
    let resolved_addresses = resolved_addresses::resolved_addresses(&mut conn, &site).await?;
    let circuit_open = open_circuits::of_site(&mut conn, site.id).await?;
    let position = position_of(&mut conn, &site).await?;
    let awaited = orders::awaited(&mut conn, &site).await?;
    let shown = shown(site, measurements, placement, verdict, tasks);
    Ok(v1::ShowSiteResponse {
        resolved_addresses: resolved_addresses.into_iter().map(Into::into).collect(),
        order: awaited.map(Into::into),
        circuit_open_since: circuit_open.map(timestamp),
        position: position.map(globe_position),
        ..shown
    })
}

pub(super) fn site_name(site: &str) -> Result<SiteName, InvalidField> {
    site.parse().map_err(InvalidField::of("site"))
}

/// The position of a site or, for an alias, of the site to which the alias points.
pub(super) async fn position_of(
    conn: &mut PgConnection,
    site: &Site,
) -> Result<Option<(Position, Source)>, store::Error> {
    let site = site.alias_of.as_ref().map_or(site.id, |(keeper, _)| *keeper);
    Ok(geographic_positions::of_sites(conn, &[site]).await?.remove(&site))
}

pub(in crate::grpc) fn globe_position((position, source): (Position, Source)) -> v1::GlobePosition {
    let (latitude, longitude) = (position.latitude(), position.longitude());
    v1::GlobePosition { latitude, longitude, source: source.name().to_owned() }
}

/// The message with all stored facts about a site.
fn shown(
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
