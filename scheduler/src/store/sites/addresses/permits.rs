//! Grants a lease a permit for an address, or ends the lease if the address permits no further
//! crawl.

use std::net::IpAddr;

use sqlx::PgConnection;
use sqlx::types::ipnet::IpNet;

use crate::model::quota_and_address_budget::{most_counted, permitted_crawls, shared_network};
use crate::model::{AgentId, LeaseToken, SessionId, TaskId};
use crate::store::Error;
use crate::store::leases::{self, Ending};
use crate::store::rows::{Rows, Statement};
use crate::store::tasks::holds::{self, Cause};
use crate::store::types::Unsigned;

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
/// crawl. Run in a transaction.
pub async fn permit(conn: &mut PgConnection, request: &PermitRequest, cap: u32) -> Result<PermitResult, Error> {
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
    .optional(conn)
    .await?;
    let Some(site) = site else { return Ok(PermitResult::NotHeld) };
    // This lock serialises the requests for one address. Without the lock, two requests could be
    // granted although the address permits only one more crawl.
    sqlx::query!("select pg_advisory_xact_lock(hashtextextended('address ' || $1, 0))", address.to_string())
        .run(conn)
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
    .one(conn)
    .await?;
    let Unsigned(crawls) = found.crawls;
    if crawls >= permitted_crawls(found.sites.0, cap) {
        let ended = leases::end(conn, &[(task, token)], Some(agent), Ending::Anew).await?;
        let full = ended.into_iter().map(|(task, _)| (task, Cause::Address { address, admitted: false }));
        holds::hold(conn, &full.collect::<Vec<_>>()).await?;
        return Ok(PermitResult::Full { crawls });
    }
    holds::end(conn, &[task]).await?;
    sqlx::query!(
        "update leases set address = $3 where task_id = $1 and token = $2",
        task.get(),
        token.get(),
        address as IpNet,
    )
    .run(conn)
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

#[cfg(test)]
mod tests {
    use super::*;
    use sqlx::PgPool;

    use crate::store::fixtures;
    use crate::store::sites::addresses::admission::admit;

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
        let second = async |conn: &mut PgConnection| permit(conn, &requests[1], 1).await.expect("permit");
        assert_eq!(fixtures::behind(&pool, first, second).await, PermitResult::Full { crawls: 1 });
    }
}
