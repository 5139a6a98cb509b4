//! Schedulers: one row per running process. If it expires, the other schedulers know that the
//! process is gone.
//!
//! The row is renewed for all roles of the process at once, and its expiry is judged only by
//! Postgres' clock. An expired row is never renewed: its process has lost its terms, and joins
//! again.

pub(crate) mod notices;
pub(crate) mod terms;

use std::time::Duration;

use sqlx::PgConnection;

use crate::model::SchedulerId;

use super::Error;
use super::rows::{Rows, Statement};
use super::types::Interval;

pub async fn join(conn: &mut PgConnection, url: &str, life: Duration) -> Result<SchedulerId, Error> {
    sqlx::query_scalar!(
        "insert into schedulers (url, expires_at) values ($1, now() + $2::interval) returning id",
        url,
        Interval(life),
    )
    .one(conn)
    .await
}

/// Renews this process. Returns `false` if its row has expired or was deleted.
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

/// Deletes this process; its roles are free at once. Run in a transaction.
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

/// Deletes expired processes to which no row refers any more.
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
