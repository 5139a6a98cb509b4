//! Addresses: how many crawls each address permits, which crawls use it, and which held task is
//! admitted next.
//!
//! An agent requests a permit for the address of a leased site before it sends any request there.
//! The number of active leases with a permit for one address is limited, counted over all agents.
//! The limit grows with the number of known sites at the address, up to a cap
//! (`model::quota_and_address_budget`). Each crawl limits its own request rate, so the rate at an address is
//! at most this limit times the rate of one crawl. If an address is already at its limit, a further
//! lease gets no permit and ends, and its task is held (`crate::store::tasks::holds`). When a crawl
//! at the address ends, the task that has been held longest is admitted. If an earlier crawl found
//! the site's address, the address is also checked before an agent is chosen ([`hold`]).
//!
//! Invariant: the number of active crawls at an address plus the number of tasks admitted to it
//! never exceeds the permitted number.
//!
//! The address is checked when an agent is chosen, not when a lease is granted. Without this check
//! the lease would end as soon as the agent requests a permit. Grants run more often than any other
//! transaction, and each grant would have to check again all tasks that earlier grants skipped. If
//! an earlier crawl found the site's address, an agent is chosen for the task only if this address
//! permits a further crawl. The task is then *admitted*: it counts as a crawl at the address until
//! its agent requests a permit. Tasks released from a hold are admitted in the same way. So no task
//! overtakes waiting tasks, and an admitted task finds room at its address. The task's agent still
//! has to request a permit, because the site's address may have changed.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use sqlx::PgConnection;
use sqlx::types::ipnet::IpNet;

use crate::model::quota_and_address_budget::{most_counted, permitted_crawls, shared_network};
use crate::model::{AgentId, LeaseToken, SessionId, TaskId};
use crate::store::leases::{self, Ending};
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::tasks::holds::{self, Cause};
use crate::store::types::Unsigned;
use crate::store::{Error, Locked, Tx};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PermitResult {
    /// The lease may use the address until it ends.
    Granted,
    /// The address permits no further crawl, so the lease has ended and its task is held.
    Full {
        /// Number of leases with a permit for the address.
        crawls: u32,
    },
    /// The lease is not active, or belongs to another session.
    NotHeld,
}

#[derive(Debug, Clone, Copy)]
pub struct PermitRequest {
    pub agent: AgentId,
    pub session: SessionId,
    pub task: TaskId,
    pub token: LeaseToken,
    /// The address to which the site's name resolved.
    pub address: IpAddr,
}

/// Grants a lease a permit for an address, or ends the lease if the address permits no further
/// crawl.
pub async fn permit(tx: &mut Tx<'_>, request: &PermitRequest, cap: u32) -> Result<PermitResult, Error> {
    let PermitRequest { agent, session, task, token, address } = *request;
    let address = shared_network(address);
    // Locks the task before its lease, like every transaction that ends a lease.
    let site = sqlx::query_scalar!(
        r#"
        select t.site_id
        from tasks t join leases l on l.task_id = t.id and l.token = t.token
        where t.id = $1 and t.state = 'leased' and t.token = $2 and l.agent_id = $3 and l.session_id = $4 and l.state = 'active'
        for update of t
        "#,
        task.get(),
        token.get(),
        agent.get(),
        session.get(),
    )
    .optional(tx)
    .await?;
    let Some(site) = site else { return Ok(PermitResult::NotHeld) };
    let locked = Locked::by(tx, task);
    // This lock serialises the requests for one address. Without the lock, two requests could be
    // granted although the address permits only one more crawl.
    sqlx::query!("select pg_advisory_xact_lock(hashtextextended('address ' || $1, 0))", address.to_string())
        .run(tx)
        .await?;
    let found = sqlx::query!(
        r#"
        select (select count(*) from leases l where l.state = 'active' and l.address = $1 and l.task_id <> $2) as "crawls!: Unsigned<u32>",
               -- Includes this site, even if its former crawl was at another address.
               (select count(*) from (
                    select from sites s where s.crawled_address = $1 and s.id <> $3 limit $4
                ) others) + 1 as "sites!: Unsigned<u32>"
        "#,
        address as IpNet,
        task.get(),
        site.get(),
        most_counted(cap),
    )
    .one(tx)
    .await?;
    let Unsigned(crawls) = found.crawls;
    if crawls >= permitted_crawls(found.sites.0, cap) {
        let ended = leases::end(tx, &[(task, token)], Some(agent), Ending::Anew).await?;
        let full = ended.into_iter().map(|(task, _)| (task, Cause::Address { address, admitted: false }));
        holds::hold(tx, &full.collect::<Vec<_>>()).await?;
        return Ok(PermitResult::Full { crawls });
    }
    holds::end(tx, &[locked]).await?;
    sqlx::query!(
        "update leases set address = $3 where task_id = $1 and token = $2",
        task.get(),
        token.get(),
        address as IpNet,
    )
    .run(tx)
    .await?;
    Ok(PermitResult::Granted)
}

