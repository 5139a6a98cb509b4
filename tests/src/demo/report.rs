//! The report of a run: one self-contained HTML page with charts and tables. All values come from
//! the run.

mod axis_ticks;
mod bars;
mod map;
pub(crate) mod page;
mod report_input;
mod scatter;
mod tables;
mod throughput;

pub use page::page;
pub use report_input::ReportInput;
