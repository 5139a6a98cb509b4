//! Schedulers: one row per running process; its expiry shows the others that the process is gone.
//!
//! Like an agent's session, one row is renewed for all of its roles, and only Postgres' clock
//! expires it. An expired row is not renewed: its process joins again, and has lost its terms.

pub(crate) mod notices;
pub(crate) mod terms;

use std::time::Duration;

use sqlx::PgConnection;

use crate::model::SchedulerId;

use super::Error;
use super::rows::{Rows, Statement};
use super::types::Interval;

/// Inserts this process.
pub async fn join(conn: &mut PgConnection, url: &str, life: Duration) -> Result<SchedulerId, Error> {
    sqlx::query_scalar!(
        "insert into schedulers (url, expires_at) values ($1, now() + $2::interval) returning id",
        url,
        Interval(life),
    )
    .one(conn)
    .await
}

/// Renews this process. `false`: its row has expired or is gone.
pub async fn renew(conn: &mut PgConnection, scheduler: SchedulerId, life: Duration) -> Result<bool, Error> {
    let renewed = sqlx::query!(
        r#"
        update schedulers set renewed_at = now(), expires_at = now() + $2::interval
        where id = $1 and expires_at > now()
        "#,
        scheduler.get(),
        Interval(life),
    )
    .affected(conn)
    .await?;
    Ok(renewed == 1)
}

/// Ends this process; its roles are free at once. Run in a transaction.
pub async fn leave(conn: &mut PgConnection, scheduler: SchedulerId) -> Result<(), Error> {
    terms::free(conn, scheduler).await?;
    sqlx::query!("delete from schedulers where id = $1", scheduler.get()).run(conn).await
}

/// The URLs of the other running schedulers, in the order of their starts.
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

/// Deletes expired processes, once no row refers to them.
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
