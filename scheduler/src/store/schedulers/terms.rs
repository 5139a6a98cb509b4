//! Terms: which scheduler has a role, and the fence that prevents changes by a former leader.
//!
//! Invariants: the number of a role's term is raised by one when a scheduler takes the role, and at
//! no other time. No scheduler takes a role before the leader's row has expired by Postgres' clock.
//! A transaction that passed [`check`] can commit only before another scheduler takes the role.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::{SchedulerId, TermNumber, words};

use crate::store::Error;
use crate::store::agents::sessions;
use crate::store::rows::{Rows, Statement};

words!(
    /// Duties that only one scheduler at a time may have.
    ///
    /// Reaping has its own role, so that it continues while a fit keeps a slow machine busy.
    /// Fitting has its own role, because the whole map must be made by a single scheduler. All
    /// passes that bring tasks to agents share one role, because they wake each other often and so
    /// should run in one process.
    Role {
        /// Ends expired sessions and leases, and deletes old events.
        Reap = "reap",
        /// Makes the map: elects landmarks, fits embeddings, quarantines agents.
        Fit = "fit",
        /// Brings tasks to agents: measures, locates, confirms, assigns.
        Plan = "plan",
    }
);

/// A term that this scheduler has just taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenTerm {
    pub number: TermNumber,
    /// Number of sessions that were extended because agents may have been unable to renew them.
    pub extended: u64,
}

/// Takes the role if it is free or its leader has expired. Returns `None` if another scheduler has
/// the role. Waits for open transactions of the former leader. Run in a transaction.
///
/// A scheduler calls this function only if, as far as it knows, it does not have the role. If the
/// database says that this scheduler already has the role, the answer to an earlier commit must
/// have been lost. The scheduler then takes another term; otherwise the role would be idle for as
/// long as the process runs.
///
/// Taking the role `reap` also extends every session, in the same transaction. `lifetime` is the
/// lifetime of a session.
pub async fn take(
    conn: &mut PgConnection,
    role: Role,
    scheduler: SchedulerId,
    lifetime: Duration,
) -> Result<Option<TakenTerm>, Error> {
    if !is_free(conn, role, scheduler).await? {
        return Ok(None);
    }
    let locked = sqlx::query!("select holder from terms where role = $1 for update", role);
    locked.one(conn).await?;
    // The check is repeated in a new statement. If another transaction had locked the row, the
    // statement above waited for that transaction, which may have taken the role.
    if !is_free(conn, role, scheduler).await? {
        return Ok(None);
    }
    let former = sqlx::query_as!(
        FormerTerm,
        r#"
        select t.taken_at, coalesce(s.renewed_at, t.served_until) as served_until
        from terms t left join schedulers s on s.id = t.holder where t.role = $1
        "#,
        role,
    )
    .one(conn)
    .await?;
    let number = sqlx::query_scalar!(
        r#"
        update terms set holder = $2, number = number + 1, taken_at = clock_timestamp(), served_until = null
        where role = $1
        returning number
        "#,
        role,
        scheduler.get(),
    )
    .one(conn)
    .await?;
    let extended = match role {
        Role::Reap => sessions::extend(conn, lifetime, former.taken_at, former.served_until).await?,
        Role::Fit | Role::Plan => 0,
    };
    Ok(Some(TakenTerm { number, extended }))
}

/// The term before the one that is being taken.
struct FormerTerm {
    taken_at: Option<DateTime<Utc>>,
    served_until: Option<DateTime<Utc>>,
}

async fn is_free(conn: &mut PgConnection, role: Role, scheduler: SchedulerId) -> Result<bool, Error> {
    sqlx::query_scalar!(
        r#"
        select not exists (
            select from schedulers s where s.id = t.holder and s.id <> $2 and s.expires_at > clock_timestamp()
        ) as "free!"
        from terms t where t.role = $1
        "#,
        role,
        scheduler.get(),
    )
    .one(conn)
    .await
}

/// Whether this scheduler still has this term. Each transaction that acts in this role must call
/// this function, because its row lock prevents other schedulers from taking the role until the
/// transaction ends. Postgres aborts the transaction if it is idle for longer than `patience`
/// between two statements, so that a suspended scheduler does not block other schedulers.
pub async fn check(
    conn: &mut PgConnection,
    role: Role,
    scheduler: SchedulerId,
    number: TermNumber,
    patience: Duration,
) -> Result<bool, Error> {
    let still = sqlx::query!(
        r#"
        select set_config('idle_in_transaction_session_timeout', $4, true),
               -- Events that this transaction writes contain this term.
               set_config('landfall.term', t.role || ' ' || t.number, true) as term
        from terms t join schedulers s on s.id = t.holder
        where t.role = $1 and t.holder = $2 and t.number = $3 and s.expires_at > clock_timestamp()
        for share of t
        "#,
        role,
        scheduler.get(),
        number.get(),
        patience.as_millis().to_string(),
    )
    .optional(conn)
    .await?;
    Ok(still.is_some())
}

/// Frees every role of this scheduler.
pub async fn free(conn: &mut PgConnection, scheduler: SchedulerId) -> Result<(), Error> {
    sqlx::query!(
        r#"
        update terms t set holder = null, served_until = case when s.expires_at > now() then now() else s.renewed_at end
        from schedulers s where s.id = t.holder and t.holder = $1
        "#,
        scheduler.get(),
    )
    .run(conn)
    .await
}

#[cfg(test)]
mod tests;
