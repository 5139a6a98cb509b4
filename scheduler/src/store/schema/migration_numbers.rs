//! Numbers of migrations: which is the newest of this program, and which numbers are times.

use crate::store::MIGRATOR;

/// The lowest migration number of builds before the first release, which numbered their migrations
/// by time. The migration numbers of releases start at 1.
pub const NUMBERED_BY_TIME: i64 = 10_000_000_000_000;

/// The number of the newest migration in this program.
pub fn newest() -> i64 {
    MIGRATOR.iter().map(|migration| migration.version).max().unwrap_or(0)
}
