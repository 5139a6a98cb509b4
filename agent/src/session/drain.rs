//! Ends a session because the agent stops: hands back the leases, and waits until the outcomes are
//! acknowledged.

use std::time::Duration;

use landfall_proto::v1::session_request::Message as Up;
use landfall_proto::v1::session_response::Message as Down;
use landfall_proto::v1::{Leave, SessionResponse};
use tonic::Streaming;

use super::active_session::ActiveSession;
use super::convert::leases;
use super::opening::SessionEnd;
use super::work::Work;
use crate::disk::lease_key::LeaseKey;

/// How long a stopping agent waits for its crawls to end and its outcomes to be acknowledged.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(8);

impl ActiveSession {
    /// Stops taking work, stops the crawls, returns their leases, and closes the session.
    pub(super) async fn drain(mut self, mut inbound: Streaming<SessionResponse>, work: &mut Work) -> SessionEnd {
        tracing::info!(crawls = work.active_crawls(), "handing back unfinished leases");
        work.stop_all();
        // Announce the end first, or this agent could be granted the returned leases again.
        self.pending.push_first(Up::Leave(Leave {}));
        let outbound = self.outbound.clone();
        let limit = DRAIN_TIMEOUT + work.grace();
        let drained = async {
            loop {
                if work.active_crawls() == 0 && work.outbox.is_empty() && self.pending.is_empty() {
                    return work.outbox.removed().await;
                }
                tokio::select! {
                    received = inbound.message() => match received {
                        Ok(Some(SessionResponse { message: Some(Down::Outcome(ack)) })) => {
                            work.outbox.acknowledge(LeaseKey { task_id: ack.task_id, token: ack.token });
                        }
                        Ok(Some(SessionResponse { message: Some(Down::Crawl(order)) })) => {
                            let key = LeaseKey { task_id: order.task_id, token: order.token };
                            self.pending.push(leases::release(key));
                        }
                        Ok(Some(_)) => {}
                        Ok(None) | Err(_) => return,
                    },
                    event = work.next() => self.report(event),
                    permit = outbound.reserve(), if !self.pending.is_empty() => {
                        if self.pending.send_next(permit).is_err() {
                            return;
                        }
                    }
                }
            }
        };
        if tokio::time::timeout(limit, drained).await.is_err() {
            tracing::warn!("some leases or outcomes were not handed back in time");
        }
        drop((outbound, self.outbound));
        // The scheduler ends the stream after it has read everything. Dropping the stream earlier
        // would discard unsent messages.
        let closed = async { while matches!(inbound.message().await, Ok(Some(_))) {} };
        if tokio::time::timeout(DRAIN_TIMEOUT, closed).await.is_err() {
            tracing::debug!("the scheduler did not end the session");
        }
        SessionEnd::Stopped
    }
}
