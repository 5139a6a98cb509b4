//! Maps errors to gRPC statuses. No other module does this.
//!
//! The message of a status is one sentence in plain words. Internal causes are logged here, once,
//! and not sent. Every match is exhaustive, so a new error must be given an explicit code.

use std::error::Error as _;
use std::io;
use std::sync::Arc;

use tonic::{Code, Status};

use super::answers::NoAnswer;
use super::auth::AuthError;
use super::operator::capacity_plan::PlanError;
use super::operator::convert::InvalidField;
use super::operator::landmarks::ChoiceError;
use super::operator::named::{Ambiguous, Unknown};
use crate::capacity::CapacityError;
use crate::store;
use crate::store::agents::drain_remove_and_tag::DrainError;
use crate::store::agents::issued_tokens::{RedeemError, RevokeError};
use crate::store::agents::new_enrolments::CreateError;
use crate::store::agents::sessions::{EndCause, OpenError};
use crate::store::batches::cancel_and_retry::ChangeError;
use crate::store::batches::changes::BeginError;
use crate::store::batches::submissions::SubmitError;
use crate::store::db::{MayConflict, conflict_in};
use crate::wake::DatabaseState;

/// `Unavailable` if the database is unreachable or read-only, its disk is full, it asks for a retry,
/// or another transaction holds a lock; otherwise `Internal`.
impl From<store::Error> for Status {
    fn from(error: store::Error) -> Self {
        if error.has_zero_character() {
            return Self::invalid_argument("a text contains the character U+0000, which no name may have");
        }
        if let store::Error::DiskFull(_) = error {
            let said = error.to_string();
            tracing::error!(error = format!("{:#}", anyhow::Error::from(error)), "a request was refused");
            return Self::unavailable(said);
        }
        if error.is_conflict() {
            // `Db::tx` repeats the transaction, and logs a transaction that it gives up.
            let mut status = away();
            status.set_source(Arc::new(error));
            return status;
        }
        if error.is_locked() {
            tracing::warn!(error = chain(&error), "a request waited too long for a lock");
            return Self::unavailable("another transaction in the database holds what this changes: try again");
        }
        let (passing, read_only) = (error.passes(), error.is_read_only());
        let chain = chain(&error);
        if read_only {
            // The watcher of the database logs once that it is read-only.
            tracing::debug!(error = chain, "a change was refused");
            unusable(DatabaseState::ReadOnly)
        } else if passing {
            tracing::warn!(error = chain, "the database does not answer");
            away()
        } else {
            tracing::error!(error = chain, "a request failed inside the scheduler");
            failed()
        }
    }
}

impl MayConflict for Status {
    fn is_conflict(&self) -> bool {
        conflict_in(self)
    }
}

impl From<NoAnswer> for Status {
    fn from(none: NoAnswer) -> Self {
        match none {
            NoAnswer::Silent => away(),
            // The panic has been logged.
            NoAnswer::Panicked => failed(),
        }
    }
}

/// The error with its causes. sqlx's text of an error of the database already contains the cause.
fn chain(error: &store::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.ends_with(&said) {
            text += &format!(": {said}");
        }
        next = cause.source();
    }
    text
}

/// The status `Unavailable`, because the caller can repeat the request.
pub(super) fn away() -> Status {
    unusable(DatabaseState::Silent)
}

pub(super) fn unusable(state: DatabaseState) -> Status {
    Status::unavailable(format!("{state}: try again"))
}

