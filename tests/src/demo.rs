//! `lab demo`: runs the whole system on one machine, measures it, and checks the results.
//!
//! The exit code is 0 only if the database and the sites' own logs agree that every site was
//! crawled exactly once. With `--strict`, the demo also fails if a target is missed, or if the
//! machine was too busy for reliable times.

mod args;
mod check_input;
mod elect_and_crawl;
mod printed_result;
mod progress;
pub mod report;
mod run;
mod targets;
mod verbose_output;

pub use self::args::DemoArgs;
pub use self::run::demo;
