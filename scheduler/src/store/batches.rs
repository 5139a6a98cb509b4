//! Batches: submitted lists of sites. A batch's strategy and policy never change.

pub mod cancel_and_retry;
pub(crate) mod changes;
pub(crate) mod constraints_and_quotas;
pub(crate) mod list_and_progress;
pub(crate) mod pieces;
pub(crate) mod removal;
pub(crate) mod submissions;

pub use list_and_progress::{BatchFilter, BatchSummary, Progress, list, progress};
pub use submissions::{Batch, by_name, lock_or_create, task_count};
