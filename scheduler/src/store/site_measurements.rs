//! Measurements of sites: the newest from each prober, whose it really is, and what it cost. Also where sites were seen, and
//! at which addresses they proved to differ.

use std::time::Duration;

use sqlx::PgConnection;

use crate::model::{AgentId, SiteId};

use super::Error;
use super::measurements::{Columns, Finding, MeasurementResult, Report, micros};

/// Stores what a prober reported of a site.
///
/// # Errors
/// When the database fails.
pub(super) async fn upsert(
    conn: &mut PgConnection,
    site: SiteId,
    prober: AgentId,
    report: &Report,
) -> Result<(), Error> {
    let address = report.address.map(|address| address.to_string());
    if address.is_some() {
        sqlx::query!(
            "update sites set address = $2::text::inet where id = $1 and address is distinct from $2::text::inet",
            site.get(),
            address,
        )
        .execute(&mut *conn)
        .await?;
    }
    match &report.finding {
        Finding::Measured { result, agreed } => {
            if *agreed == Some(false) {
                sqlx::query!(
                    r#"
                    insert into unshared_addresses (address) select $1::text::inet where $1 is not null
                    on conflict (address) do update set seen_at = excluded.seen_at
                    "#,
                    address,
                )
                .execute(&mut *conn)
                .await?;
            }
            upsert_result(conn, site, prober, result, None, report).await
        }
        Finding::Shared { measured, from, age } => {
            upsert_result(conn, site, prober, &Ok(measured.clone()), Some((from, *age)), report).await
        }
        Finding::Postponed => count_requests(conn, site, prober, report.requests).await,
    }
}

async fn upsert_result(
    conn: &mut PgConnection,
    site: SiteId,
    prober: AgentId,
    result: &MeasurementResult,
    shared: Option<(&str, Duration)>,
    report: &Report,
) -> Result<(), Error> {
    let columns = Columns::from(result);
    let phases = result.as_ref().ok();
    sqlx::query!(
        r#"
        insert into site_measurements (site_id, prober_id, rtt_us, min_us, median_us, spread_us, answered, lost, failure,
                                       address, dns_us, connect_us, tls_us, shared_from, measured_at, requests)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::text::inet, $11, $12, $13, $14,
                now() - make_interval(secs => $15), $16)
        on conflict (site_id, prober_id) do update
        set rtt_us = excluded.rtt_us, min_us = excluded.min_us, median_us = excluded.median_us,
            spread_us = excluded.spread_us, answered = excluded.answered, lost = excluded.lost,
            failure = excluded.failure, address = excluded.address, dns_us = excluded.dns_us,
            connect_us = excluded.connect_us, tls_us = excluded.tls_us, shared_from = excluded.shared_from,
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
        report.address.map(|address| address.to_string()),
        phases.and_then(|measured| measured.dns).map(micros),
        phases.and_then(|measured| measured.connect).map(micros),
        phases.and_then(|measured| measured.tls).map(micros),
        shared.map(|(from, _)| from),
        shared.map_or(0.0, |(_, age)| age.as_secs_f64()),
        i64::from(report.requests),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Requests of a report that measured nothing count where there is something to count them with.
async fn count_requests(conn: &mut PgConnection, site: SiteId, prober: AgentId, requests: u32) -> Result<(), Error> {
    sqlx::query!(
        "update site_measurements set requests = requests + $3 where site_id = $1 and prober_id = $2",
        site.get(),
        prober.get(),
        i64::from(requests),
    )
    .execute(conn)
    .await?;
    Ok(())
}
