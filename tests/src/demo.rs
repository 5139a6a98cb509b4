//! `lab demo`: runs the whole system on one machine, measures it, and checks the results.
//!
//! The exit code is 0 only if the database and the sites' own logs agree that every site was
//! crawled exactly once. With `--strict`, the demo also fails if a target is missed, or if the
//! machine was too busy for reliable times.

mod printed_output;
mod report_charts;
pub(crate) mod report_page;
mod run;
mod targets;

pub use self::run::{DemoArgs, demo};
