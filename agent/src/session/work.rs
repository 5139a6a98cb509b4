//! The agent's work for the scheduler: crawls, measurements, and unacknowledged outcomes. The work
//! outlives sessions.
//!
//! Invariants: At most `capacity` crawls run, not counting those that are being stopped. Each lease
//! is crawled at most once. If a task had several leases, only the newest is crawled. The number of
//! unacknowledged outcomes is limited. At the deadline of the leases every crawl is stopped.

pub use agent_work::Work;

mod agent_work;
mod disks;
mod measurement_orders;
mod reported_state;
mod running_crawls;
mod start_crawl;
