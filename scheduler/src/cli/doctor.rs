//! `landfall doctor`: checks a scheduler and its machine, or a scheduler on another machine, and
//! prints what to do about each fault.

mod fleet;
mod report;
mod run_checks;

pub(super) use run_checks::DoctorArgs;
