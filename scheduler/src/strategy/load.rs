//! Compares agents' queues, and balances them.
//!
//! Queues of different agents are compared by the time until the last task would end: the number of
//! crawls per slot, computed from the load level, times the agent's pace.

pub mod balance;
pub(super) mod level;
mod pace;
pub(super) mod rank;

pub use level::LoadLevel;
pub use pace::{CRAWLS_PACED, LONGEST_MS, PastCrawls};
pub use rank::LISTED;
