//! Errors to statuses, and nowhere else.
//!
//! A status carries one sentence for people. Causes inside the scheduler are logged here, once, and not sent. Every match
//! is exhaustive, so that a new error has to say which code it is.

use std::io;

use tonic::Status;

use crate::landmark_choice::ChoiceError;
use crate::plan::PlanError;
use crate::store;
use crate::store::batch_changes::ChangeError;
use crate::store::drains::DrainError;
use crate::store::enrolments::{CreateError, RedeemError, RevokeError};
use crate::store::removal::RemoveError;
use crate::store::sessions::{EndCause, OpenError};
use crate::store::submissions::SubmitError;
use crate::whatif::WhatIfError;

use super::auth::AuthError;
use super::convert::InvalidField;

/// Something that was named and is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// A batch.
    #[error("no batch is called '{0}'")]
    Batch(String),
    /// An agent.
    #[error("no agent is called {0}")]
    Agent(String),
    /// An agent that has nothing but an open token.
    #[error("{}", store::enrolments::not_yet(.0))]
    NotYet(String),
    /// A site.
    #[error("no site is known as '{0}'")]
    Site(String),
    /// A site in a batch.
    #[error("batch {batch} does not have {site}")]
    InBatch {
        /// The batch.
        batch: String,
        /// The site.
        site: String,
    },
    /// A round of a batch.
    #[error("batch {batch} has no round {round}: {}", newest.map_or("it has no site".to_owned(), |newest| format!("its newest is {newest}")))]
    Round {
        /// The batch.
        batch: String,
        /// What was asked for.
        round: u32,
        /// The newest there is.
        newest: Option<u32>,
    },
    /// A choice for a site.
    #[error("{site} has no choice {number}: `landfall explain {site}` lists those it has")]
    Choice {
        /// The site.
        site: String,
        /// What was asked for.
        number: i64,
    },
}

/// `Unavailable` when the database is away, has no room or asks to try again, `Internal` otherwise.
pub fn from_store(error: store::Error) -> Status {
    let passing = match &error {
        store::Error::Database(cause) => passes(cause),
        store::Error::DiskFull(_) => {
            let said = error.to_string();
            tracing::error!(error = format!("{:#}", anyhow::Error::from(error)), "a request was refused");
            return Status::unavailable(said);
        }
        store::Error::Inconsistent { .. }
        | store::Error::Schema(_)
        | store::Error::NewerSchema(_)
        | store::Error::HalfRestored => false,
    };
    let chain = format!("{:#}", anyhow::Error::from(error));
    if passing {
        tracing::warn!(error = chain, "the database is away");
        away()
    } else {
        tracing::error!(error = chain, "a request failed inside the scheduler");
        Status::internal("the scheduler failed: its log says why")
    }
}

/// `Unavailable`: what was asked of the database may be asked again.
pub fn away() -> Status {
    Status::unavailable("the database is away: try again")
}

/// Whether the same statement may succeed later: the connection failed, or Postgres is stopping, starting or resolving a
/// conflict (classes 08, 40, 53 and 57).
fn passes(cause: &sqlx::Error) -> bool {
    if let sqlx::Error::Database(error) = cause {
        return error.code().is_some_and(|code| ["08", "40", "53", "57"].iter().any(|class| code.starts_with(class)));
    }
    matches!(
        cause,
        sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
    )
}

/// `Unauthenticated`, `PermissionDenied` for good, or what the store says.
pub fn from_auth(error: AuthError) -> Status {
    match error {
        AuthError::Replaced { .. } => Status::permission_denied(error.to_string()),
        AuthError::Missing
        | AuthError::WrongOperatorToken
        | AuthError::ReplacedOperatorToken(_)
        | AuthError::WrongCredential
        | AuthError::Removed(_) => Status::unauthenticated(error.to_string()),
        AuthError::Store(error) => from_store(error),
    }
}

/// `InvalidArgument`; the message names the field.
#[expect(clippy::needless_pass_by_value, reason = "taken by map_err")]
pub fn from_field(error: InvalidField) -> Status {
    Status::invalid_argument(error.to_string())
}

/// `NotFound`; the message names what is missing.
#[expect(clippy::needless_pass_by_value, reason = "taken by map_err")]
pub fn from_unknown(error: Unknown) -> Status {
    Status::not_found(error.to_string())
}

/// An unknown token is `NotFound`, one that was used or cannot be any more `FailedPrecondition`.
pub fn from_redeem(error: RedeemError) -> Status {
    match error {
        RedeemError::Unknown => Status::not_found(error.to_string()),
        RedeemError::Used { .. }
        | RedeemError::Revoked { .. }
        | RedeemError::Expired { .. }
        | RedeemError::InUse(_) => Status::failed_precondition(error.to_string()),
        RedeemError::Randomness(cause) => from_randomness(&cause),
        RedeemError::Store(error) => from_store(error),
    }
}

/// `FailedPrecondition` for a name that gets no token.
pub fn from_create(error: CreateError) -> Status {
    match error {
        CreateError::Refused(_) => Status::failed_precondition(error.to_string()),
        CreateError::Randomness(cause) => from_randomness(&cause),
        CreateError::Store(error) => from_store(error),
    }
}

/// `NotFound` where there is no token, `FailedPrecondition` where it is not open.
pub fn from_revoke(error: RevokeError) -> Status {
    match error {
        RevokeError::Unknown(_) => Status::not_found(error.to_string()),
        RevokeError::Used { .. } | RevokeError::Expired { .. } => Status::failed_precondition(error.to_string()),
        RevokeError::Store(error) => from_store(error),
    }
}

/// `Internal`: the operating system gave no randomness.
pub fn from_randomness(cause: &io::Error) -> Status {
    tracing::error!(error = %cause, "the operating system gave no randomness");
    Status::internal("the scheduler failed: its log says why")
}

