//! Batches: submitted lists of sites. A batch's strategy and policy never change.

pub mod cancel_and_retry;
pub(crate) mod constraints;
pub(crate) mod end_reasons;
mod find_or_create;
mod list;
pub(crate) mod progress;
pub(crate) mod quotas;
pub(crate) mod removal;
pub(crate) mod submissions;

pub use find_or_create::{Batch, by_name, lock_or_create};
pub use list::{BatchFilter, BatchSummary, list};
pub use progress::{Progress, progress};
pub use submissions::task_count;
