//! Stores fetched pages as WARC/1.1 (ISO 28500). Every response and every request is a gzip member
//! of its own. Each WARC file has an index (`.jsonl`) with a line of JSON for each response.
//!
//! All crawls of an agent share one [`Store`]. Each crawl has a [`Recorder`], which records
//! responses while they arrive (`recording`) and sends them to the writer (`store`). The writer
//! appends responses (`records`) to one file after another (`warc_file`, `folder`). Blocking disk
//! operations run on tokio's threads for blocking tasks, and the length of every queue is limited.
//!
//! **Every page that counts as visited is stored**: a crawl logs a page as visited only after
//! [`Recorder::stored`] has returned. If a crash loses a page, the page is fetched again.

pub use recording::{AnsweredRequest, Recording, Truncated};
pub use records::ResponseLine;
pub use store::{Recorder, Store};

mod folder;
pub mod read;
mod recording;
mod records;
mod store;
#[cfg(test)]
mod tests;
mod warc_file;
