//! Admits the held tasks that have waited longest once their address permits a further crawl.

use sqlx::PgConnection;
use sqlx::types::ipnet::IpNet;

use crate::store::Error;
use crate::store::rows::{Rows, Statement};

use super::room;

/// Maximum number of addresses examined by one pass. This limit bounds the cost of a pass even if
/// tasks wait for a hundred thousand addresses.
const LOOKED_AT: i32 = 500;

/// Admits at most `limit` held tasks whose address permits a further crawl, at up to `LOOKED_AT`
/// addresses after `from`. Returns the number of admitted tasks, and the address after which the
/// next pass continues. `None` means that the next pass starts again at the first address.
pub async fn admit(
    conn: &mut PgConnection,
    cap: u32,
    from: Option<IpNet>,
    limit: i64,
) -> Result<(u64, Option<IpNet>), Error> {
    let waited_for = sqlx::query_scalar!(
        r#"
        with recursive waited_for (address, number) as (
            -- Finds each next address by index, because a million tasks may wait for one address.
            select min(address), 1 from task_holds
            where cause = 'address' and not admitted and ($1::inet is null or address > $1)
            union all
            select (select min(h.address) from task_holds h where h.cause = 'address' and not h.admitted and h.address > w.address),
                   w.number + 1
            from waited_for w where w.address is not null and w.number < $2
        )
        select w.address as "address!: IpNet" from waited_for w where w.address is not null
        "#,
        from as Option<IpNet>,
        LOOKED_AT,
    )
    .all(conn)
    .await?;
    let more = i32::try_from(waited_for.len()).is_ok_and(|count| count == LOOKED_AT);
    let next = waited_for.last().filter(|_| more).copied();
    if waited_for.is_empty() {
        return Ok((0, None));
    }
    let places = room::room(conn, &waited_for, cap).await?.into_iter().map(|(address, room)| (address, room.places));
    let places: Vec<(IpNet, i64)> = places.filter(|(_, places)| *places > 0).collect();
    if places.is_empty() {
        return Ok((0, next));
    }
    Ok((admit_at(conn, &places, limit).await?, next))
}

/// Admits the tasks that have waited longest at each address. `places` gives the number of further
/// crawls that each address permits. Admits at most `limit` tasks in all. An admitted task counts
/// as a crawl at the address until its agent requests a permit. Returns the number of admitted
/// tasks.
async fn admit_at(conn: &mut PgConnection, places: &[(IpNet, i64)], limit: i64) -> Result<u64, Error> {
    let (addresses, places): (Vec<IpNet>, Vec<i64>) = places.iter().copied().unzip();
    sqlx::query!(
        r#"
        with next as (
            select waiting.task_id
            from unnest($1::inet[], $2::bigint[]) as room (address, places)
            cross join lateral (
                select h.task_id from task_holds h
                where h.cause = 'address' and not h.admitted and h.address = room.address
                order by h.since, h.task_id
                limit room.places
            ) waiting
            limit $3
        ), locked as (
            select t.id from tasks t where t.id in (select task_id from next) order by t.id for update skip locked
        ), admitted as (
            update task_holds h set admitted = true from locked where h.task_id = locked.id and h.cause = 'address'
            returning h.task_id
        )
        update tasks t set held = false from admitted where t.id = admitted.task_id
        "#,
        &addresses as _,
        &places,
        limit,
    )
    .affected(conn)
    .await
}
