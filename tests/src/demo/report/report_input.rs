//! What the demo's report shows: the data and the figures of a run.

use std::time::Duration;

use landfall_scheduler::model::Strategy;

use crate::demo::targets::Target;
use crate::evidence::batch_record::BatchRecord;
use crate::evidence::check::Check;
use crate::evidence::figures::Figures;
use crate::world::scenario::Scenario;

#[derive(Debug)]
pub struct ReportInput<'a> {
    pub scenario: &'a Scenario,
    pub record: &'a BatchRecord,
    pub figures: &'a Figures,
    pub targets: &'a [Target],
    pub checks: &'a [Check],
    /// The sites' names as submitted, by site index.
    pub sites: &'a [String],
    pub strategy: Strategy,
    pub took: Duration,
    /// Why the run's times are unreliable; `None` if they are reliable.
    pub busy: Option<&'a str>,
}
