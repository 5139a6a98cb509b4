//! The properties by which a report groups its rows.

use crate::model::ReportGroup;

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
