//! The queue of messages to the transport, which keeps the messages in order and limits their size.
//!
//! A scheduler that hangs reads nothing until the leases end, while every crawl makes a checkpoint
//! of up to a megabyte each minute. So the queue keeps only the newest checkpoint of each lease,
//! and drops checkpoints that exceed a memory budget. The checkpoint of a running crawl may be
//! dropped, because the crawl makes another checkpoint a minute later.

use std::collections::VecDeque;

use landfall_proto::v1::session_request::Message as Up;
use landfall_proto::v1::{CrawlCheckpoint, SessionRequest};
use tokio::sync::mpsc;

use super::opening::SessionEnd;
use crate::metrics::{METRICS, MessageDirection};

/// Maximum number of queued messages. Even an agent with maximum capacity has fewer messages to
/// send. The queue exceeds this limit only if a scheduler sends orders but never reads.
const MOST_MESSAGES: usize = 32_768;
/// Maximum bytes of all queued checkpoints when the checkpoint of a running crawl is added.
const MOST_BYTES: usize = 8 << 20;
/// Maximum bytes of all queued checkpoints when the last checkpoint of an ended crawl is added. If
/// this checkpoint is dropped, the agent with the task's next lease must repeat the crawl's work.
const MOST_BYTES_AT_ENDS: usize = 64 << 20;

#[derive(Debug, Default)]
pub(super) struct OutgoingQueue {
    messages: VecDeque<Up>,
    checkpoint_bytes: usize,
}

impl OutgoingQueue {
    /// Adds a message that is not a checkpoint.
    pub(super) fn push(&mut self, message: Up) {
        self.messages.push_back(message);
    }

    pub(super) fn push_first(&mut self, message: Up) {
        self.messages.push_front(message);
    }

    /// Adds the checkpoint of a running crawl. An unsent checkpoint of the same lease is removed.
    pub(super) fn push_checkpoint(&mut self, checkpoint: CrawlCheckpoint) {
        self.replace(checkpoint, MOST_BYTES);
    }

    /// Adds the last checkpoint of a crawl, like [`Self::push_checkpoint`]. Push the message that
    /// ends the lease only afterwards.
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

    /// Sends the next message when the transport has room for it. Fails if the stream is closed.
    pub(super) fn send_next(
        &mut self,
        permit: Result<mpsc::Permit<'_, SessionRequest>, mpsc::error::SendError<()>>,
    ) -> Result<(), SessionEnd> {
        let permit = permit.map_err(|_| SessionEnd::Broken("the stream is closed".to_owned()))?;
        if let Some(message) = self.pop() {
            permit.send(message);
            METRICS.message(MessageDirection::Sent);
        }
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn is_too_long(&self) -> bool {
        self.messages.len() > MOST_MESSAGES
    }
}

impl Extend<Up> for OutgoingQueue {
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

    /// The task and the number of pages of each queued checkpoint, in queue order.
    fn waiting(outgoing: &mut OutgoingQueue) -> Vec<(i64, u32)> {
        let sent = std::iter::from_fn(|| outgoing.pop()).filter_map(|request| request.message);
        let checkpoints = sent.filter_map(|message| match message {
            Up::Checkpoint(checkpoint) => Some((checkpoint.task_id, checkpoint.pages)),
            _ => None,
        });
        checkpoints.collect()
    }

    #[test]
    fn checkpoints_for_a_stalled_scheduler_are_bounded_in_bytes() {
        let mut outgoing = OutgoingQueue::default();
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
    fn only_the_newest_checkpoint_of_a_lease_waits_and_it_precedes_the_release() {
        let mut outgoing = OutgoingQueue::default();
        for (task, pages) in [(1, 1), (2, 1), (1, 2)] {
            outgoing.push_checkpoint(checkpoint(task, 10, pages));
        }
        outgoing.push_last_checkpoint(checkpoint(2, 10, 9));
        outgoing.push(Up::Leave(Leave {}));
        assert_eq!(waiting(&mut outgoing), [(1, 2), (2, 9)]);
    }
}
