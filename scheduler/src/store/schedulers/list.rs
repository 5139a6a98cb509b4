//! Lists the schedulers of this database with their roles and disk space.

use sqlx::PgConnection;

use crate::status::{DiskSpace, SchedulerStatus};
use crate::store::Error;
use crate::store::rows::Rows;
use crate::store::types::Unsigned;

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
