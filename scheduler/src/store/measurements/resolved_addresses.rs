//! The address to which a site's name resolved at a prober (`resolved_addresses`). The prober's
//! next order locks this address.
//!
//! Invariants: a prober's next order for a site locks the address in this prober's last report. The
//! other probers' next orders lock this address only in three cases: the site's address was
//! unknown, the site's origin was unknown and the report contains it, or another prober reported
//! the same address. A quarantined agent's report never changes the address that other probers'
//! orders lock. Under these rules, an agent that lies about addresses causes only one postponed
//! order per site at every other prober, and no request.

use std::net::IpAddr;

use sqlx::PgConnection;

use crate::model::{AgentId, SiteId};
use crate::store::Error;
use crate::store::rows::{Rows, Statement};
use crate::store::sites::Site;

/// After this many consecutive postponed orders that locked an address, a failed measurement is
/// stored. A site may need one order for each of three addresses: the address that other probers
/// see, the address that this prober sees, and the address of the site's origin.
pub(super) const MOST_POSTPONED: u32 = 5;
/// The failure stored after [`MOST_POSTPONED`] postponed orders.
pub(super) const POSTPONED_AGAIN: &str = "the name resolves to a different address each time";
/// The failure stored when a prober postponed an order and gave no address.
pub(super) const POSTPONED_NOWHERE: &str = "postponed by the prober, which gave no address";

/// Stores the address of a site that was measured, successfully or not. Returns the number of
/// earlier requests that no stored measurement includes yet.
pub(super) async fn not_counted(
    conn: &mut PgConnection,
    site: SiteId,
    prober: AgentId,
    seen: Option<ReportedAddress>,
) -> Result<u64, Error> {
    match seen {
        Some(seen) => measured(conn, seen).await,
        None => forget(conn, site, prober).await,
    }
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
pub(super) struct ReportedAddress {
    pub(super) site: SiteId,
    pub(super) prober: AgentId,
    pub(super) address: IpAddr,
    /// Whether the report contains the site's origin.
    pub(super) settled: bool,
}

/// Stores the address of a site that a prober measured. Returns the number of the prober's earlier
/// requests that no stored measurement includes yet.
async fn measured(conn: &mut PgConnection, seen: ReportedAddress) -> Result<u64, Error> {
    let former = forget(conn, seen.site, seen.prober).await?;
    move_site(conn, seen).await?;
    keep(conn, seen, 0, 0).await?;
    Ok(former)
}

/// Deletes the stored address of a site for a prober. Returns the number of the prober's requests
/// that no stored measurement includes yet.
pub(super) async fn forget(conn: &mut PgConnection, site: SiteId, prober: AgentId) -> Result<u64, Error> {
    let former = sqlx::query_scalar!(
        "delete from resolved_addresses where site_id = $1 and prober_id = $2 returning requests",
        site.get(),
        prober.get(),
    )
    .optional(conn)
    .await?;
    Ok(former.map_or(0, u64::from))
}

/// Stores the address of a site that a prober did not measure. `had_lock` says whether the prober's
/// order locked an address. Returns the number of consecutive orders that locked an address but led
/// to no measurement.
pub(super) async fn postponed(
    conn: &mut PgConnection,
    seen: ReportedAddress,
    had_lock: bool,
    requests: u32,
) -> Result<u32, Error> {
    move_site(conn, seen).await?;
    keep(conn, seen, i32::from(had_lock), requests).await
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
/// row if the address equals the site's stored address and both numbers are 0.
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
