//! `lab chaos`: injects faults of every kind while a batch is crawled. A judge then determines
//! which work was lost or done twice.
//!
//! Several schedulers share one Postgres, and agents connect to them through proxies. The schedule
//! of faults is drawn from a seed. The exit code is 0 only if the judge found no violation. If the
//! judge found a violation, the record of the run is kept.

mod args;
mod await_end;
pub mod client;
mod crawl_under_faults;
pub mod disks;
pub mod inject;
pub mod judge;
mod lease_times;
pub mod prepare;
pub mod proxy;
pub mod record;
pub mod rejudge;
pub mod report;
mod run;
pub mod schedule;
mod survey;
pub mod twins;

pub use self::args::{ChaosArgs, Format};
pub use self::run::chaos;
