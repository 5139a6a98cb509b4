//! Changes of all tasks of a batch: cancel, retry, remove. An operator's call stores what is to be
//! done, and pieces of bounded size do it ([`super::pieces`]).
//!
//! Invariants: a batch has at most one unfinished change. From the commit of [`begin`] on, no lease
//! is granted for a batch that is being cancelled or removed. Repeating a call begins nothing while
//! the change that it asks for is unfinished.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::{AgentId, BatchId, SiteId, TaskId, words};

use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::types::Unsigned;
use crate::store::{Error, Tx};

words!(
    /// What a change does with the tasks of a batch.
    ChangeKind {
        /// Cancels open tasks, and drops planned recrawls.
        Cancel = "cancel",
        /// Makes a next round of failed tasks.
        Retry = "retry",
        /// Removes the tasks, and then the batch.
        Remove = "remove",
    }
);

/// A change, with the number of sites of the batch that it has read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub number: i64,
    pub kind: ChangeKind,
    pub asked_at: DateTime<Utc>,
    pub finished: bool,
    /// Number of the batch's sites when the change was asked for.
    pub sites: u64,
    /// Number of these sites that were read.
    pub read: u64,
    /// Number of tasks that were cancelled or removed, or of new rounds.
    pub changed: u64,
    pub leases: u64,
    pub recrawls: u64,
}

/// Why a change of a batch cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    #[error("batch {batch} is being {}: {read} of {sites} sites so far; try again when it has ended", past(*.kind))]
    Running { batch: String, kind: ChangeKind, read: u64, sites: u64 },
    #[error(
        "batch {batch} has {open} {} not ended: wait for them (`landfall batches wait {batch}`), or give --cancel",
        had(*.open)
    )]
    Open { batch: String, open: u64 },
    #[error("a submission to batch {0} is under way: try again when it has ended")]
    Submitting(String),
    #[error("begin a change of a batch")]
    Store(#[from] Error),
}

const fn had(open: u64) -> &'static str {
    if open == 1 { "site that has" } else { "sites that have" }
}

/// The word for a batch whose change is unfinished.
pub const fn past(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Cancel => "cancelled",
        ChangeKind::Retry => "retried",
        ChangeKind::Remove => "removed",
    }
}

/// The newest change of a batch; `None` if there was none.
pub async fn of_batch(conn: &mut PgConnection, batch: BatchId) -> Result<Option<Change>, Error> {
    let change = sqlx::query_as!(
        Change,
        r#"
        select number, kind, asked_at, finished_at is not null as "finished!", sites,
               case when finished_at is null then least(read, sites) else sites end as "read!: Unsigned<u64>",
               changed, leases, recrawls
        from changes where batch_id = $1
        "#,
        batch.get(),
    );
    change.optional(conn).await
}

/// Begins a change, or returns the unfinished change that already does the same. A cancellation
/// ends a retry, and a removal ends both. With `cancel`, a removal cancels open tasks.
pub async fn begin(
    tx: &mut Tx<'_>,
    batch: BatchId,
    name: &str,
    kind: ChangeKind,
    cancel: bool,
) -> Result<Change, BeginError> {
    // Only the lock of a submission to the batch, or of a piece, is waited for.
    sqlx::query!("select set_config('lock_timeout', '500ms', true) as timeout").one(tx).await?;
    let locked = sqlx::query_scalar!("select kind from changes where batch_id = $1 for update", batch.get());
    locked.optional(tx).await?;
    let present = of_batch(tx, batch).await?.filter(|change| !change.finished);
    let running = |change: Change| {
        let Change { kind, read, sites, .. } = change;
        BeginError::Running { batch: name.to_owned(), kind, read, sites }
    };
    let cancelling = match (present, kind) {
        (Some(change), asked) if change.kind == asked => return Ok(change),
        (Some(change), ChangeKind::Cancel | ChangeKind::Retry) if change.kind == ChangeKind::Remove => {
            return Err(running(change));
        }
        (Some(change), ChangeKind::Retry) => return Err(running(change)),
        (present, _) => present.is_some_and(|change| change.kind == ChangeKind::Cancel),
    };
    if kind == ChangeKind::Remove {
        begin_removal(tx, batch, name, cancel || cancelling).await?;
    }
    sqlx::query!(
        r#"
        insert into changes as c (batch_id, kind, sites)
        select batch_id, $2, submitted + measuring + located + assigned + leased + done + failed + cancelled
        from batch_progress where batch_id = $1
        on conflict (batch_id) do update
        set number = default, kind = excluded.kind, asked_at = default, finished_at = null, sites = excluded.sites,
            read = 0, site_id = 0, round = 0, left_sites = default, left_more = false, changed = 0, leases = 0, recrawls = 0
        "#,
        batch.get(),
        kind as ChangeKind,
    )
    .run(tx)
    .await?;
    of_batch(tx, batch).await?.ok_or_else(|| BeginError::Store(Error::inconsistent("changes", "batch_id", "missing")))
}

/// Checks that sites of the batch may be retried.
pub async fn check_retry(conn: &mut PgConnection, batch: BatchId, name: &str) -> Result<(), BeginError> {
    match of_batch(conn, batch).await? {
        Some(Change {
            kind: kind @ (ChangeKind::Cancel | ChangeKind::Remove), finished: false, read, sites, ..
        }) => Err(BeginError::Running { batch: name.to_owned(), kind, read, sites }),
        _ => Ok(()),
    }
}

/// Marks the batch, so that nothing is added to it. Fails if tasks are open and `cancel` is false.
async fn begin_removal(conn: &mut PgConnection, batch: BatchId, name: &str, cancel: bool) -> Result<(), BeginError> {
    let open = open_tasks(conn, batch).await?;
    if open > 0 && !cancel {
        return Err(BeginError::Open { batch: name.to_owned(), open });
    }
    let marked =
        sqlx::query!("update batches set removing_since = coalesce(removing_since, now()) where id = $1", batch.get());
    match marked.run(conn).await {
        Err(error) if error.is_locked() => Err(BeginError::Submitting(name.to_owned())),
        marked => Ok(marked?),
    }
}

pub(super) async fn open_tasks(conn: &mut PgConnection, batch: BatchId) -> Result<u64, Error> {
    let open = sqlx::query_scalar!(
        r#"
        select submitted + measuring + located + assigned + leased as "open!: Unsigned<u64>"
        from batch_progress where batch_id = $1
        "#,
        batch.get(),
    );
    Ok(open.one(conn).await?.0)
}

/// What became of the tasks of a piece.
#[derive(Debug, Default)]
pub(super) struct PieceResult {
    pub(super) changed: u64,
    pub(super) leases: u64,
    pub(super) recrawls: u64,
    pub(super) agents: Vec<AgentId>,
    /// The sites of tasks that could not be changed.
    pub(super) left: BTreeSet<SiteId>,
}

/// A task that a piece read.
#[derive(Debug)]
pub(super) struct ReadTask {
    pub(super) id: TaskId,
    pub(super) site: SiteId,
    /// The site to which this task's site points, if it is an alias.
    pub(super) alias_of: Option<SiteId>,
    pub(super) round: Unsigned<u32>,
    pub(super) newest: bool,
    /// Whether the change concerns the task.
    pub(super) meant: bool,
}
