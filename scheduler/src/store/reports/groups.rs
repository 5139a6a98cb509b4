//! The properties by which a report groups its rows.

use crate::model::words;

words!(
    /// A property by which a report groups its rows. The report has one row for each value, or for
    /// each combination of values of several properties.
    ReportGroup {
        Agent = "agent",
        /// The agent's city.
        City = "city",
        /// The agent's carrier.
        Carrier = "carrier",
        /// The day, in UTC.
        Day = "day",
        /// The kind of reason why sites failed.
        Reason = "reason",
        Batch = "batch",
    }
);

/// The properties by which rows are grouped: one row for each combination of their values. If no
/// property is set, there is only one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Groups {
    pub agent: bool,
    pub city: bool,
    pub carrier: bool,
    pub day: bool,
    pub reason: bool,
    pub batch: bool,
}

impl Groups {
    pub fn of(groups: &[ReportGroup]) -> Self {
        let has = |group| groups.contains(&group);
        Self {
            agent: has(ReportGroup::Agent),
            city: has(ReportGroup::City),
            carrier: has(ReportGroup::Carrier),
            day: has(ReportGroup::Day),
            reason: has(ReportGroup::Reason),
            batch: has(ReportGroup::Batch),
        }
    }
}
