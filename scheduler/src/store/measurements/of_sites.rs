//! Stores and reads measurements of sites: each prober's newest measurement, the number of its
//! requests and, if the measurement was shared, the site that was measured.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use sqlx::PgConnection;

use crate::gnp::Observation;
use crate::model::{AgentId, Rtt, SiteId};
use crate::store::Error;
use crate::store::rows::{Rows, Statement};
use crate::store::types::{Interval, whole};

use super::measurement_report::{MeasurementReport, ReportContent};
use super::measurement_result::{MeasurementResult, ResultColumns};
use super::resolved_addresses::{
    MOST_POSTPONED, POSTPONED_AGAIN, POSTPONED_NOWHERE, ReportedAddress, forget, not_counted, postponed,
};
use super::sharing::note_disagreement;

/// The round trips to these sites, except those measured by quarantined agents. Sites without round
/// trips are absent.
pub async fn of_sites(
    conn: &mut PgConnection,
    sites: &[SiteId],
) -> Result<HashMap<SiteId, Vec<(AgentId, Rtt)>>, Error> {
    let rows = sqlx::query!(
        r#"
        select site_id, prober_id, rtt_us as "rtt_us!" from site_measurements
        where site_id = any($1) and rtt_us is not null
          and prober_id not in (select q.agent_id from quarantines q where q.released_at is null)
        order by site_id, prober_id
        "#,
        sites as _,
    )
    .all(conn)
    .await?;
    let mut measured: HashMap<SiteId, Vec<(AgentId, Rtt)>> = HashMap::new();
    for row in rows {
        measured.entry(row.site_id).or_default().push((row.prober_id, row.rtt_us));
    }
    Ok(measured)
}

/// Stores a prober's report about a site. `had_lock` says whether the prober's order locked an
/// address.
pub(in crate::store) async fn upsert(
    conn: &mut PgConnection,
    site: SiteId,
    prober: AgentId,
    had_lock: bool,
    report: &MeasurementReport,
) -> Result<(), Error> {
    let settled = report.origin.is_some();
    let seen = report.address.map(|address| ReportedAddress { site, prober, address, settled });
    match &report.finding {
        ReportContent::Measured { result, agreed } => {
            if let (Some(false), Some(address)) = (agreed, report.address) {
                note_disagreement(conn, address, prober).await?;
            }
            let requests = not_counted(conn, site, prober, seen).await? + u64::from(report.requests);
            upsert_result(conn, site, prober, result, None, report.address, requests).await
        }
        ReportContent::Shared { measured, from, age } => {
            let requests = not_counted(conn, site, prober, seen).await? + u64::from(report.requests);
            let shared = Some((from.as_str(), *age));
            upsert_result(conn, site, prober, &Ok(measured.clone()), shared, report.address, requests).await
        }
        ReportContent::Postponed => {
            let failure = match seen {
                None => POSTPONED_NOWHERE,
                Some(seen) => {
                    if postponed(conn, seen, had_lock, report.requests).await? < MOST_POSTPONED {
                        return Ok(());
                    }
                    POSTPONED_AGAIN
                }
            };
            let requests = forget(conn, site, prober).await?;
            upsert_result(conn, site, prober, &Err(failure.into()), None, report.address, requests).await
        }
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
    let columns = ResultColumns::from(result);
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

/// The round trips and addresses of these sites, as measured by all trusted probers. Sites without
/// measurements are absent.
pub async fn observations(
    conn: &mut PgConnection,
    sites: &[SiteId],
) -> Result<HashMap<SiteId, Vec<Observation>>, Error> {
    let rows = sqlx::query!(
        r#"
        select site_id, prober_id, rtt_us as "rtt_us!", address from site_measurements
        where site_id = any($1) and rtt_us is not null
          and prober_id not in (select q.agent_id from quarantines q where q.released_at is null)
        order by site_id, prober_id
        "#,
        sites as _,
    )
    .all(conn)
    .await?;
    let mut observations: HashMap<SiteId, Vec<Observation>> = HashMap::new();
    for row in rows {
        observations.entry(row.site_id).or_default().push(Observation {
            landmark: row.prober_id,
            rtt: row.rtt_us,
            address: row.address,
        });
    }
    Ok(observations)
}
