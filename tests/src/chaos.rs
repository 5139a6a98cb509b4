//! `lab chaos`: injects faults of every kind while a batch is crawled. A judge then determines
//! which work was lost or done twice.
//!
//! Several schedulers share one Postgres, and agents connect to them through proxies. The schedule
//! of faults is drawn from a seed. The exit code is 0 only if the judge found no violation. If the
//! judge found a violation, the record of the run is kept.

mod args;
pub mod client;
pub mod fault_tools;
pub mod inject;
pub mod judge;
pub mod proxy;
pub mod recorder;
pub mod report_and_rejudge;
mod run;
pub mod schedule;

pub use self::args::{ChaosArgs, Format};
pub use self::run::chaos;
