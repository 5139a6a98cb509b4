//! Stores fetched pages as WARC/1.1 (ISO 28500). Every response and every request is a gzip member
//! of its own. Each WARC file has an index (`.jsonl`) with a line of JSON for each response.
//!
//! All crawls of an agent share one [`Store`]. Each crawl has a [`Recorder`], which records
//! responses while they arrive (`exchange`, `recording`, `http1_form`, `body`) and sends them to
//! the `writer`. The writer appends responses (`warc_file`, `records`, `member`, `fields`,
//! `digest`, `index_line`) to one file after another (`names`, `folder`). Blocking disk operations
//! run on tokio's threads for blocking tasks, and the length of every queue is limited.
//!
//! **Every page that counts as visited is stored**: a crawl logs a page as visited only after
//! [`Recorder::stored`] has returned. If a crash loses a page, the page is fetched again.

pub use exchange::{AnsweredRequest, Truncated};
pub use index_line::ResponseLine;
pub use recorder::Recorder;
pub use recording::Recording;
pub use store::Store;

mod body;
mod digest;
mod exchange;
mod fields;
mod folder;
mod http1_form;
mod index_line;
mod member;
mod names;
pub mod read;
mod recorder;
mod recording;
mod records;
mod rotation;
mod store;
#[cfg(test)]
mod tests;
mod warc_file;
mod writer;
