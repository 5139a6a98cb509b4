//! Registers a scheduler, renews its row, and deletes rows of schedulers that stopped.

use std::time::Duration;

use sqlx::PgConnection;

use crate::model::SchedulerId;
use crate::status::DiskSpace;
use crate::store::Error;
use crate::store::rows::{Rows, Statement};
use crate::store::types::{Interval, whole};

use super::terms;

/// Registers this process, with the free and total space of its disk.
pub async fn join(
    conn: &mut PgConnection,
    url: &str,
    version: &str,
    life: Duration,
    disk: Option<DiskSpace>,
) -> Result<SchedulerId, Error> {
    sqlx::query_scalar!(
        r#"
        insert into schedulers (url, version, expires_at, disk_free, disk_size)
        values ($1, $2, now() + $3::interval, $4, $5) returning id
        "#,
        url,
        version,
        Interval(life),
        disk.map(|disk| whole::<i64, _>(disk.free)),
        disk.map(|disk| whole::<i64, _>(disk.size)),
    )
    .one(conn)
    .await
}

/// Renews the row of this process, and stores the space of its disk. Returns `false` if the row has
/// expired or was deleted.
pub async fn renew(
    conn: &mut PgConnection,
    scheduler: SchedulerId,
    life: Duration,
    disk: Option<DiskSpace>,
) -> Result<bool, Error> {
    let renewed = sqlx::query!(
        r#"
        update schedulers set renewed_at = now(), expires_at = now() + $2::interval, disk_free = $3, disk_size = $4
        where id = $1 and expires_at > now()
        "#,
        scheduler.get(),
        Interval(life),
        disk.map(|disk| whole::<i64, _>(disk.free)),
        disk.map(|disk| whole::<i64, _>(disk.size)),
    )
    .affected(conn)
    .await?;
    Ok(renewed == 1)
}

/// Deletes the row of this process, which frees its roles at once. Run in a transaction.
pub async fn leave(conn: &mut PgConnection, scheduler: SchedulerId) -> Result<(), Error> {
    terms::free(conn, scheduler).await?;
    sqlx::query!("delete from schedulers where id = $1", scheduler.get()).run(conn).await
}

/// Deletes the rows that expired at least an hour ago and to which no term refers any more.
pub async fn forget(conn: &mut PgConnection) -> Result<(), Error> {
    sqlx::query!(
        r#"
        delete from schedulers s
        where expires_at < now() - interval '1 hour' and not exists (select from terms t where t.holder = s.id)
        "#,
    )
    .run(conn)
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::fixtures::{self, Conn};
    use crate::store::schedulers::list::list;

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_scheduler_that_stopped_without_notice_is_listed_until_it_starts_again(mut conn: Conn) {
        let life = Duration::from_secs(60);
        let disk = Some(DiskSpace { free: 1, size: 2 });
        let lost = join(&mut conn, "http://a", "1.0.0", life, disk).await.expect("join");
        let other = join(&mut conn, "http://b", "1.1.0", life, None).await.expect("join");
        let roles = "update terms set holder = (select min(id) from schedulers) where role = 'reap'";
        fixtures::execute(&mut conn, roles).await;
        let listed = list(&mut conn).await.expect("list");
        let shown: Vec<_> = listed.iter().map(|one| (one.url.as_str(), one.version.as_str(), one.running)).collect();
        assert_eq!(shown, [("http://a", "1.0.0", true), ("http://b", "1.1.0", true)]);
        assert_eq!((&*listed[0].roles, listed[0].disk, listed[1].disk), (&["reap".to_owned()][..], disk, None));
        let expire = "update schedulers set expires_at = now() - interval '1 second' where url = 'http://a'";
        fixtures::execute(&mut conn, expire).await;
        assert!(!renew(&mut conn, lost, life, disk).await.expect("renew"));
        assert!(renew(&mut conn, other, life, disk).await.expect("renew"));
        let listed = list(&mut conn).await.expect("list");
        assert_eq!((listed[0].running, listed[0].roles.len(), listed[1].disk), (false, 0, disk));
        join(&mut conn, "http://a", "1.0.0", life, disk).await.expect("join");
        let listed = list(&mut conn).await.expect("list");
        assert!(listed.len() == 2 && listed.iter().all(|one| one.running), "{listed:?}");
    }
}