/// The code is `InvalidArgument`, and the message names the field.
impl From<InvalidField> for Status {
    fn from(error: InvalidField) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

/// The code is `NotFound`, and the message names the unknown object.
impl From<Unknown> for Status {
    fn from(error: Unknown) -> Self {
        Self::not_found(error.to_string())
    }
}

/// The code is `FailedPrecondition`, and the message lists the names that the request may refer to.
impl From<Ambiguous> for Status {
    fn from(error: Ambiguous) -> Self {
        Self::failed_precondition(error.to_string())
    }
}

/// Converts errors to statuses. Each arm names the code; the message is the error's text. An error
/// that only wraps another error gets the status of the inner error.
macro_rules! codes {
    ($($error:ident { $($arms:tt)+ })+) => {$(
        impl From<$error> for Status {
            fn from(error: $error) -> Self {
                use $error as E;
                let code = match error { $($arms)+ };
                Self::new(code, error.to_string())
            }
        }

        impl MayConflict for $error {
            fn is_conflict(&self) -> bool {
                conflict_in(self)
            }
        }
    )+};
}

codes! {
    AuthError {
        E::Missing | E::WrongOperatorToken | E::ReplacedOperatorToken(_) => Code::Unauthenticated,
        E::WrongCredential | E::Removed(_) => Code::Unauthenticated,
        E::Replaced { .. } => Code::PermissionDenied,
        E::Store(error) => return error.into(),
    }
    RedeemError {
        E::Unknown => Code::NotFound,
        E::Used { .. } | E::Revoked { .. } | E::Expired { .. } | E::InUse(_) => Code::FailedPrecondition,
        E::Randomness(cause) => return no_randomness(&cause),
        E::Store(error) => return error.into(),
    }
    CreateError {
        E::Refused(_) => Code::FailedPrecondition,
        E::Randomness(cause) => return no_randomness(&cause),
        E::Store(error) => return error.into(),
    }
    RevokeError {
        E::Unknown(_) => Code::NotFound,
        E::Used { .. } | E::Expired { .. } => Code::FailedPrecondition,
        E::Store(error) => return error.into(),
    }
    SubmitError {
        E::Policy(_) | E::KeyOfOtherSubmission { .. } => Code::InvalidArgument,
        E::NoContactUrl
        | E::BeingRemoved(_)
        | E::BeingCancelled(_)
        | E::OtherStrategy { .. }
        | E::TooFewAgents { .. }
        | E::IgnoresLoad(_)
        | E::Differs { .. } => Code::FailedPrecondition,
        // With `Unavailable`, clients would retry at once, which does not help if the disk is full.
        E::Store(error @ store::Error::DiskFull(_)) => {
            return Self::resource_exhausted(format!("{}; nothing was submitted", Self::from(error).message()));
        }
        E::Store(error) => return error.into(),
    }
    PlanError {
        E::UnknownAgent(_) | E::UnknownNear(_) => Code::NotFound,
        E::Repeated(_) | E::Taken(_) | E::NoPart(..) | E::Strategy(_) => Code::InvalidArgument,
        E::Unplaced { .. } | E::TooManySites(_) => Code::FailedPrecondition,
        E::Stopping => Code::Unavailable,
        E::Capacity(cause) => return cause.into(),
        E::Store(error) => return error.into(),
    }
    CapacityError {
        E::Unforeseen { .. } | E::NobodyLeft(_) | E::NothingToSuggest => Code::InvalidArgument,
        E::NoAgents(_) | E::NoSites => Code::FailedPrecondition,
        // An agent's stored data are inconsistent; the request is not at fault.
        cause @ E::Coordinate(_) => return store::Error::inconsistent("agent_placements", "coordinate", &cause).into(),
    }
    ChoiceError {
        E::UnknownAgent(_) => Code::NotFound,
        E::Repeated(_) | E::TooManyDimensions { .. } | E::TooFewAsked(_) => Code::InvalidArgument,
        E::TooFewBeacons { .. } | E::MeshIncomplete { .. } | E::Elect { .. } => Code::FailedPrecondition,
        E::Interrupted(_) | E::Left => Code::Unavailable,
        E::Store(error) => return error.into(),
    }
    ChangeError {
        E::NotInBatch { .. } | E::Done { .. } => Code::FailedPrecondition,
        E::Locked(_) => Code::Unavailable,
        E::Store(error) => return error.into(),
    }
    BeginError {
        E::Running { .. } | E::Open { .. } | E::Submitting(_) => Code::FailedPrecondition,
        E::Store(error) => return error.into(),
    }
    DrainError {
        E::Unknown(_) | E::NotYet(_) => Code::NotFound,
        E::Removed { .. } | E::HoldsLeases { .. } => Code::FailedPrecondition,
        E::Store(error) => return error.into(),
    }
    OpenError {
        E::Removed => Code::Unauthenticated,
        E::Taken(_) => Code::Aborted,
        E::Flapping { .. } => Code::ResourceExhausted,
        E::Store(error) => return error.into(),
    }
}

fn no_randomness(cause: &io::Error) -> Status {
    tracing::error!(error = %cause, "the operating system gave no randomness");
    failed()
}

/// The status `Internal`. The cause has been logged and is not sent.
pub(super) fn failed() -> Status {
    Status::internal("the scheduler failed: its log has the cause")
}

/// The status for an agent whose session has ended: `Aborted` if another process superseded the
/// session, `Unauthenticated` if the agent was removed, `PermissionDenied` if another machine was
/// enrolled as this agent. In all other cases `Unavailable`, because the agent may reconnect at
/// once.
pub(super) fn from_end(cause: Option<EndCause>) -> Status {
    match cause {
        Some(EndCause::Superseded) => Status::aborted(
            "superseded: another process has connected with this agent's credential, and only the newest connection \
             is valid",
        ),
        Some(EndCause::Reconnected) => Status::unavailable("this agent has reconnected, and this is its former stream"),
        Some(EndCause::Removed) => Status::unauthenticated("this agent was removed by the operator"),
        Some(EndCause::Replaced) => {
            Status::permission_denied("this agent was moved to another machine, and this one's credential is void")
        }
        Some(EndCause::Expired) => Status::unavailable("this session was not renewed in time: register again"),
        Some(EndCause::Left | EndCause::Restored) | None => {
            Status::unavailable("this session has ended: register again")
        }
    }
}

/// The status `FailedPrecondition`, because a caller that uses the operator's former token must not
/// replace the new token.
pub(super) fn former_token() -> Status {
    Status::failed_precondition("this operator's token was already replaced: use the new token to replace it again")
}

/// The status `Unavailable`, because the scheduler is stopping.
pub(super) fn stopping() -> Status {
    Status::unavailable("the scheduler is stopping: try again")
}

/// The status `Unavailable`, because strangers' calls end soon. Agents repeat such a call soon.
pub(super) fn crowded() -> Status {
    Status::unavailable("too many calls without a right token or credential are open: try again")
}

/// The status `ResourceExhausted`, for a request that needs no secret.
pub(super) fn oversized(most: usize) -> Status {
    Status::resource_exhausted(format!("this request may have at most {most} bytes"))
}

/// The status `DeadlineExceeded`, because the client did not finish its request.
pub(super) fn unfinished() -> Status {
    Status::deadline_exceeded("the request did not end in time")
}

/// The status `DeadlineExceeded`, because the client stopped sending.
pub(super) fn stalled() -> Status {
    Status::deadline_exceeded("the submission stalled: nothing was stored")
}
