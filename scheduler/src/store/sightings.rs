//! Sightings: where each prober sees a site, that is, the address its name led the prober to. Orders take their turn there.
//!
//! Invariants: what a prober says moves the turns of its own orders, and those of others only when nothing was known of the
//! site, when it settled the site, or when another prober has said the same; a quarantined agent moves its own alone. So one
//! agent that lies about addresses costs every other prober one order a site that is postponed, and no request.

use std::net::IpAddr;

use sqlx::PgConnection;

use crate::model::{AgentId, SiteId};

use super::Error;
use super::rows::{Rows, Statement};
use super::sites::Site;

/// Where a prober sees a site, as shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighting {
    pub prober: String,
    /// The address that the site's name led it to.
    pub address: String,
    /// How often in a row it was led elsewhere than to the address whose turn its order held.
    pub postponed: u32,
    /// Requests it sent that its measurement does not count yet.
    pub requests: u64,
}

/// What a prober's report says of where a site is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) site: SiteId,
    pub(super) prober: AgentId,
    /// Where its name led to.
    pub(super) address: IpAddr,
    /// Whether the report says where the site settled.
    pub(super) settled: bool,
}

/// Notes where a prober saw a site that it measured; returns the requests it sent before that no measurement counts yet.
pub(super) async fn measured(conn: &mut PgConnection, seen: Seen) -> Result<u64, Error> {
    let former = forget(conn, seen.site, seen.prober).await?;
    move_site(conn, seen).await?;
    keep(conn, seen, 0, 0).await?;
    Ok(former)
}

/// Forgets where a prober saw a site, and returns the requests as [`measured`] does.
pub(super) async fn forget(conn: &mut PgConnection, site: SiteId, prober: AgentId) -> Result<u64, Error> {
    let former = sqlx::query_scalar!(
        "delete from site_sightings where site_id = $1 and prober_id = $2 returning requests",
        site.get(),
        prober.get(),
    )
    .optional(conn)
    .await?;
    Ok(former.map_or(0, u64::from))
}

/// Notes where a prober saw a site that it did not measure. `had_turn`: its order held the turn at an address, so that it
/// should have. Returns how often in a row it should have and did not.
pub(super) async fn postponed(
    conn: &mut PgConnection,
    seen: Seen,
    had_turn: bool,
    requests: u32,
) -> Result<u32, Error> {
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
              select from site_sightings other
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
        insert into site_sightings (site_id, prober_id, address, postponed, requests)
        select id, $2, $3, $4::integer, $5::bigint from sites
        where id = $1 and (address is distinct from $3 or $4::integer > 0 or $5::bigint > 0)
        on conflict (site_id, prober_id) do update
        set address = excluded.address, postponed = site_sightings.postponed + excluded.postponed,
            requests = site_sightings.requests + excluded.requests
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
pub async fn of_site(conn: &mut PgConnection, site: &Site) -> Result<Vec<Sighting>, Error> {
    let sightings = sqlx::query_as!(
        Sighting,
        r#"
        select a.name as prober, host(p.address) as "address!", p.postponed, p.requests
        from site_sightings p join agents a on a.id = p.prober_id
        where p.site_id = any($1)
        order by a.name
        "#,
        &site.ids() as _,
    );
    sightings.all(conn).await
}
