//! `landfall doctor`: checks everything that a scheduler needs on its machine, and suggests a
//! remedy for each fault.
//!
//! For each check, the folder `doctor` contains a function that reads the facts about one subject,
//! and a function that judges these facts. Doctor changes nothing and takes no lock, so it may run
//! before the first start and while a scheduler runs. The checks run at the same time, each with a
//! time limit.

mod check_result;
mod data_dir_and_configuration;
mod database;
mod examination;
mod host_name_and_clock;
mod port_and_certificates;

pub(crate) use check_result::{CheckResult, State, in_time};
pub(crate) use data_dir_and_configuration::with_default_paths;
pub(crate) use examination::{Examination, examine};
pub(crate) use port_and_certificates::of_scheduler;

#[cfg(test)]
mod tests;
