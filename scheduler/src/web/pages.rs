//! The pages of the dashboard. Each page is drawn from the answers of the operators' services.

pub(super) mod agents;
pub(super) mod batches_and_sites;
pub(super) mod map;
pub(super) mod map_errors;
pub(super) mod overview_and_trends;