/// `FailedPrecondition` for what contradicts the state, `InvalidArgument` for a key of another batch, `ResourceExhausted` for a full
/// disk.
pub fn from_submit(error: SubmitError) -> Status {
    match error {
        SubmitError::Policy(_) => Status::invalid_argument(error.to_string()),
        SubmitError::NoContactUrl
        | SubmitError::BeingRemoved(_)
        | SubmitError::OtherStrategy { .. }
        | SubmitError::Differs { .. } => Status::failed_precondition(error.to_string()),
        SubmitError::KeyOfOtherBatch { .. } => Status::invalid_argument(error.to_string()),
        // Trying again at once helps nobody, as it would when the database is away.
        SubmitError::Store(error @ store::Error::DiskFull(_)) => {
            Status::resource_exhausted(format!("{}; nothing was submitted", from_store(error).message()))
        }
        SubmitError::Store(error) => from_store(error),
    }
}

/// `NotFound` for an unknown name, `InvalidArgument` for a request that contradicts itself, `FailedPrecondition` where too little is
/// located or placed.
pub fn from_plan(error: PlanError) -> Status {
    match error {
        PlanError::UnknownAgent(_) | PlanError::UnknownNear(_) => Status::not_found(error.to_string()),
        PlanError::Repeated(_) | PlanError::Taken(_) | PlanError::NoPart(..) | PlanError::Strategy(_) => {
            Status::invalid_argument(error.to_string())
        }
        PlanError::Unplaced { .. } | PlanError::TooManySites(_) => Status::failed_precondition(error.to_string()),
        PlanError::WhatIf(cause) => match cause {
            WhatIfError::Unforeseen(_) | WhatIfError::NobodyLeft(_) | WhatIfError::NothingToSuggest => {
                Status::invalid_argument(cause.to_string())
            }
            WhatIfError::NoAgents(_) | WhatIfError::NoSites => Status::failed_precondition(cause.to_string()),
            // What the store holds of an agent: no fault of who asks.
            WhatIfError::Coordinate(_) => {
                from_store(store::Error::inconsistent("agent_placements", "coordinate", &cause))
            }
        },
        PlanError::Stopping => Status::unavailable(error.to_string()),
        PlanError::Store(error) => from_store(error),
    }
}

/// `NotFound` for an unknown agent, `InvalidArgument` for a request that contradicts itself, `FailedPrecondition` for a
/// fleet that is not ready.
pub fn from_choice(error: ChoiceError) -> Status {
    match error {
        ChoiceError::UnknownAgent(_) => Status::not_found(error.to_string()),
        ChoiceError::Repeated(_) | ChoiceError::TooManyDimensions { .. } | ChoiceError::TooFewAsked(_) => {
            Status::invalid_argument(error.to_string())
        }
        ChoiceError::TooFewBeacons { .. } | ChoiceError::MeshIncomplete { .. } | ChoiceError::Elect { .. } => {
            Status::failed_precondition(error.to_string())
        }
        ChoiceError::Interrupted(_) => Status::unavailable(error.to_string()),
        ChoiceError::Store(error) => from_store(error),
    }
}

/// `FailedPrecondition`; the message names the sites.
pub fn from_change(error: ChangeError) -> Status {
    match error {
        ChangeError::NotInBatch { .. } | ChangeError::Done { .. } => Status::failed_precondition(error.to_string()),
        ChangeError::Store(error) => from_store(error),
    }
}

/// `FailedPrecondition` for a batch that has not ended.
pub fn from_remove(error: RemoveError) -> Status {
    match error {
        RemoveError::Open { .. } => Status::failed_precondition(error.to_string()),
        RemoveError::Store(error) => from_store(error),
    }
}

/// `NotFound` for an unknown agent, `FailedPrecondition` for one that was removed or holds leases.
pub fn from_drain(error: DrainError) -> Status {
    match error {
        DrainError::Unknown(_) | DrainError::NotYet(_) => Status::not_found(error.to_string()),
        DrainError::Removed { .. } | DrainError::HoldsLeases { .. } => Status::failed_precondition(error.to_string()),
        DrainError::Store(error) => from_store(error),
    }
}

/// `Unauthenticated` for an agent that was removed, `Aborted` for one whose place is taken, `ResourceExhausted` for one that
/// flaps.
pub fn from_open(error: OpenError) -> Status {
    match error {
        OpenError::Removed => Status::unauthenticated(error.to_string()),
        OpenError::Taken(_) => Status::aborted(error.to_string()),
        OpenError::Flapping { .. } => Status::resource_exhausted(error.to_string()),
        OpenError::Store(error) => from_store(error),
    }
}

/// How an agent is told that its session has ended: `Aborted` where another process took its place, `Unauthenticated` where
/// it was removed, `PermissionDenied` where another machine was enrolled in its place, else `Unavailable`, for it may come again at once.
pub fn from_end(cause: Option<EndCause>) -> Status {
    match cause {
        Some(EndCause::Superseded) => Status::aborted(
            "superseded: another process has connected with this agent's credential, and the newest counts",
        ),
        Some(EndCause::Reconnected) => {
            Status::unavailable("this agent has connected anew, and this is its former stream")
        }
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

/// `FailedPrecondition`: who has only the former operator's token must not lock out who has the new one.
pub fn former_token() -> Status {
    Status::failed_precondition("this operator's token was replaced and is good for a while: replace the new one")
}

/// `Unavailable`: the scheduler is stopping.
pub fn stopping() -> Status {
    Status::unavailable("the scheduler is stopping: try again")
}

/// `DeadlineExceeded`: the client stopped sending.
pub fn stalled() -> Status {
    Status::deadline_exceeded("the submission stalled: nothing was stored")
}
