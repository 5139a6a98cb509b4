//! The queue of messages to an agent.

use std::time::Duration;

use landfall_proto::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Maximum number of messages that wait in memory for an agent. If the agent reads so slowly that
/// more would wait, its session ends.
const OUTBOUND_MESSAGES: usize = 256;
/// Maximum time that one message waits for room in the queue.
const SEND_TIMEOUT: Duration = Duration::from_secs(20);

type Outbound = Result<v1::SessionResponse, Status>;

/// The sending end of the queue.
#[derive(Debug, Clone)]
pub(super) struct OutboundQueue(mpsc::Sender<Outbound>);

impl OutboundQueue {
    /// Creates a queue. The stream returns its messages.
    pub(super) fn new() -> (Self, ReceiverStream<Outbound>) {
        let (outbound, responses) = mpsc::channel(OUTBOUND_MESSAGES);
        (Self(outbound), ReceiverStream::new(responses))
    }

    /// Adds a message, after waiting for room.
    pub(super) async fn send(&self, response: v1::SessionResponse) -> Result<(), Status> {
        self.0
            .send_timeout(Ok(response), SEND_TIMEOUT)
            .await
            .map_err(|_| Status::unavailable("the agent does not read its stream"))
    }

    /// Adds the status with which the stream ends. Ignores a failure, because the agent may be gone
    /// already.
    pub(super) fn end(&self, status: Status) {
        let _told = self.0.try_send(Err(status));
    }
}
