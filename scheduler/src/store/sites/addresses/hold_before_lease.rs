//! Holds a task before it is leased if the known address of its site permits no further crawl.
//! Without this check the lease would end as soon as the agent requests a permit.
//!
//! The address is checked when an agent is chosen, not when a lease is granted. Grants run more
//! often than any other transaction, and each grant would have to check again all tasks that
//! earlier grants skipped. If an earlier crawl found the site's address, an agent is chosen for the
//! task only if this address permits a further crawl. The task is then *admitted*: it counts as a
//! crawl at the address until its agent requests a permit. Tasks released from a hold are admitted
//! in the same way. So no task overtakes waiting tasks, and an admitted task finds room at its
//! address. The task's agent still has to request a permit, because the site's address may have
//! changed.

use std::collections::HashSet;

use sqlx::PgConnection;
use sqlx::types::ipnet::IpNet;

use crate::model::TaskId;
use crate::store::Error;
use crate::store::rows::Rows;
use crate::store::sites::addresses::room::room;
use crate::store::tasks::holds::{self, Cause};

/// Holds each of these located tasks if the known address of its site permits no further crawl, or
/// if other tasks already wait for this address. Returns the held tasks. The caller has locked the
/// tasks.
pub async fn hold(conn: &mut PgConnection, tasks: &[TaskId], cap: u32) -> Result<HashSet<TaskId>, Error> {
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
    .all(conn)
    .await?;
    if known.is_empty() {
        return Ok(HashSet::new());
    }
    let addresses: HashSet<IpNet> = known.iter().map(|row| row.address).collect();
    let addresses: Vec<IpNet> = addresses.into_iter().collect();
    let mut rooms = room(conn, &addresses, cap).await?;
    let mut holds = Vec::new();
    for row in known {
        let Some(room) = rooms.get_mut(&row.address).filter(|room| !room.alone) else { continue };
        let admitted = !room.waited_for && room.places > 0;
        room.places -= i64::from(admitted);
        holds.push((row.id, Cause::Address { address: row.address, admitted }));
    }
    Ok(holds::hold(conn, &holds).await?.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::BatchId;
    use crate::store::batches::cancel_and_retry;
    use crate::store::fixtures::{self, Conn};
    use crate::store::leases;
    use crate::store::sites::addresses;

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

    async fn held(conn: &mut PgConnection, tasks: &[TaskId]) -> Vec<TaskId> {
        let mut held: Vec<TaskId> = hold(conn, tasks, CAP).await.expect("hold").into_iter().collect();
        held.sort_unstable();
        held
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn as_many_go_on_as_their_address_bears_and_the_others_wait_there(mut conn: Conn) {
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
        assert_eq!(addresses::admit(&mut conn, CAP, None, 10).await.expect("admit").0, 0);

        // A later task does not overtake waiting tasks, even if the address permits a crawl now.
        let first = cancel_and_retry::ChangeScope::Sites(vec!["a.cn".parse().expect("a name")]);
        cancel_and_retry::cancel(&mut conn, batch, "b", &first).await.expect("cancel one");
        let later = known(&mut conn, batch, &[("g.cn", at)]).await;
        assert_eq!(held(&mut conn, &later).await, later);
        assert_eq!(addresses::admit(&mut conn, CAP, None, 10).await.expect("admit").0, 2, "five sites bear three");
        assert_eq!(fixtures::chosen(&mut conn).await, [tasks[1], tasks[2], tasks[3], tasks[4], tasks[5]]);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_crawl_under_way_has_a_place_and_whoever_takes_it_gives_his_back(mut conn: Conn) {
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let tasks = known(&mut conn, batch, &[("a.cn", "192.0.2.7"), ("b.cn", "192.0.2.7")]).await;
        assert_eq!(hold(&mut conn, &tasks, 1).await.expect("hold").len(), 1);
        let (agent, session) = fixtures::crawler(&mut conn, "a").await;
        let other = fixtures::site(&mut conn, "z.cn").await;
        let leased = fixtures::assigned(&mut conn, batch, other, agent).await;
        let [grant] = &leases::grant(&mut conn, agent, session).await.expect("grant")[..] else { panic!("one") };
        assert_eq!(grant.task, leased);
        // A crawl finds that a third site, whose address was unknown, is at this address too.
        let address = "192.0.2.7".parse().expect("an address");
        let request = addresses::PermitRequest { agent, session, task: leased, token: grant.token, address };
        assert_eq!(addresses::permit(&mut conn, &request, 1).await.expect("permit"), addresses::PermitResult::Granted);
        holds::end(&mut conn, &tasks).await.expect("forget");
        assert_eq!(hold(&mut conn, &tasks, 1).await.expect("hold").len(), 2, "it is full");
        let waits = sqlx::query_scalar::<_, i64>("select count(*) from task_holds where not admitted");
        assert_eq!(waits.fetch_one(&mut *conn).await.expect("count"), 2);
    }
}
