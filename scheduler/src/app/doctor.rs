//! `landfall doctor`: checks everything that a scheduler needs on its machine, and suggests a
//! remedy for each fault.
//!
//! Each check has a file in the folder `doctor`, with functions that read the facts about one
//! subject, and functions that judge these facts. Doctor changes nothing and takes no lock, so it
//! may run before the first start and while a scheduler runs. The checks run at the same time, each
//! with a time limit.

mod account;
mod certificates;
mod check_result;
mod clock;
mod configuration;
mod data_dir;
mod database;
mod examination;
mod names;
mod package_paths;
mod port;
mod served_certificate;
mod time_limit;

pub(crate) use certificates::of_scheduler;
pub(crate) use check_result::{CheckResult, State};
pub(crate) use examination::{Examination, examine};
pub(crate) use package_paths::with_default_paths;
pub(crate) use time_limit::in_time;

#[cfg(test)]
mod tests;
