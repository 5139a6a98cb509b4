//! Outcomes: the reports of finished crawls, at most one per task.
//!
//! An outcome is accepted only with the task's newest token and from the agent that received this
//! token. A repeated outcome is a duplicate if it equals the accepted outcome; otherwise it is
//! refused as a contradiction. An outcome with another token, or from another agent, is refused
//! too. A refusal is counted and changes nothing else.

mod acceptance;
mod hosts;
mod last_pages;
mod locked_task;
mod outcome_report;
mod recording;

pub use acceptance::OutcomeAnswer;
pub use last_pages::last_pages;
pub use outcome_report::OutcomeReport;
pub use recording::record_all;
