//! Throughput: the progress of a batch over time, and its remaining time.
//!
//! The store sums the pages and bytes of crawls by time slice ([`Slice`]). [`growth()`] computes
//! totals and rates from these sums. A crawl's pages and bytes are assumed to be spread evenly over
//! its duration. The remaining time is estimated from the durations of crawls ([`estimate`]).

mod duration_distribution;
mod growth;
mod rates;
mod remaining;

pub use duration_distribution::BegunCrawl;
pub use growth::{Amount, Growth, Slice, Total, growth};
pub use rates::{BYTES_PER_MEGABYTE, RATE_WINDOW, megabytes_per_minute, per_minute};
pub use remaining::{Estimate, FEWEST_RECENT, RecentCrawls, Remaining, StallReason, StalledCrawls, estimate};
