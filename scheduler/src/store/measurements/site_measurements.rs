//! Measurements of sites: stores accepted reports (a report without an open order is ignored) and
//! each prober's newest measurement, the addresses to which probers resolved a site's name, and
//! which agents share one measurement between the sites at an address.
//!
//! The table `resolved_addresses` stores the address to which a site's name resolved at a prober.
//! Invariants: a prober's next order for a site locks the address in this prober's last report. The
//! other probers' next orders lock this address only in three cases: the site's address was
//! unknown, the site's origin was unknown and the report contains it, or another prober reported
//! the same address. A quarantined agent's report never changes the address that other probers'
//! orders lock. Under these rules, an agent that lies about addresses causes only one postponed
//! order per site at every other prober, and no request.
//!
//! The table `address_disagreements` stores the addresses at which an agent measured two sites and
//! found different round trips, although it could have shared one measurement.
//!
//! An agent that found different round trips for sites at one address shares no measurement at that
//! address for `NOT_SHARED_FOR`. If `ENOUGH` agents that are not quarantined report a difference,
//! no agent shares measurements at that address. So one lying or slow agent can end only its own
//! sharing, and other agents still share. Two lying agents can end all sharing, but only at the
//! addresses that they report.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use sqlx::PgConnection;

use crate::gnp::Observation;
use crate::model::{AgentId, OrderId, Rtt, SiteId};
use crate::store::measurements::mesh::upsert_beacon;
use crate::store::measurements::results_and_failures::{
    MeasurementReport, MeasurementResult, ReportContent, ResultColumns,
};
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::sites::{Site, names_and_origins};
use crate::store::types::{Interval, whole};
use crate::store::{Error, Tx};

/// The round trips to these sites, except those measured by quarantined agents. Sites without round
/// trips are absent.
pub async fn of_sites(
    conn: &mut PgConnection,
    sites: &[SiteId],
) -> Result<HashMap<SiteId, Vec<(AgentId, Rtt)>>, Error> {
    let observations = observations(conn, sites).await?.into_iter();
    Ok(observations.map(|(site, seen)| (site, seen.iter().map(|one| (one.landmark, one.rtt)).collect())).collect())
}

