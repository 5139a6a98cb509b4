//! Limits what anybody who reaches the port can take of the scheduler.
//!
//! A connection belongs to a stranger until a request on it has presented a right secret. Strangers
//! get few connections and calls, and little time; when they are too many, the oldest of them are
//! closed, so that a newcomer with a secret always finds a place. Connections of agents and
//! operators have no time limit. Wrong secrets are slowed for each peer before they cause any work
//! of the database. Everything that is refused is counted, and logged once a minute.

pub(crate) mod connections;
pub(crate) mod guesses;
mod limits;
pub mod refusals;

pub use limits::Port;
