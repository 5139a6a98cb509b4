//! Counts how many further crawls an address permits, and whether tasks wait for it.

use std::collections::HashMap;

use sqlx::PgConnection;
use sqlx::types::ipnet::IpNet;

use crate::model::quota_and_address_budget::{most_counted, permitted_crawls};
use crate::store::Error;
use crate::store::rows::Rows;
use crate::store::types::Unsigned;

/// The number of further crawls that an address permits, and facts that decide whether a task is
/// held.
#[derive(Debug)]
pub(super) struct AddressRoom {
    /// Number of crawls that the address permits beyond its active crawls and admitted tasks.
    pub(super) places: i64,
    /// Whether the address has no active crawl, no admitted task, and at most one known site.
    pub(super) alone: bool,
    /// Whether tasks are held until the address permits a further crawl.
    pub(super) waited_for: bool,
}

pub(super) async fn room(
    conn: &mut PgConnection,
    addresses: &[IpNet],
    cap: u32,
) -> Result<HashMap<IpNet, AddressRoom>, Error> {
    let rows = sqlx::query!(
        r#"
        select a.address as "address!: IpNet",
               (select count(*) from (
                    select from sites s where s.crawled_address = a.address limit $2
               ) there) as "sites!: Unsigned<u32>",
               (select count(*) from leases l where l.state = 'active' and l.address = a.address)
               -- Admitted tasks, whose agents have not requested a permit yet.
               + (select count(*) from task_holds h
                  where h.cause = 'address' and h.admitted and h.address = a.address) as "taken!",
               exists (
                   select from task_holds h where h.cause = 'address' and not h.admitted and h.address = a.address
               ) as "waited_for!"
        from unnest($1::inet[]) as a (address)
        "#,
        addresses as _,
        // Sites are counted up to this limit, at least up to two, because a count of two shows that
        // a site is not alone at its address.
        most_counted(cap).max(2),
    )
    .all(conn)
    .await?;
    let rooms = rows.into_iter().map(|row| {
        let borne = i64::from(permitted_crawls(row.sites.0, cap));
        let room = AddressRoom {
            places: borne - row.taken,
            alone: row.sites.0 <= 1 && row.taken == 0,
            waited_for: row.waited_for,
        };
        (row.address, room)
    });
    Ok(rooms.collect())
}
