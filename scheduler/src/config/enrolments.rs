//! How long enrolment tokens are remembered that cannot be used any more.

use std::time::Duration;

use serde::Deserialize;

use super::{ConfigError, DAY, MINUTE, YEAR, within};

/// One-time tokens.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EnrolmentsConfig {
    /// How long a token is remembered after its time was over, 1 h to 365 days, whether it was used, revoked or neither: so long it
    /// stands in `landfall agents tokens --all`, and who comes with it is told what became of it.
    #[serde(with = "humantime_serde")]
    pub keep: Duration,
}

impl Default for EnrolmentsConfig {
    fn default() -> Self {
        Self { keep: 30 * DAY }
    }
}

impl EnrolmentsConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        within("enrolments.keep", self.keep, &(60 * MINUTE..=YEAR))
    }
}
