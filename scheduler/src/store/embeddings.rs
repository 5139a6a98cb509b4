//! Embeddings: fits of the landmarks, each with the placements of all agents.
//!
//! Invariants: epochs only rise. An embedding and its agents' placements are stored in one
//! transaction, and only if no other embedding has become the newest since the fit began. The store
//! keeps the newest few embeddings, and any embedding in which a site with an open task is placed.
//! Of any other embedding, the store keeps only a line in the history.

pub(crate) mod landmarks;
mod maps;
pub(crate) mod placements;
mod when_to_fit;

pub use maps::{
    Epoch, NewEmbedding, clock, history, history_before, latest, latest_epoch, next_epoch, prune, stored,
    stored_epochs, take_over,
};
pub use when_to_fit::{
    FitRequest, Newest, answer_fit, ask_for_fit, fit_request, newest, pairs_measured_since, refuse_fit,
};
