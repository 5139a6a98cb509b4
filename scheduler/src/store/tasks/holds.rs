//! Holds: located tasks that must not be assigned until a condition is met.
//!
//! Invariants: a task has at most one hold. `tasks.held` is true exactly while the task has a hold
//! and is not admitted ([`Cause::Address`]). A held task is `located`. A hold ends when its task
//! ends. Only this module and `sites::addresses` write the table `task_holds` and the column
//! `tasks.held`.

use std::time::Duration;

use sqlx::types::ipnet::IpNet;

use crate::model::{BatchId, SiteId, TaskId};

use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::types::Interval;
use crate::store::{Error, Locked, Tx};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// The address of the site permits no further crawl.
    Address {
        address: IpNet,
        /// Whether the task is admitted. An admitted task may be assigned, and counts as one of the
        /// crawls that the address permits.
        admitted: bool,
    },
    /// The site asked for a pause of this length.
    Pause(Duration),
    /// The site's circuit is open.
    Breaker,
    /// No agent may crawl the site for this task's batch now.
    Unmet,
    /// The site is being confirmed. The value is the maximum wait, after which an agent is chosen
    /// without a confirmation; `None` if the task waits until the confirmation ends.
    Confirming(Option<Duration>),
}

impl Cause {
    const fn name(&self) -> &'static str {
        match self {
            Self::Address { .. } => "address",
            Self::Pause(_) => "pause",
            Self::Breaker => "breaker",
            Self::Unmet => "unmet",
            Self::Confirming(_) => "confirming",
        }
    }

    const fn lasts(&self) -> Option<Interval> {
        match self {
            Self::Pause(lasts) | Self::Confirming(Some(lasts)) => Some(Interval(*lasts)),
            Self::Address { .. } | Self::Breaker | Self::Unmet | Self::Confirming(None) => None,
        }
    }
}

/// Holds tasks, replacing their previous holds. Returns the held tasks, except admitted ones. A
/// task that is held again for the same cause keeps the start time of its hold, so it does not move
/// back in the queue. The tasks are located.
pub async fn hold(tx: &mut Tx<'_>, holds: &[(Locked<TaskId>, Cause)]) -> Result<Vec<TaskId>, Error> {
    if holds.is_empty() {
        return Ok(Vec::new());
    }
    let tasks: Vec<i64> = holds.iter().map(|(task, _)| task.get()).collect();
    let causes: Vec<&str> = holds.iter().map(|(_, cause)| cause.name()).collect();
    let lasts: Vec<Option<Interval>> = holds.iter().map(|(_, cause)| cause.lasts()).collect();
    let (addresses, admitted): (Vec<Option<IpNet>>, Vec<bool>) = holds
        .iter()
        .map(|(_, cause)| match cause {
            Cause::Address { address, admitted } => (Some(*address), *admitted),
            _ => (None, false),
        })
        .unzip();
    sqlx::query_scalar!(
        r#"
        with held as (
            insert into task_holds (task_id, batch_id, site_id, cause, address, until, admitted)
            select t.id, t.batch_id, t.site_id, new.cause::hold_cause, new.address, now() + new.lasts,
                   new.admitted
            from unnest($1::bigint[], $2::text[], $3::inet[], $4::interval[], $5::boolean[])
                     as new (task_id, cause, address, lasts, admitted)
            join tasks t on t.id = new.task_id and t.state::text = 'located'
            on conflict (task_id) do update
            set cause = excluded.cause, address = excluded.address, until = excluded.until, admitted = excluded.admitted,
                since = case when task_holds.cause = excluded.cause then task_holds.since else now() end
            returning task_id, admitted
        )
        update tasks t set held = true from held where t.id = held.task_id and not held.admitted
        returning t.id
        "#,
        &tasks,
        &causes as _,
        &addresses as _,
        &lasts as _,
        &admitted,
    )
    .all(tx)
    .await
}

/// Selects the tasks to release.
#[derive(Debug, Clone, Copy)]
pub enum HoldFilter<'a> {
    /// Tasks whose hold has reached its time limit.
    Due,
    /// Unmet tasks of a batch, in the order in which they were held.
    Unmet(BatchId),
    /// Tasks of sites whose circuits are being closed.
    Breaker(&'a [SiteId]),
    /// Tasks of sites that were being confirmed.
    Confirming(&'a [SiteId]),
}

/// Releases at most `limit` tasks, and returns them with their sites. Skips tasks locked by another
/// transaction if a later pass will look for these tasks again; otherwise waits for the lock.
pub async fn release(
    tx: &mut Tx<'_>,
    which: HoldFilter<'_>,
    limit: i64,
) -> Result<Vec<(Locked<TaskId>, SiteId)>, Error> {
    let next = match which {
        HoldFilter::Due => {
            let due = sqlx::query_scalar!(
                "select task_id from task_holds where until <= now() order by until limit $1",
                limit,
            );
            due.all(tx).await?
        }
        HoldFilter::Unmet(batch) => {
            let unmet = sqlx::query_scalar!(
                "select task_id from task_holds where cause = 'unmet' and batch_id = $1 order by since, task_id limit $2",
                batch.get(),
                limit,
            );
            unmet.all(tx).await?
        }
        HoldFilter::Breaker(sites) => {
            let broken = sqlx::query_scalar!(
                "select task_id from task_holds where cause = 'breaker' and site_id = any($1) limit $2",
                sites as _,
                limit,
            );
            broken.all(tx).await?
        }
        HoldFilter::Confirming(sites) => {
            let confirmed = sqlx::query_scalar!(
                "select task_id from task_holds where cause = 'confirming' and site_id = any($1) limit $2",
                sites as _,
                limit,
            );
            confirmed.all(tx).await?
        }
    };
    if next.is_empty() {
        return Ok(Vec::new());
    }
    let locked = if matches!(which, HoldFilter::Due | HoldFilter::Unmet(_) | HoldFilter::Breaker(_)) {
        sqlx::query_scalar!("select id from tasks where id = any($1) order by id for update skip locked", &next as _)
            .all(tx)
            .await?
    } else {
        sqlx::query_scalar!("select id from tasks where id = any($1) order by id for update", &next as _)
            .all(tx)
            .await?
    };
    // This statement is separate from the one that locks the tasks, because another transaction may
    // have ended or replaced a hold before this transaction got the lock.
    let released = sqlx::query!(
        r#"
        with over as (
            delete from task_holds
            where task_id = any($1) and (cause = $2::text::hold_cause or $2 is null and until <= now())
            returning task_id
        )
        update tasks t set held = false from over where t.id = over.task_id
        returning t.id, t.site_id
        "#,
        &locked as _,
        match which {
            HoldFilter::Due => None,
            HoldFilter::Unmet(_) => Some("unmet"),
            HoldFilter::Breaker(_) => Some("breaker"),
            HoldFilter::Confirming(_) => Some("confirming"),
        },
    )
    .all(tx)
    .await?;
    Ok(released.into_iter().map(|row| (Locked::by(tx, row.id), row.site_id)).collect())
}

/// Ends the holds of tasks that leave `located` or begin their crawl.
pub(in crate::store) async fn end(tx: &mut Tx<'_>, tasks: &[Locked<TaskId>]) -> Result<(), Error> {
    sqlx::query!(
        r#"
        with over as (delete from task_holds where task_id = any($1) returning task_id)
        update tasks t set held = false from over where t.id = over.task_id and t.held
        "#,
        tasks as _,
    )
    .run(tx)
    .await
}
