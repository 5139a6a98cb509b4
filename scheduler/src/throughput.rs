//! Throughput: the progress of a batch over time, and its remaining time.
//!
//! The store sums the pages and bytes of crawls by time slice ([`Slice`]). [`growth()`] computes
//! totals and rates from these sums. A crawl's pages and bytes are assumed to be spread evenly over
//! its duration. The remaining time is estimated from the durations of crawls ([`estimate`]).

mod growth_and_rates;
mod remaining_time;

pub use growth_and_rates::{
    Amount, BYTES_PER_MEGABYTE, Growth, RATE_WINDOW, Slice, Total, growth, megabytes_per_minute, per_minute,
};
pub use remaining_time::{
    BegunCrawl, Estimate, FEWEST_RECENT, RecentCrawls, Remaining, StallReason, StalledCrawls, estimate,
};
