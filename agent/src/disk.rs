//! What an agent stores on disk: in its own folders, written atomically, bounded.

pub(crate) mod folder;
pub(crate) mod kept_crawls;
pub(crate) mod outbox;
pub(crate) mod room;
