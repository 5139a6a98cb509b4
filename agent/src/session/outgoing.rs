//! What waits for the transport, in order, and bounded in bytes.
//!
//! A scheduler that stalls reads nothing for as long as a lease lives, while every crawl has a checkpoint of up to a megabyte each minute.
//! So of one lease only the newest checkpoint waits, and beyond a budget none: the crawl goes on, and another follows.

use std::collections::VecDeque;

use landfall_proto::v1::session_request::Message as Up;
use landfall_proto::v1::{CrawlCheckpoint, SessionRequest};

/// Messages that may wait: what an agent of the largest capacity can owe, and some more. A scheduler that orders and orders
/// and never reads gets no further.
const MOST_MESSAGES: usize = 32_768;
/// Bytes of checkpoints that may wait of crawls that go on.
const MOST_BYTES: usize = 8 << 20;
/// And with those of crawls that ended: what they lose, another agent does again.
const MOST_BYTES_AT_ENDS: usize = 64 << 20;

#[derive(Debug, Default)]
pub(super) struct Outgoing {
    messages: VecDeque<Up>,
    checkpoint_bytes: usize,
}

impl Outgoing {
    /// Adds a message; checkpoints have ways of their own.
    pub(super) fn push(&mut self, message: Up) {
        self.messages.push_back(message);
    }

    pub(super) fn push_first(&mut self, message: Up) {
        self.messages.push_front(message);
    }

    /// Adds the checkpoint of a crawl that goes on, in place of one of its lease that was not sent.
    pub(super) fn push_checkpoint(&mut self, checkpoint: CrawlCheckpoint) {
        self.replace(checkpoint, MOST_BYTES);
    }

    /// Adds the last checkpoint of a crawl, likewise; what ends its lease must come after.
    pub(super) fn push_last_checkpoint(&mut self, checkpoint: CrawlCheckpoint) {
        self.replace(checkpoint, MOST_BYTES_AT_ENDS);
    }

    fn replace(&mut self, checkpoint: CrawlCheckpoint, most: usize) {
        let is_same = |message: &Up| matches!(message, Up::Checkpoint(old) if (old.task_id, old.token) == (checkpoint.task_id, checkpoint.token));
        let former = if self.checkpoint_bytes > 0 { self.messages.iter().position(is_same) } else { None };
        let freed = match former.and_then(|at| self.messages.get(at)) {
            Some(Up::Checkpoint(former)) => former.state.len(),
            _ => 0,
        };
        let bytes = self.checkpoint_bytes - freed + checkpoint.state.len();
        if bytes > most {
            let (task_id, token) = (checkpoint.task_id, checkpoint.token);
            tracing::debug!(task.id = task_id, token, bytes, "a checkpoint is left out: too much waits to be sent");
            return;
        }
        if let Some(at) = former {
            self.messages.remove(at);
        }
        self.checkpoint_bytes = bytes;
        self.messages.push_back(Up::Checkpoint(checkpoint));
    }

    pub(super) fn pop(&mut self) -> Option<SessionRequest> {
        let message = self.messages.pop_front()?;
        if let Up::Checkpoint(checkpoint) = &message {
            self.checkpoint_bytes -= checkpoint.state.len();
        }
        Some(SessionRequest { message: Some(message) })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn is_too_long(&self) -> bool {
        self.messages.len() > MOST_MESSAGES
    }
}

impl Extend<Up> for Outgoing {
    fn extend<T: IntoIterator<Item = Up>>(&mut self, messages: T) {
        self.messages.extend(messages);
    }
}

#[cfg(test)]
mod tests {
    use landfall_proto::v1::Leave;

    use super::*;

    fn checkpoint(task_id: i64, bytes: usize, pages: u32) -> CrawlCheckpoint {
        CrawlCheckpoint { task_id, token: 1, state: vec![7; bytes], pages, ..CrawlCheckpoint::default() }
    }

    /// Tasks and pages of the checkpoints that wait, in order.
    fn waiting(outgoing: &mut Outgoing) -> Vec<(i64, u32)> {
        let sent = std::iter::from_fn(|| outgoing.pop()).filter_map(|request| request.message);
        let checkpoints = sent.filter_map(|message| match message {
            Up::Checkpoint(checkpoint) => Some((checkpoint.task_id, checkpoint.pages)),
            _ => None,
        });
        checkpoints.collect()
    }

    #[test]
    fn a_scheduler_that_stalls_for_an_hour_costs_one_budget_of_bytes() {
        let mut outgoing = Outgoing::default();
        for minute in 0..60 {
            for task in 0..200 {
                outgoing.push_checkpoint(checkpoint(task, 1 << 20, minute));
            }
        }
        assert_eq!(outgoing.checkpoint_bytes, MOST_BYTES);
        for task in 0..200 {
            outgoing.push_last_checkpoint(checkpoint(task, 1 << 20, 60));
            outgoing.push(Up::Leave(Leave {}));
        }
        assert_eq!(outgoing.checkpoint_bytes, MOST_BYTES_AT_ENDS);
        assert!(!outgoing.is_too_long());
        assert_eq!(waiting(&mut outgoing).len(), MOST_BYTES_AT_ENDS >> 20);
        assert!(outgoing.checkpoint_bytes == 0 && outgoing.is_empty());
    }

    #[test]
    fn of_one_lease_the_newest_checkpoint_waits_and_before_what_ends_the_lease() {
        let mut outgoing = Outgoing::default();
        for (task, pages) in [(1, 1), (2, 1), (1, 2)] {
            outgoing.push_checkpoint(checkpoint(task, 10, pages));
        }
        outgoing.push_last_checkpoint(checkpoint(2, 10, 9));
        outgoing.push(Up::Leave(Leave {}));
        assert_eq!(waiting(&mut outgoing), [(1, 2), (2, 9)]);
    }
}