/// Stores the address at which a crawl found a site. Stores it only if the session has the lease,
/// so that no other agent changes the number of sites at an address. Do not call this function in
/// the transaction of the [permit], which locks a task first. Other transactions lock a site's row
/// before tasks, so the transactions could deadlock.
pub async fn note_address(conn: &mut PgConnection, request: &PermitRequest) -> Result<(), Error> {
    sqlx::query!(
        r#"
        update sites s set crawled_address = $3
        from leases l
        where l.task_id = $1 and l.token = $2 and l.agent_id = $4 and l.session_id = $5 and l.state = 'active'
          and s.id = l.site_id and s.crawled_address is distinct from $3
        "#,
        request.task.get(),
        request.token.get(),
        shared_network(request.address) as IpNet,
        request.agent.get(),
        request.session.get(),
    )
    .run(conn)
    .await
}

/// Holds each of these located tasks if the known address of its site permits no further crawl, or
/// if other tasks already wait for this address. Returns the held tasks.
pub async fn hold(tx: &mut Tx<'_>, tasks: &[Locked<TaskId>], cap: u32) -> Result<HashSet<TaskId>, Error> {
    let known = sqlx::query!(
        r#"
        select t.id, s.crawled_address as "address!"
        from tasks t join sites s on s.id = t.site_id
        where t.id = any($1) and s.crawled_address is not null
          and not exists (select from task_holds h where h.task_id = t.id)
        -- The order in which agents are chosen for tasks.
        order by t.token = 0, t.id
        "#,
        tasks as _,
    )
    .all(tx)
    .await?;
    if known.is_empty() {
        return Ok(HashSet::new());
    }
    let addresses: HashSet<IpNet> = known.iter().map(|row| row.address).collect();
    let addresses: Vec<IpNet> = addresses.into_iter().collect();
    let mut rooms = room(tx, &addresses, cap).await?;
    let mut holds = Vec::new();
    for row in known {
        let Some(room) = rooms.get_mut(&row.address).filter(|room| !room.alone) else { continue };
        let admitted = !room.waited_for && room.places > 0;
        room.places -= i64::from(admitted);
        holds.push((Locked::by(tx, row.id), Cause::Address { address: row.address, admitted }));
    }
    Ok(holds::hold(tx, &holds).await?.into_iter().collect())
}

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
    let places = room(conn, &waited_for, cap).await?.into_iter().map(|(address, room)| (address, room.places));
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

/// The number of further crawls that an address permits, and facts that decide whether a task is
/// held.
#[derive(Debug)]
struct AddressRoom {
    /// Number of crawls that the address permits beyond its active crawls and admitted tasks.
    places: i64,
    /// Whether the address has no active crawl, no admitted task, and at most one known site.
    alone: bool,
    /// Whether tasks are held until the address permits a further crawl.
    waited_for: bool,
}

