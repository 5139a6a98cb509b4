//! What an agent stores on disk: in its own folders, written atomically, bounded.

pub(crate) mod crawl_files;
pub(crate) mod folder;
pub(crate) mod free_space;
pub(crate) mod outbox;
