//! `lab bench`: prints measured figures, one per line, with their targets.
//!
//! A section is one benchmark. `SECTIONS` lists all sections except `waiting`, which takes half an
//! hour or more. Measured times vary between runs, so most sections repeat each measurement in one
//! process, and print medians.

mod accuracy;
mod bench_scheduler;
pub mod bench_site;
pub mod crawl;
pub mod crowd;
mod decide;
mod leases_backup_traces;
mod line;
mod lying_agents;
mod million;
mod plan_and_report;
mod sections;
mod simulated_agent;
mod speed_and_refined;
mod status;
mod submits;
mod trust;
mod waiting;
mod waiting_tasks;
mod warc;

pub use self::sections::{BenchArgs, bench};
