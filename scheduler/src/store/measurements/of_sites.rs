//! Measurements of sites: the newest of each prober, whose it really is, and what it cost. With them resolved_addresses: where each prober sees a
//! site, that is, the address its name led the prober to, where orders take their turn; and disagreements: addresses whose sites an agent
//! found to differ although it would have shared a measurement between them.
//!
//! Invariants: what a prober says moves the turns of its own orders, and those of others only when nothing was known of the
//! site, when it settled the site, or when another prober has said the same; a quarantined agent moves its own alone. So one
//! agent that lies about addresses costs every other prober one order a site that is postponed, and no request.
//!
//! For `NOT_SHARED_FOR` an agent that found the sites of an address to differ shares nothing there, and nobody does once `ENOUGH` agents that
//! are not quarantined say so. So an agent that lies or is slow costs the sites what it would cost them without sharing, and makes nobody
//! else cost more; two that lie end the sharing at the addresses they name.

use std::net::IpAddr;
use std::time::Duration;

use sqlx::PgConnection;

use crate::model::{AgentId, SiteId};

use super::{Columns, Finding, MeasurementResult, Report};
use crate::store::Error;
use crate::store::rows::{Rows, Statement};
use crate::store::sites::Site;
use crate::store::types::{Interval, whole};

/// After so many orders in a row that were postponed although they held a turn, that is a failure to measure. A name needs one
/// for every address it goes through: where others see it, where this prober does, where it settles.
const MOST_POSTPONED: u32 = 5;
/// What a site's measurement says then.
const POSTPONED_AGAIN: &str = "the name leads to another address each time";
/// What a site's measurement says when a prober postponed it and did not say where it stands.
const POSTPONED_NOWHERE: &str = "postponed by the prober, without an address";

/// Stores what a prober reported of a site. `had_turn`: its order held the turn at an address.
pub(in crate::store) async fn upsert(
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
                note_disagreement(conn, address, prober).await?;
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
                    if postponed(conn, seen, had_turn, report.requests).await? < MOST_POSTPONED {
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

/// Notes where a site was seen that was measured or failed; returns the requests of reports that measured nothing.
async fn not_counted(conn: &mut PgConnection, site: SiteId, prober: AgentId, seen: Option<Seen>) -> Result<u64, Error> {
    match seen {
        Some(seen) => measured(conn, seen).await,
        None => forget(conn, site, prober).await,
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

/// Where a prober sees a site, as shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    pub prober: String,
    pub address: String,
    /// How often in a row it was led elsewhere than to the address whose turn its order held.
    pub postponed: u32,
    /// Requests it sent that its measurement does not count yet.
    pub requests: u64,
}

/// What a prober's report says of where a site is.
#[derive(Debug, Clone, Copy)]
struct Seen {
    site: SiteId,
    prober: AgentId,
    /// Where its name led to.
    address: IpAddr,
    /// Whether the report says where the site settled.
    settled: bool,
}

/// Notes where a prober saw a site that it measured; returns the requests it sent before that no measurement counts yet.
async fn measured(conn: &mut PgConnection, seen: Seen) -> Result<u64, Error> {
    let former = forget(conn, seen.site, seen.prober).await?;
    move_site(conn, seen).await?;
    keep(conn, seen, 0, 0).await?;
    Ok(former)
}

/// Forgets where a prober saw a site, and returns the requests as [`measured`] does.
async fn forget(conn: &mut PgConnection, site: SiteId, prober: AgentId) -> Result<u64, Error> {
    let former = sqlx::query_scalar!(
        "delete from resolved_addresses where site_id = $1 and prober_id = $2 returning requests",
        site.get(),
        prober.get(),
    )
    .optional(conn)
    .await?;
    Ok(former.map_or(0, u64::from))
}

/// Notes where a prober saw a site that it did not measure. `had_turn`: its order held the turn at an address, so that it
/// should have. Returns how often in a row it should have and did not.
async fn postponed(conn: &mut PgConnection, seen: Seen, had_turn: bool, requests: u32) -> Result<u32, Error> {
    move_site(conn, seen).await?;
    keep(conn, seen, i32::from(had_turn), requests).await
}

/// Moves the site's address to where it was seen, if that may be.
async fn move_site(conn: &mut PgConnection, seen: Seen) -> Result<(), Error> {
    sqlx::query!(
        r#"
        update sites set address = $3
        where id = $1 and address is distinct from $3
          and $2 not in (select q.agent_id from quarantines q where q.released_at is null)
          and (address is null or (origin is null and $4) or exists (
              select from resolved_addresses other
              where other.site_id = $1 and other.prober_id <> $2 and other.address = $3
                and other.prober_id not in (select q.agent_id from quarantines q where q.released_at is null)
          ))
        "#,
        seen.site.get(),
        seen.prober.get(),
        seen.address,
        seen.settled,
    )
    .run(conn)
    .await
}

/// Keeps what the site's own address does not say.
async fn keep(conn: &mut PgConnection, seen: Seen, postponed: i32, requests: u32) -> Result<u32, Error> {
    let postponed = sqlx::query_scalar!(
        r#"
        insert into resolved_addresses (site_id, prober_id, address, postponed, requests)
        select id, $2, $3, $4::integer, $5::bigint from sites
        where id = $1 and (address is distinct from $3 or $4::integer > 0 or $5::bigint > 0)
        on conflict (site_id, prober_id) do update
        set address = excluded.address, postponed = resolved_addresses.postponed + excluded.postponed,
            requests = resolved_addresses.requests + excluded.requests
        returning postponed
        "#,
        seen.site.get(),
        seen.prober.get(),
        seen.address,
        postponed,
        i64::from(requests),
    )
    .optional(conn)
    .await?;
    Ok(postponed.map_or(0, u32::from))
}

/// Where probers see a site of whom the site's own address does not say it, or who postponed it; by name.
pub async fn resolved_addresses(conn: &mut PgConnection, site: &Site) -> Result<Vec<Observation>, Error> {
    let resolved_addresses = sqlx::query_as!(
        Observation,
        r#"
        select a.name as prober, host(p.address) as "address!", p.postponed, p.requests
        from resolved_addresses p join agents a on a.id = p.prober_id
        where p.site_id = any($1)
        order by a.name
        "#,
        &site.ids() as _,
    );
    resolved_addresses.all(conn).await
}

/// So long the sites of an address that differ are measured one by one. Longer than any agent remembers what it measured.
pub(in crate::store) const NOT_SHARED_FOR: Duration = Duration::from_secs(24 * 3600);
/// Agents that must say so for it to hold for all: one may be wrong for a reason of its own.
pub(in crate::store) const ENOUGH: i64 = 2;

/// Notes that an agent found the sites at an address to differ.
async fn note_disagreement(conn: &mut PgConnection, address: IpAddr, prober: AgentId) -> Result<(), Error> {
    sqlx::query!(
        r#"
        insert into address_disagreements (address, prober_id) values ($1, $2)
        on conflict (address, prober_id) do update set seen_at = excluded.seen_at
        "#,
        address,
        prober.get(),
    )
    .run(conn)
    .await
}

/// Forgets what is too old to count.
pub async fn prune_disagreements(conn: &mut PgConnection) -> Result<(), Error> {
    sqlx::query!("delete from address_disagreements where seen_at <= now() - $1::interval", Interval(NOT_SHARED_FOR),)
        .run(conn)
        .await
}
