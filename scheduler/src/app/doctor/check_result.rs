//! The struct `CheckResult` holds what a check found, and what the operator should do.

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
