//! The queue between the part of a session that reads the agent's stream and the part that handles
//! the messages. Heartbeats do not enter this queue.
//!
//! Invariant: the messages of one session that were read but not handled take at most `MOST_BYTES`.
//! If there is no room, the stream is not read until there is. If that takes too long, the session
//! ends, because the agent's heartbeats would wait as well; the agent reconnects, keeps its leases,
//! and reports again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tonic::Status;

use super::received::Work;

/// Maximum size of the messages: four of maximum size, or about ten thousand ordinary outcomes,
/// which an agent of maximum capacity may report at once when it reconnects.
const MOST_BYTES: u32 = 8 << 20;
/// Size that a message counts for in addition to its encoded size. It limits the number of messages
/// to 16,384.
const BYTES_PER_MESSAGE: u32 = 512;
/// Maximum number of messages.
const MOST_MESSAGES: usize = (MOST_BYTES / BYTES_PER_MESSAGE) as usize;
/// Maximum time that the stream is not read. This is half of the mean heartbeat interval.
const ROOM_PATIENCE: Duration = Duration::from_secs(5);

/// A message with the room that it takes until it has been handled.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) work: Work,
    pub(super) room: OwnedSemaphorePermit,
}

/// The end of the queue at which messages are added.
#[derive(Debug)]
pub(super) struct Inbox {
    queue: mpsc::Sender<Queued>,
    room: Arc<Semaphore>,
    /// Maximum time to wait for room.
    patience: Duration,
}

pub(super) fn new() -> (Inbox, mpsc::Receiver<Queued>) {
    within(ROOM_PATIENCE)
}

fn within(patience: Duration) -> (Inbox, mpsc::Receiver<Queued>) {
    let (queue, inbox) = mpsc::channel(MOST_MESSAGES);
    (Inbox { queue, room: Arc::new(Semaphore::new(MOST_BYTES as usize)), patience }, inbox)
}

impl Inbox {
    /// Adds a message of this encoded size, after waiting for room.
    pub(super) async fn put(&self, work: Work, size: usize) -> Result<(), Status> {
        let size = u32::try_from(size).unwrap_or(MOST_BYTES).saturating_add(BYTES_PER_MESSAGE).min(MOST_BYTES);
        let room = timeout(self.patience, Arc::clone(&self.room).acquire_many_owned(size)).await;
        let Ok(Ok(room)) = room else {
            return Err(Status::unavailable(
                "this agent's earlier messages could not be handled in time: connect and report again",
            ));
        };
        let queued = self.queue.send(Queued { work, room }).await;
        queued.map_err(|_| Status::unavailable("the session has ended: connect and report again"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_queue_ends_the_session_unless_a_message_is_handled_in_time() {
        let (queue, mut inbox) = within(Duration::from_millis(100));
        for _ in 0..MOST_MESSAGES {
            queue.put(Work::Leave, 0).await.expect("room");
        }
        let late = queue.put(Work::Leave, 0).await.expect_err("no room");
        assert_eq!(late.code(), tonic::Code::Unavailable);
        let handled = async {
            tokio::task::yield_now().await;
            drop(inbox.recv().await);
        };
        tokio::join!(queue.put(Work::Leave, 0), handled).0.expect("room for one");
        queue.put(Work::Leave, 1 << 20).await.expect_err("not for a large one");
    }
}
