//! Extends sessions when a scheduler takes the role reap, because no scheduler may have renewed
//! them since the former term.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::store::Error;
use crate::store::rows::Statement;
use crate::store::types::Interval;

/// Extends every active session when a scheduler takes the role reap. The former term ended at
/// `served_until`. After `served_until`, there may have been no scheduler that renewed sessions;
/// the extension makes up for this time. Returns the number of extended sessions.
///
/// A session that was renewed after the former term began gets a whole lifetime. Any other session
/// gets what remained of its lifetime when the former term ended. So a dead agent's session expires
/// after at most two lifetimes, even if terms change often. Only time in which a scheduler has the
/// role reap counts towards these lifetimes.
pub(in crate::store) async fn extend(
    conn: &mut PgConnection,
    lifetime: Duration,
    former_term: Option<DateTime<Utc>>,
    served_until: Option<DateTime<Utc>>,
) -> Result<u64, Error> {
    sqlx::query!(
        r#"
        update sessions
        set expires_at = case
            when $2::timestamptz is null or renewed_at >= $2
                then greatest(expires_at, clock_timestamp() + $1::interval)
            else expires_at + greatest(clock_timestamp() - $3::timestamptz, interval '0')
        end
        where state = 'active'
        "#,
        Interval(lifetime),
        former_term,
        served_until,
    )
    .affected(conn)
    .await
}
