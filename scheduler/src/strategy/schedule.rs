//! Plans many sites together for `earliest-finish`: which agent crawls which site, in what order,
//! and how long each crawl takes.

mod cost;
pub(super) mod crawl_duration;
mod exchange;
mod order;
mod plan;
pub mod preemption;
mod slots;
pub(super) mod usual_size;

pub use order::{Job, PlannedSite};
pub use plan::{AHEAD, plan};
pub use slots::{frees, remaining};
