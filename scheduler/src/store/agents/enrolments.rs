//! Enrolments: one-time tokens, which agents exchange for credentials.
//!
//! Invariants: only a token's hash is stored. A token is exchanged at most once, because each
//! exchange locks the token's row. A name has at most one open token (neither used, revoked nor
//! expired). A token replaces an agent in use (one that has not been removed) only if the token was
//! made for that purpose. The replacement is a single transaction, which voids the agent's previous
//! credential, ends its session and releases its leases.

mod agent_request;
mod names;
mod token_creation;
mod token_exchange;
mod tokens;

pub use agent_request::{AgentRequest, Name};
pub use names::NameRefusal;
pub use token_creation::{CreateError, Enrolment, create};
pub use token_exchange::{RedeemError, RedeemResult, redeem};
pub use tokens::{RevokeError, RevokedToken, State, Token, is_open, list, not_yet, open_tokens, prune, revoke};
