//! What became of a task at the agent that was chosen for it before: from the words in the store to the type.

use crate::explain::{Absence, Parting};

/// What is stored of a former choice's agent and of its lease of the task, where it had one.
pub(super) struct Found<'a> {
    pub(super) lease: Option<&'a str>,
    pub(super) crashed: bool,
    pub(super) end_cause: Option<&'a str>,
    pub(super) removed: bool,
    pub(super) drains: bool,
    /// Whether it has paused, and hung up; `None` where it has no active session.
    pub(super) there: Option<(bool, bool)>,
}

impl Found<'_> {
    pub(super) fn parting(&self) -> Parting {
        match (self.lease, self.end_cause) {
            (Some("expired"), Some("superseded")) => Parting::Restarted,
            (Some("expired"), Some("reconnected")) => Parting::Reconnected,
            (Some("expired"), Some("replaced")) => Parting::Replaced,
            (Some("expired"), Some("left")) => Parting::Left,
            (Some("expired"), Some("removed")) => Parting::Removed,
            (Some("expired"), Some("restored")) => Parting::Restored,
            (Some("expired"), _) => Parting::Lost,
            (Some(_), _) if self.crashed => Parting::Crashed,
            (Some(_), _) => Parting::HandedBack { drains: self.drains },
            (None, _) => Parting::NotBegun(match self.there {
                _ if self.removed => Absence::Removed,
                _ if self.drains => Absence::Drains,
                None => Absence::Away,
                Some((_, true)) => Absence::HungUp,
                Some((true, _)) => Absence::Paused,
                Some(_) => Absence::Excluded,
            }),
        }
    }
}
