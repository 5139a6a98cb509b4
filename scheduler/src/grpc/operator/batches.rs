//! The calls about batches: submits, lists, shows, watches, cancels, retries and removes them.

pub(super) mod cancel_retry_remove;
pub(super) mod facts;
pub(super) mod list_show_watch;
pub(super) mod submissions;
