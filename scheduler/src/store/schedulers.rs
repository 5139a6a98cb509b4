//! Schedulers: one row per running process, which the process renews. When the row expires, the
//! other schedulers know that the process is gone.
//!
//! A process keeps its roles as long as it renews its row. An expired row is never renewed, because
//! its process may have lost its roles; the process must register again.

pub(crate) mod notices;
pub(crate) mod terms;

use std::time::Duration;

use sqlx::PgConnection;

use crate::model::SchedulerId;
use crate::status::{DiskSpace, SchedulerStatus};

use super::Error;
use super::rows::{Rows, Statement};
use super::types::{Interval, Unsigned, whole};

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

/// The schedulers of this database, in the order in which they started. If several rows have the
/// same URL, only the newest is listed, because a restarted scheduler leaves its previous row
/// behind.
pub async fn list(conn: &mut PgConnection) -> Result<Vec<SchedulerStatus>, Error> {
    let rows = sqlx::query!(
        r#"
        select s.url, s.version, s.started_at, s.expires_at > now() as "running!",
               s.disk_free as "disk_free: Unsigned<u64>", s.disk_size as "disk_size: Unsigned<u64>",
               array(select t.role::text from terms t where t.holder = s.id order by t.role) as "roles!"
        from schedulers s
        where not exists (select from schedulers newer where newer.url = s.url and newer.id > s.id)
        order by s.started_at, s.id
        "#,
    )
    .all(conn)
    .await?;
    let schedulers = rows.into_iter().map(|row| SchedulerStatus {
        url: row.url,
        version: row.version,
        started_at: row.started_at,
        running: row.running,
        roles: if row.running { row.roles } else { Vec::new() },
        disk: disk(row.disk_free, row.disk_size),
    });
    Ok(schedulers.collect())
}

/// The free and total space of a file system; `None` if either is unknown.
pub(in crate::store) fn disk(free: Option<Unsigned<u64>>, size: Option<Unsigned<u64>>) -> Option<DiskSpace> {
    Some(DiskSpace { free: free?.0, size: size?.0 })
}

/// Deletes the row of this process, which frees its roles at once. Run in a transaction.
pub async fn leave(conn: &mut PgConnection, scheduler: SchedulerId) -> Result<(), Error> {
    terms::free(conn, scheduler).await?;
    sqlx::query!("delete from schedulers where id = $1", scheduler.get()).run(conn).await
}

/// The URLs of the other running schedulers, in the order in which they started.
pub async fn others(conn: &mut PgConnection, url: &str) -> Result<Vec<String>, Error> {
    sqlx::query_scalar!(
        r#"
        select url from schedulers where expires_at > now() and url <> $1
        group by url order by min(started_at), url
        "#,
        url,
    )
    .all(conn)
    .await
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
