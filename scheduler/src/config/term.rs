//! The section `[term]`: how long an unresponsive scheduler keeps its roles.

use std::time::Duration;

use serde::Deserialize;

use super::error::ConfigError;
use super::section::{MINUTE, SECOND, Setting, TENTH, section, within};

section! {
    /// How roles pass from one scheduler to another.
    TermConfig "term" {
        /// How long an unresponsive scheduler keeps its roles, 300 ms to 1 min. A leader renews its
        /// roles four times within this time. With a shorter time, another scheduler takes over
        /// sooner after a crash; with a longer time, roles survive a brief stall of the database or
        /// machine. All schedulers of one database should use the same value.
        life: Duration = 5 * SECOND, 3 * TENTH..=MINUTE;
    }
}
