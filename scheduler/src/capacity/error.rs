//! Defines the reasons why a plan or a suggestion cannot be computed.

use crate::model::{EmbeddingEpoch, Strategy};

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CapacityError {
    /// The strategy uses more than distances, so its choices cannot be predicted from a map.
    #[error("a plan supports random and gnp-top1 to gnp-top{most}, but not {strategy}")]
    Unforeseen {
        strategy: Strategy,
        /// The largest K of `gnp-topK` that a plan supports.
        most: usize,
    },
    #[error(
        "no agent has a place in embedding {0} yet: `landfall embedding show` lists the agents once they are measured"
    )]
    NoAgents(EmbeddingEpoch),
    #[error("no agent would remain: all agents with a place in embedding {0} are removed, and none is added")]
    NobodyLeft(EmbeddingEpoch),
    #[error(
        "no site is located yet: submit sites, and plan again when they are located (`landfall batches show` shows \
         the progress)"
    )]
    NoSites,
    /// The strategy ignores distances, so new agents at suggested locations would not help.
    #[error("random ignores distances, on which suggestions are based: use gnp-top1 or gnp-top3")]
    NothingToSuggest,
    /// The coordinate has the wrong length, is not finite, or has a negative height.
    #[error("a coordinate is not one of {0} dimensions and a height")]
    Coordinate(usize),
}