/// Stores a prober's report about a site. `had_lock` says whether the prober's order locked an
/// address.
async fn upsert(
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
                    move_site(conn, seen).await?;
                    if keep(conn, seen, i32::from(had_lock), report.requests).await? < MOST_POSTPONED {
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportTarget {
    /// The measured site or, if the reported origin shows that this site is an alias, the site to
    /// which the alias points.
    Site(SiteId),
    Beacon(AgentId),
    /// The agent has no open order with the reported identifier: the report is late, repeated, or
    /// about another agent's order. The report changed nothing.
    Unknown,
}

/// Stores the answer to a measurement order, and ends the order. If the target is a site, also
/// stores the origin that the prober observed.
pub async fn record(
    tx: &mut Tx<'_>,
    agent: AgentId,
    order: OrderId,
    report: &MeasurementReport,
) -> Result<ReportTarget, Error> {
    // Only an order of this agent may lock the origin that its report names.
    let open = sqlx::query_scalar!(
        r#"select exists (select from measurement_orders where id = $1 and prober_id = $2) as "open!""#,
        order.get(),
        agent.get(),
    );
    if !open.one(tx).await? {
        return Ok(ReportTarget::Unknown);
    }
    // The origin and the site are locked before the order, as by a crawl that settles the site.
    if let Some(origin) = report.origin.as_deref().and_then(|origin| origin.parse().ok()) {
        names_and_origins::lock(tx, &origin).await?;
    }
    sqlx::query!(
        "select from sites s join measurement_orders o on o.site_id = s.id
         where o.id = $1 and o.prober_id = $2
         for no key update of s",
        order.get(),
        agent.get(),
    )
    .run(tx)
    .await?;
    let answered = sqlx::query!(
        "delete from measurement_orders where id = $1 and prober_id = $2
         returning site_id, agent_id, address is not null as \"had_turn!\"",
        order.get(),
        agent.get(),
    )
    .optional(tx)
    .await?;
    let had_turn = answered.as_ref().is_some_and(|row| row.had_turn);
    let target = answered.map(|row| (row.site_id, row.agent_id));
    let recorded = match target {
        Some((Some(site), _)) => {
            upsert(tx, site, agent, had_turn, report).await?;
            let site = match &report.origin {
                Some(origin) => names_and_origins::settle(tx, site, origin).await?,
                None => site,
            };
            ReportTarget::Site(site)
        }
        Some((None, Some(target))) => {
            if let ReportContent::Measured { result, .. } = &report.finding {
                upsert_beacon(tx, agent, target, result).await?;
            }
            ReportTarget::Beacon(target)
        }
        Some((None, None)) | None => ReportTarget::Unknown,
    };
    Ok(recorded)
}

/// After this many consecutive postponed orders that locked an address, a failed measurement is
/// stored. A site may need one order for each of three addresses: the address that other probers
/// see, the address that this prober sees, and the address of the site's origin.
const MOST_POSTPONED: u32 = 5;
/// The failure stored after [`MOST_POSTPONED`] postponed orders.
const POSTPONED_AGAIN: &str = "the name resolves to a different address each time";
/// The failure stored when a prober postponed an order and gave no address.
const POSTPONED_NOWHERE: &str = "postponed by the prober, which gave no address";

/// Stores the address of a site that was measured, successfully or not. Returns the number of
/// earlier requests that no stored measurement includes yet.
async fn not_counted(
    conn: &mut PgConnection,
    site: SiteId,
    prober: AgentId,
    seen: Option<ReportedAddress>,
) -> Result<u64, Error> {
    let former = forget(conn, site, prober).await?;
    if let Some(seen) = seen {
        move_site(conn, seen).await?;
        keep(conn, seen, 0, 0).await?;
    }
    Ok(former)
}

/// The address to which a site's name resolves at a prober, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedAddress {
    pub prober: String,
    pub address: String,
    /// Number of consecutive orders that did not lock the address to which the name resolved.
    pub postponed: u32,
    /// Number of requests sent that are not included in a stored measurement yet.
    pub requests: u64,
}

/// The address in a prober's report.
#[derive(Debug, Clone, Copy)]
struct ReportedAddress {
    site: SiteId,
    prober: AgentId,
    address: IpAddr,
    /// Whether the report contains the site's origin.
    settled: bool,
}

/// Deletes the stored address of a site for a prober. Returns the number of the prober's requests
/// that no stored measurement includes yet.
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

/// Replaces the site's address with the reported one, if the invariants of this module allow it.
async fn move_site(conn: &mut PgConnection, seen: ReportedAddress) -> Result<(), Error> {
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

/// Stores a reported address, with the numbers of postponed orders and of requests. Stores no new
/// row if the address equals the site's stored address and both numbers are 0. Returns the number
/// of consecutive orders that locked an address but led to no measurement.
async fn keep(conn: &mut PgConnection, seen: ReportedAddress, postponed: i32, requests: u32) -> Result<u32, Error> {
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

/// The probers for which the site's name resolves to an address other than the stored one, or that
/// postponed an order for the site. Sorted by name.
pub async fn resolved_addresses(conn: &mut PgConnection, site: &Site) -> Result<Vec<ResolvedAddress>, Error> {
    let resolved_addresses = sqlx::query_as!(
        ResolvedAddress,
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

/// Time for which the sites at an address are measured one by one after a disagreement. It is
/// longer than the time for which agents remember their measurements.
pub(in crate::store) const NOT_SHARED_FOR: Duration = Duration::from_secs(24 * 3600);
/// Number of agents that must report a disagreement before all agents stop sharing. One agent is
/// not enough, because it may err for a local reason.
pub(in crate::store) const ENOUGH: i64 = 2;

/// Stores that an agent found different round trips for sites at one address.
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

/// Deletes disagreements that are too old to be considered.
pub async fn prune_disagreements(conn: &mut PgConnection) -> Result<(), Error> {
    sqlx::query!("delete from address_disagreements where seen_at <= now() - $1::interval", Interval(NOT_SHARED_FOR),)
        .run(conn)
        .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::fixtures::{self, Conn};
    use crate::store::measurements::results_and_failures::Measured;

    fn measured() -> MeasurementResult {
        let rtt = Rtt::try_from_micros(12_345).expect("a round trip");
        Ok(Measured { rtt, min: rtt, median: rtt, spread: Duration::from_micros(7), answered: 5, lost: 1 })
    }

    fn report(result: MeasurementResult, origin: Option<&str>, address: Option<IpAddr>) -> MeasurementReport {
        MeasurementReport { origin: origin.map(str::to_owned), address, ..result.into() }
    }

    async fn order(conn: &mut PgConnection, prober: AgentId, site: SiteId) -> OrderId {
        let id: i64 = sqlx::query_scalar(
            "insert into measurement_orders (prober_id, site_id, expires_at) values ($1, $2, now() + interval '1 hour')
             returning id",
        )
        .bind(prober.get())
        .bind(site.get())
        .fetch_one(conn)
        .await
        .expect("insert an order");
        OrderId::new(id)
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_report_counts_once_and_only_for_whom_it_was_ordered_from(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let (ours, other) = (fixtures::agent(&mut conn, "a").await, fixtures::agent(&mut conn, "b").await);
        let site = fixtures::site(&mut conn, "a.cn").await;
        let order = order(&mut conn, ours, site).await;
        let address: IpAddr = "2001:db8::1".parse().expect("an address");

        let stolen =
            record(&mut conn, other, order, &report(measured(), Some("https://evil:443"), None)).await.expect("record");
        assert_eq!(stolen, ReportTarget::Unknown);
        assert!(of_sites(&mut conn, &[site]).await.expect("read").is_empty());

        let first = report(measured(), Some("https://a.cn"), Some(address));
        let first = record(&mut conn, ours, order, &first).await.expect("record");
        assert_eq!(first, ReportTarget::Site(site));
        let known = of_sites(&mut conn, &[site]).await.expect("read");
        assert_eq!(known[&site], [(ours, Rtt::try_from_micros(12_345).expect("a round trip"))]);

        let repeat = record(&mut conn, ours, order, &Err("late".into()).into()).await.expect("record");
        assert_eq!(repeat, ReportTarget::Unknown, "the order was answered");
        assert_eq!(of_sites(&mut conn, &[site]).await.expect("read"), known);
        let stored: (String, String) =
            sqlx::query_as("select origin, host(site_measurements.address) from sites, site_measurements")
                .fetch_one(&mut *conn)
                .await
                .expect("read");
        assert_eq!(stored, ("https://a.cn".into(), "2001:db8::1".into()));
    }
}
