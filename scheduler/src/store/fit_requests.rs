//! Requests for a fit: an operator asks, whichever scheduler fits next answers. At most one is open.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::Error;
use super::rows::{Rows, Statement};

/// How the newest request stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FitRequest {
    /// Nobody asked, or a fit has answered.
    None,
    /// Nobody has answered yet.
    Open,
    /// It cannot be done, and why.
    Refused(String),
}

/// Asks for a fit; a refusal from before is forgotten.
pub async fn ask(conn: &mut PgConnection) -> Result<(), Error> {
    sqlx::query!(
        r#"
        insert into fit_requests default values
        on conflict (singleton) do update set requested_at = clock_timestamp(), refused = null
        "#,
    )
    .run(conn)
    .await
}

/// How the newest request stands.
pub async fn state(conn: &mut PgConnection) -> Result<FitRequest, Error> {
    let refused = sqlx::query_scalar!("select refused from fit_requests").optional(conn).await?;
    Ok(match refused {
        None => FitRequest::None,
        Some(None) => FitRequest::Open,
        Some(Some(why)) => FitRequest::Refused(why),
    })
}

/// Says why an open request cannot be followed.
pub async fn refuse(conn: &mut PgConnection, why: &str) -> Result<(), Error> {
    sqlx::query!("update fit_requests set refused = $1 where refused is null", why).run(conn).await
}

/// Ends the requests from before `as_of`: a fit of what was known then has taken over.
pub async fn answer(conn: &mut PgConnection, as_of: DateTime<Utc>) -> Result<(), Error> {
    sqlx::query!("delete from fit_requests where requested_at <= $1", as_of).run(conn).await
}
