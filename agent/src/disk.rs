//! Stores the agent's data on disk, in the agent's own folders. Writes are atomic, and the amount
//! of data is limited.

pub(crate) mod crawl_files;
pub(crate) mod folder;
pub(crate) mod outbox;
