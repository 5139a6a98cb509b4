//! The section `[landmarks]`: when a lost landmark is replaced.

use std::time::Duration;

use serde::Deserialize;

use super::error::ConfigError;
use super::section::{MINUTE, SECOND, Setting, YEAR, section, within};

section! {
    /// How lost landmarks are replaced.
    LandmarksConfig "landmarks" {
        /// How long an elected landmark may be disconnected before another is elected to replace
        /// it, 10 s to 365 days. A restart or a brief loss of the connection should not change the
        /// map. A landmark set by hand is never replaced.
        replace_after: Duration = 10 * MINUTE, 10 * SECOND..=YEAR;
    }
}
