//! The calls about batches: submits, lists, shows, watches, cancels, retries and removes them.

pub(super) mod cancel_and_retry;
pub(super) mod list_and_show;
pub(super) mod remaining_time;
pub(super) mod removal;
pub(super) mod submissions;
pub(super) mod watch;