async fn room(conn: &mut PgConnection, addresses: &[IpNet], cap: u32) -> Result<HashMap<IpNet, AddressRoom>, Error> {
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

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::model::BatchId;
    use crate::store::batches::cancel_and_retry;
    use crate::store::fixtures::{self, Conn};

    #[test]
    fn a_network_of_64_bits_is_one_address_and_a_mapped_one_is_itself() {
        let shared = |text: &str| shared_network(text.parse().expect("an address"));
        assert_eq!(shared("2001:db8:1:2:3:4:5:6").to_string(), "2001:db8:1:2::/64");
        assert_eq!(shared("192.0.2.7").to_string(), "192.0.2.7/32");
        assert_eq!(shared("::ffff:192.0.2.7"), shared("192.0.2.7"));
    }

    /// Makes requests for one address, each for a different agent's lease.
    async fn crowd(conn: &mut PgConnection, sites: usize) -> Vec<PermitRequest> {
        let mut requests = Vec::new();
        for number in 0..sites {
            requests.push(fixtures::leased(conn, &format!("s{number}")).await.permit_request("192.0.2.7"));
        }
        requests
    }

    /// Stores the address and requests a permit for it, as sessions do.
    async fn answered(pool: &PgPool, one: &PermitRequest) -> PermitResult {
        note_address(&mut pool.acquire().await.expect("connect"), one).await.expect("note");
        let mut tx = fixtures::begin(pool).await;
        let answer = permit(&mut tx, one, 8).await.expect("permit");
        tx.commit().await.expect("commit");
        answer
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_address_is_given_to_as_many_as_it_bears_and_the_others_come_in_turn(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let requests = crowd(&mut conn, 5).await;
        let mut answers = Vec::new();
        for request in &requests {
            answers.push(answered(&pool, request).await);
        }
        // An address with one known site permits one crawl. With two to four sites it permits two
        // crawls, and with five sites three.
        let full = PermitResult::Full { crawls: 2 };
        assert_eq!(answers, [PermitResult::Granted, PermitResult::Granted, full, full, PermitResult::Granted]);
        assert_eq!(answered(&pool, &requests[0]).await, PermitResult::Granted, "it has it");
        assert_eq!(answered(&pool, &requests[2]).await, PermitResult::NotHeld, "its lease has ended");
        let foreign = PermitRequest { agent: requests[1].agent, session: requests[1].session, ..requests[0] };
        let elsewhere = "192.0.2.9".parse().expect("an address");
        for lie in [foreign, requests[2]] {
            note_address(&mut conn, &PermitRequest { address: elsewhere, ..lie }).await.expect("note");
        }
        let moved: i64 =
            fixtures::scalar(&mut conn, "select count(*) from sites where crawled_address = '192.0.2.9'").await;
        assert_eq!(moved, 0, "who does not hold a lease says nothing of its site");
        let admitted = async |conn: &mut PgConnection| admit(conn, 8, None, 10).await.expect("admit").0;
        assert_eq!((admitted(&mut conn).await, fixtures::chosen(&mut conn).await), (0, vec![]));
        assert!(fixtures::hand_back(&mut conn, requests[0].agent, requests[0].task).await);
        assert_eq!(admitted(&mut conn).await, 1);
        assert_eq!(admitted(&mut conn).await, 0, "the place is kept for the one on its way");
        assert_eq!(fixtures::chosen(&mut conn).await, [requests[2].task]);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn two_requests_for_the_last_permit_are_answered_one_after_the_other(pool: PgPool) {
        let requests = crowd(&mut pool.acquire().await.expect("connect"), 2).await;
        let mut first = fixtures::begin(&pool).await;
        assert_eq!(permit(&mut first, &requests[0], 1).await.expect("permit"), PermitResult::Granted);
        let second = async |tx: &mut Tx<'_>| permit(tx, &requests[1], 1).await.expect("permit");
        assert_eq!(fixtures::behind(&pool, first, second).await, PermitResult::Full { crawls: 1 });
    }

    const CAP: u32 = 8;

    /// Makes located tasks of sites whose address is known from an earlier crawl.
    async fn known(conn: &mut PgConnection, batch: BatchId, sites: &[(&str, &str)]) -> Vec<TaskId> {
        let mut tasks = Vec::new();
        for (name, address) in sites {
            let site = fixtures::site(conn, name).await;
            sqlx::query("update sites set crawled_address = nullif($2, '')::inet where id = $1")
                .bind(site.get())
                .bind(address)
                .execute(&mut *conn)
                .await
                .expect("say where it is");
            tasks.push(fixtures::task(conn, batch, site, "located").await);
        }
        tasks
    }

    async fn held(tx: &mut Tx<'_>, tasks: &[TaskId]) -> Vec<TaskId> {
        let locked = fixtures::lock(tx, tasks).await;
        let mut held: Vec<TaskId> = hold(tx, &locked, CAP).await.expect("hold").into_iter().collect();
        held.sort_unstable();
        held
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn as_many_go_on_as_their_address_bears_and_the_others_wait_there(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let at = "192.0.2.7";
        let sites = [("a.cn", at), ("b.cn", at), ("c.cn", at), ("d.cn", at), ("e.cn", ""), ("f.cn", "192.0.2.8")];
        let tasks = known(&mut conn, batch, &sites).await;
        // An address with four known sites permits two crawls. The fifth site's address is unknown,
        // and the sixth site is alone at its address.
        assert_eq!(held(&mut conn, &tasks).await, tasks[2..4]);
        let admitted: i64 = fixtures::scalar(&mut conn, "select count(*) from task_holds where admitted").await;
        assert_eq!((fixtures::chosen(&mut conn).await, admitted), (vec![tasks[0], tasks[1], tasks[4], tasks[5]], 2));
        let go_on = fixtures::chosen(&mut conn).await;
        assert_eq!(held(&mut conn, &go_on).await, [], "they have their places");
        assert_eq!(admit(&mut conn, CAP, None, 10).await.expect("admit").0, 0);

        // A later task does not overtake waiting tasks, even if the address permits a crawl now.
        let first = ["a.cn".parse().expect("a name")];
        cancel_and_retry::cancel(&mut conn, batch, "b", &first).await.expect("cancel one");
        let later = known(&mut conn, batch, &[("g.cn", at)]).await;
        assert_eq!(held(&mut conn, &later).await, later);
        assert_eq!(admit(&mut conn, CAP, None, 10).await.expect("admit").0, 2, "five sites bear three");
        assert_eq!(fixtures::chosen(&mut conn).await, [tasks[1], tasks[2], tasks[3], tasks[4], tasks[5]]);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_crawl_under_way_has_a_place_and_whoever_takes_it_gives_his_back(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let tasks = known(&mut conn, batch, &[("a.cn", "192.0.2.7"), ("b.cn", "192.0.2.7")]).await;
        let locked = fixtures::lock(&mut conn, &tasks).await;
        assert_eq!(hold(&mut conn, &locked, 1).await.expect("hold").len(), 1);
        let (agent, session) = fixtures::crawler(&mut conn, "a").await;
        let other = fixtures::site(&mut conn, "z.cn").await;
        let leased = fixtures::assigned(&mut conn, batch, other, agent).await;
        let [grant] = &leases::grant(&mut conn, agent, session).await.expect("grant")[..] else { panic!("one") };
        assert_eq!(grant.task, leased);
        // A crawl finds that a third site, whose address was unknown, is at this address too.
        let address = "192.0.2.7".parse().expect("an address");
        let request = PermitRequest { agent, session, task: leased, token: grant.token, address };
        assert_eq!(permit(&mut conn, &request, 1).await.expect("permit"), PermitResult::Granted);
        holds::end(&mut conn, &locked).await.expect("forget");
        assert_eq!(hold(&mut conn, &locked, 1).await.expect("hold").len(), 2, "it is full");
        let waits = sqlx::query_scalar::<_, i64>("select count(*) from task_holds where not admitted");
        assert_eq!(waits.fetch_one(&mut *conn).await.expect("count"), 2);
    }
}
