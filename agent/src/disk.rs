//! What an agent keeps on disk: in folders of its own, written whole, bounded.

pub(crate) mod folder;
pub(crate) mod kept_crawls;
pub(crate) mod outbox;
pub(crate) mod room;
