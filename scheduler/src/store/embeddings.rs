//! Embeddings: fits of the landmarks, each with the placements of all agents.
//!
//! Invariants: epochs only rise. An embedding and its agents' placements are stored in one
//! transaction, and only if no other embedding has become the newest since the fit began. The store
//! keeps the newest few embeddings, and any embedding in which a site with an open task is placed.
//! Of any other embedding, the store keeps only a line in the history.

mod finished_fit;
mod fit_requests;
mod history;
pub(crate) mod landmarks;
pub(crate) mod lost_landmarks;
mod new_map;
pub(crate) mod outdated_placements;
pub(crate) mod placements;
mod pruning;
mod since_last_fit;
mod stored_map;

pub use finished_fit::NewEmbedding;
pub use fit_requests::{FitRequest, answer_fit, ask_for_fit, fit_request, refuse_fit};
pub use history::{Epoch, history};
pub use new_map::{clock, next_epoch, take_over};
pub use pruning::prune;
pub use since_last_fit::{Newest, newest, pairs_measured_since};
pub use stored_map::{latest, latest_epoch, stored, stored_epochs};
