//! Finds the sites that need a prober, and orders their measurements.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use sqlx::PgConnection;

use crate::model::{AgentId, SiteId};
use crate::store::Error;
use crate::store::rows::Rows;
use crate::store::types::Interval;

/// A site that needs a prober, and the probers that have not measured it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueSite {
    pub site: SiteId,
    /// The probers that may be asked now, in the order of their identifiers; at least one.
    pub probers: Vec<AvailableProber>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AvailableProber {
    pub prober: AgentId,
    /// The address to which the site's name will probably resolve at the prober; `None` if it is
    /// unknown. No order is open for this address.
    pub address: Option<IpAddr>,
}

impl AvailableProber {
    /// Combines two parallel arrays of a query into a list.
    pub(in crate::store) fn listed(probers: Vec<AgentId>, addresses: Vec<Option<IpAddr>>) -> Vec<Self> {
        probers.into_iter().zip(addresses).map(|(prober, address)| Self { prober, address }).collect()
    }
}

/// Number of open site orders of each of these probers.
pub async fn open_site_orders(conn: &mut PgConnection, probers: &[AgentId]) -> Result<HashMap<AgentId, u32>, Error> {
    let rows = sqlx::query!(
        r#"
        select prober_id, count(*) as "open!" from measurement_orders
        where prober_id = any($1) and site_id is not null
        group by prober_id
        "#,
        probers as _,
    )
    .all(conn)
    .await?;
    let mut open: HashMap<AgentId, u32> = probers.iter().map(|prober| (*prober, 0)).collect();
    open.extend(rows.into_iter().map(|row| (row.prober_id, u32::try_from(row.open).unwrap_or(u32::MAX))));
    Ok(open)
}

/// At most `limit` sites that have tasks in the state `measuring` and no open order, and that at
/// least one of these probers has not measured. The oldest site comes first.
///
/// A round trip counts as measured if it was at most `max_age` old when the site's first task in
/// the state `measuring` began to wait, and if it was measured after the site was last marked as
/// doubtful. A failure counts only if it came after this first task began to wait. A prober gets no
/// order for the site while an order is open for the address to which the site's name probably
/// resolves at this prober.
pub async fn due_sites(
    conn: &mut PgConnection,
    probers: &[AgentId],
    max_age: Duration,
    limit: i64,
) -> Result<Vec<DueSite>, Error> {
    let rows = sqlx::query!(
        r#"
        select waiting.site_id, missing.probers as "probers!: Vec<AgentId>", missing.addresses as "addresses!: Vec<Option<IpAddr>>"
        from (select site_id, min(state_since) as since from tasks where state = 'measuring' group by site_id) waiting
        join sites on sites.id = waiting.site_id and sites.alias_of is null
        -- Looks up each site by primary key, because the table contains every site ever measured.
        cross join lateral (
            select array_agg(prober.id order by prober.id) as probers,
                   array_agg(coalesce(seen.address, sites.address) order by prober.id) as addresses
            from unnest($1::bigint[]) as prober (id)
            left join resolved_addresses seen on seen.site_id = waiting.site_id and seen.prober_id = prober.id
            where prober.id <> all (array(
                select known.prober_id from site_measurements known
                where known.site_id = waiting.site_id
                  and known.measured_at >= case when known.rtt_us is null then waiting.since
                                                else greatest(waiting.since - $2::interval, sites.doubted_at) end
            ))
              and not exists (
                  select from measurement_orders open where open.address = coalesce(seen.address, sites.address)
              )
        ) missing
        where missing.probers is not null
          and not exists (select from measurement_orders open where open.site_id = waiting.site_id)
        order by waiting.site_id
        limit $3
        "#,
        probers as _,
        Interval(max_age),
        limit,
    )
    .all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| DueSite { site: row.site_id, probers: AvailableProber::listed(row.probers, row.addresses) })
        .collect())
}

/// Orders measurements of these sites. A site gets no order if an order for the site or its address
/// is already open. Returns the probers that got orders.
pub async fn order_sites(
    conn: &mut PgConnection,
    orders: &[(SiteId, AgentId)],
    lifetime: Duration,
) -> Result<Vec<AgentId>, Error> {
    let sites: Vec<i64> = orders.iter().map(|(site, _)| site.get()).collect();
    let probers: Vec<i64> = orders.iter().map(|(_, prober)| prober.get()).collect();
    sqlx::query_scalar!(
        r#"
        insert into measurement_orders (prober_id, site_id, address, expires_at)
        select prober_id, site_id, coalesce(seen.address, sites.address) as locked, now() + $3::interval
        from unnest($1::bigint[], $2::bigint[]) as ordered (site_id, prober_id)
        join sites on sites.id = ordered.site_id
        left join resolved_addresses seen using (site_id, prober_id)
        -- Concurrent passes insert orders in the same order, so that they do not deadlock.
        order by locked, site_id
        on conflict do nothing
        returning prober_id
        "#,
        &sites,
        &probers,
        Interval(lifetime),
    )
    .all(conn)
    .await
}
