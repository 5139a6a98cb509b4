//! These functions await the facts of a check, and fail the check after a time limit.

use std::time::Duration;

use super::check_result::CheckResult;

/// Maximum time of one check. A healthy server answers within milliseconds, and a name server
/// within two seconds. Even if nothing answers, the whole command should take no more than 15 s.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Awaits the facts of a check. Fails the check if that takes too long.
pub(crate) async fn in_time<T>(check: &'static str, facts: impl Future<Output = T>) -> Result<T, CheckResult> {
    tokio::time::timeout(PATIENCE, facts).await.map_err(|_| {
        let text = format!("no answer within {} s", PATIENCE.as_secs());
        CheckResult::wrong(check, text, "check whether a disk, a name server or a server on the network hangs")
    })
}

/// Reads facts on a thread that is allowed to block, because a disk may hang.
pub(super) async fn reading<T: Send + 'static>(
    check: &'static str,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, CheckResult> {
    let read = in_time(check, tokio::task::spawn_blocking(read)).await?;
    read.map_err(|error| CheckResult::wrong(check, format!("the check failed: {error}"), "report this as a fault"))
}
