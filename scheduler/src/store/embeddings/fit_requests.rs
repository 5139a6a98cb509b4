//! Stores the operator's request for a fit, and the reason if the fit is impossible.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::store::Error;
use crate::store::rows::{Rows, Statement};

/// The state of the operator's newest request for a fit. At most one request is open, and the next
/// fit by any scheduler answers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FitRequest {
    /// There is no request, or a fit has completed it.
    None,
    Open,
    /// The fit is impossible, for this reason.
    Refused(String),
}

/// Requests a fit, and deletes an earlier refusal.
pub async fn ask_for_fit(conn: &mut PgConnection) -> Result<(), Error> {
    sqlx::query!(
        r#"
        insert into fit_requests default values
        on conflict (singleton) do update set requested_at = clock_timestamp(), refused = null
        "#,
    )
    .run(conn)
    .await
}

pub async fn fit_request(conn: &mut PgConnection) -> Result<FitRequest, Error> {
    let refused = sqlx::query_scalar!("select refused from fit_requests").optional(conn).await?;
    Ok(match refused {
        None => FitRequest::None,
        Some(None) => FitRequest::Open,
        Some(Some(why)) => FitRequest::Refused(why),
    })
}

pub async fn refuse_fit(conn: &mut PgConnection, why: &str) -> Result<(), Error> {
    sqlx::query!("update fit_requests set refused = $1 where refused is null", why).run(conn).await
}

/// Deletes requests made before `as_of`, because the newest embedding was fitted to data from that
/// time.
pub async fn answer_fit(conn: &mut PgConnection, as_of: DateTime<Utc>) -> Result<(), Error> {
    sqlx::query!("delete from fit_requests where requested_at <= $1", as_of).run(conn).await
}
