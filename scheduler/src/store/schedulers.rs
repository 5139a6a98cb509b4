//! Schedulers: one row per running process, which the process renews. When the row expires, the
//! other schedulers know that the process is gone.
//!
//! A process keeps its roles as long as it renews its row. An expired row is never renewed, because
//! its process may have lost its roles; the process must register again.

mod list;
pub(crate) mod notices;
mod registration;
pub(crate) mod terms;

pub(in crate::store) use list::disk;
pub use list::{list, others};
pub use registration::{forget, join, leave, renew};
