//! The result of a check: what it found, and what the operator should do. A check that takes too
//! long fails.

use std::time::Duration;

use serde::Serialize;

/// How well the subject of a check works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Ok,
    /// The subject works, but could be better.
    Note,
    /// The check does not apply here, or cannot be made now.
    Skip,
    Wrong,
}

impl State {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Skip => "skip",
            Self::Wrong => "WRONG",
        }
    }
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct CheckResult {
    pub(crate) check: &'static str,
    pub(crate) state: State,
    /// The finding, as shown to the operator.
    pub(crate) text: String,
    /// What the operator should do; `None` if nothing needs to be done.
    pub(crate) remedy: Option<String>,
}

impl CheckResult {
    pub(crate) fn ok(check: &'static str, text: impl Into<String>) -> Self {
        Self { check, state: State::Ok, text: text.into(), remedy: None }
    }

    pub(crate) fn note(check: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, state: State::Note, text: text.into(), remedy: Some(remedy.into()) }
    }

    pub(crate) fn skip(check: &'static str, text: impl Into<String>) -> Self {
        Self { check, state: State::Skip, text: text.into(), remedy: None }
    }

    pub(crate) fn wrong(check: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, state: State::Wrong, text: text.into(), remedy: Some(remedy.into()) }
    }
}

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
