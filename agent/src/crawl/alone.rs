//! Whether crawls are on their own: the way to the scheduler is broken, or nothing was heard of it for long.
//!
//! A scheduler that is away can slow nobody down, and when the lease has ended the site may be another's. So crawls go slower at once,
//! and stop at the deadline if it does not come back.

use std::sync::{Arc, Mutex, PoisonError};

use crate::clock::BootTime;

/// From when on an agent's crawls are on their own. Clones are the same one; of a crawl without a scheduler it is never so.
#[derive(Debug, Clone, Default)]
pub struct Alone(Arc<Mutex<Option<BootTime>>>);

impl Alone {
    /// It is so from this moment on, unless another is named before.
    pub fn begins_at(&self, moment: BootTime) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(moment);
    }

    /// Whether it is so now.
    pub fn is_so(&self) -> bool {
        let from = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        from.is_some_and(|from| from.remaining(BootTime::now()).is_zero())
    }
}
