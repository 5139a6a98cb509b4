//! Measurements of sites: the newest from each prober, whose it really is, and what it cost.

use std::net::IpAddr;
use std::time::Duration;

use sqlx::PgConnection;

use crate::model::{AgentId, SiteId};

use super::measurements::{Columns, Finding, MeasurementResult, Report};
use super::rows::Statement;
use super::sightings::Seen;
use super::types::{Interval, whole};
use super::{Error, disagreements, sightings};

/// After so many orders in a row that were postponed although they held a turn, that is a failure to measure. A name needs one
/// for every address it goes through: where others see it, where this prober does, where it settles.
const MOST_POSTPONED: u32 = 5;
/// What a site's measurement says then.
const POSTPONED_AGAIN: &str = "the name leads to another address each time";
/// What a site's measurement says when a prober postponed it and did not say where it stands.
const POSTPONED_NOWHERE: &str = "postponed by the prober, without an address";

/// Stores what a prober reported of a site. `had_turn`: its order held the turn at an address.
pub(super) async fn upsert(
    conn: &mut PgConnection,
    site: SiteId,
    prober: AgentId,
    had_turn: bool,
    report: &Report,
) -> Result<(), Error> {
    let settled = report.origin.is_some();
    let seen = report.address.map(|address| Seen { site, prober, address, settled });
    match &report.finding {
        Finding::Measured { result, agreed } => {
            if let (Some(false), Some(address)) = (agreed, report.address) {
                disagreements::note(conn, address, prober).await?;
            }
            let requests = not_counted(conn, site, prober, seen).await? + u64::from(report.requests);
            upsert_result(conn, site, prober, result, None, report.address, requests).await
        }
        Finding::Shared { measured, from, age } => {
            let requests = not_counted(conn, site, prober, seen).await? + u64::from(report.requests);
            let shared = Some((from.as_str(), *age));
            upsert_result(conn, site, prober, &Ok(measured.clone()), shared, report.address, requests).await
        }
        Finding::Postponed => {
            let failure = match seen {
                None => POSTPONED_NOWHERE,
                Some(seen) => {
                    if sightings::postponed(conn, seen, had_turn, report.requests).await? < MOST_POSTPONED {
                        return Ok(());
                    }
                    POSTPONED_AGAIN
                }
            };
            let requests = sightings::forget(conn, site, prober).await?;
            upsert_result(conn, site, prober, &Err(failure.into()), None, report.address, requests).await
        }
    }
}

/// Notes where a site was seen that was measured or failed; returns the requests of reports that measured nothing.
async fn not_counted(conn: &mut PgConnection, site: SiteId, prober: AgentId, seen: Option<Seen>) -> Result<u64, Error> {
    match seen {
        Some(seen) => sightings::measured(conn, seen).await,
        None => sightings::forget(conn, site, prober).await,
    }
}

async fn upsert_result(
    conn: &mut PgConnection,
    site: SiteId,
    prober: AgentId,
    result: &MeasurementResult,
    shared: Option<(&str, Duration)>,
    address: Option<IpAddr>,
    requests: u64,
) -> Result<(), Error> {
    let columns = Columns::from(result);
    sqlx::query!(
        r#"
        insert into site_measurements (site_id, prober_id, rtt_us, min_us, median_us, spread_us, answered, lost, failure,
                                       address, shared_from, measured_at, requests)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, now() - $12::interval, $13)
        on conflict (site_id, prober_id) do update
        set rtt_us = excluded.rtt_us, min_us = excluded.min_us, median_us = excluded.median_us,
            spread_us = excluded.spread_us, answered = excluded.answered, lost = excluded.lost,
            failure = excluded.failure, address = excluded.address, shared_from = excluded.shared_from,
            measured_at = excluded.measured_at, requests = site_measurements.requests + excluded.requests
        "#,
        site.get(),
        prober.get(),
        columns.rtt,
        columns.min,
        columns.median,
        columns.spread,
        columns.answered,
        columns.lost,
        columns.failure,
        address,
        shared.map(|(from, _)| from),
        Interval(shared.map_or(Duration::ZERO, |(_, age)| age)),
        whole::<i64, _>(requests),
    )
    .run(conn)
    .await
}
