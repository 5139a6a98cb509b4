//! Reads the wall clock.

use chrono::{DateTime, Utc};

/// The present time by this machine's clock.
#[expect(clippy::disallowed_methods, reason = "the outermost edge reads the clock, and passes the time on")]
pub(crate) fn now() -> DateTime<Utc> {
    Utc::now()
}
