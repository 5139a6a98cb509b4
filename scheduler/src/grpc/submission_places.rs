//! The places for submissions, which bound the memory that submissions take together.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// Maximum number of submissions at once, small ones and those that wait for a place among the
/// large ones. Each keeps at most 10,000 names, about 2 MB.
pub(in crate::grpc) const MOST_AT_ONCE: usize = 64;
/// Maximum number of large submissions at once. Each keeps at most a million names, about
/// 200 MB. Further ones wait, and meanwhile their clients cannot send.
const LARGE_AT_ONCE: usize = 2;

/// The places for submissions, which bound the memory that they take together.
#[derive(Debug, Clone)]
pub struct SubmissionPlaces {
    pub(in crate::grpc) all: Arc<Semaphore>,
    pub(in crate::grpc) large: Arc<Semaphore>,
}

impl Default for SubmissionPlaces {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(MOST_AT_ONCE)), large: Arc::new(Semaphore::new(LARGE_AT_ONCE)) }
    }
}
