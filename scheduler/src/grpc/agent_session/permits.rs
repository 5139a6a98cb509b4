//! Answers an agent's requests for permits to send requests to the addresses of sites.

use landfall_proto::v1;
use tonic::Status;

use super::message_fields::{clip, lease_key, respond};
use super::session_state::Session;
use crate::model::{AgentId, SessionId};
use crate::store;
use crate::store::sites::addresses::{self, PermitRequest, PermitResult};

impl Session {
    /// Answers whether a crawl may send requests to an address. If the agent no longer has the
    /// lease, no answer is sent, because another message tells the agent that the lease has ended.
    pub(super) async fn permit(&mut self, asked: v1::PermitRequest) -> Result<(), Status> {
        let request = permit_request(&asked, self.agent, self.session)?;
        let cap = self.scheduler.config.politeness.crawls_at_address;
        addresses::note_address(&mut *self.connection().await?, &request).await?;
        let mut tx = store::begin(&self.scheduler.pool).await?;
        let answer = addresses::permit(&mut tx, &request, cap).await?;
        store::commit(tx).await?;
        let reason = match answer {
            PermitResult::NotHeld => {
                tracing::debug!(agent.name = self.name, task.id = %request.task, "an address for a lease that is not held");
                return Ok(());
            }
            PermitResult::Granted => None,
            PermitResult::Full { crawls } => {
                self.free = self.free.saturating_add(1);
                self.wake.notify_one();
                Some(format!("{crawls} crawled at {}", request.address))
            }
        };
        self.send(permit_answer(asked, reason)).await
    }
}

fn permit_request(asked: &v1::PermitRequest, agent: AgentId, session: SessionId) -> Result<PermitRequest, Status> {
    let (task, token) = lease_key(asked.task_id, asked.token);
    let address = asked.address.parse().map_err(|_| {
        Status::invalid_argument(format!("address: '{}' is not an IP address", clip(asked.address.clone())))
    })?;
    Ok(PermitRequest { agent, session, task, token, address })
}

/// The answer to a crawl that asks whether it may use an address. `reason` says why the address is
/// refused; `None` if it is permitted.
fn permit_answer(asked: v1::PermitRequest, reason: Option<String>) -> v1::SessionResponse {
    let v1::PermitRequest { task_id, token, address } = asked;
    respond(v1::session_response::Message::Permit(v1::PermitAnswer {
        task_id,
        token,
        address,
        granted: reason.is_none(),
        reason: reason.unwrap_or_default(),
    }))
}
