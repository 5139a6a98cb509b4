//! How long the transactions for agents' messages wait for locks, and what a message does that has
//! waited too long.

use std::time::Duration;

use tonic::Status;

use crate::store;
use crate::store::db::MayConflict as _;

/// Maximum time that a transaction for an agent's message waits for a lock. This time is longer than
/// a transaction takes (tens of milliseconds), but short compared with the heartbeat interval.
pub(super) const LOCK_PATIENCE: Duration = Duration::from_millis(250);
/// Maximum time that the transaction which opens or closes a session, or enrols an agent, waits for a
/// lock. The agent's former session may be in a transaction whose commit takes a second on a slow
/// disk.
pub(super) const OPEN_PATIENCE: Duration = Duration::from_secs(2);
/// Why a message was not handled.
#[derive(Debug)]
pub(super) enum Unhandled {
    /// Another transaction has locked what the message changes. The message is handled later.
    Later,
    /// The session ends with this status.
    Ends(Status),
}

impl From<Status> for Unhandled {
    fn from(status: Status) -> Self {
        Self::Ends(status)
    }
}

impl From<store::Error> for Unhandled {
    fn from(error: store::Error) -> Self {
        if error.is_locked() || error.is_conflict() { Self::Later } else { Self::Ends(error.into()) }
    }
}
