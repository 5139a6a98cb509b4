//! Places one host relative to agents whose coordinates are fixed (section 2.1 of the paper that
//! the README cites, step c; "ordinary host operations" in Ng and Zhang's paper).
//!
//! Nine landmarks barely determine eight dimensions and a height, so a search that minimises only
//! the error could place a host far from all agents. To prevent this, the search starts at the
//! agents' positions that explain the measurements best, and a weak prior favours places near
//! agents.

mod host_cost;
mod locator;
mod nearest_agents;
mod search_and_starts;

pub(super) use locator::{Descent, place_with_switches};
pub use locator::{LocateError, Locator};
pub use nearest_agents::{Nearest, RaggedCoordinates};
pub use search_and_starts::Solver;
pub(super) use search_and_starts::{SimplexError, StopRule};
