//! Answers an agent's requests for permits to send requests to the addresses of sites.

use landfall_proto::v1;
use tonic::Status;

use super::convert;
use super::session::Session;
use crate::store;
use crate::store::sites::addresses::{self, PermitResult};

impl Session {
    /// Answers whether a crawl may send requests to an address. If the agent no longer has the
    /// lease, no answer is sent, because another message tells the agent that the lease has ended.
    pub(super) async fn permit(&mut self, asked: v1::PermitRequest) -> Result<(), Status> {
        let request = convert::permit_request(&asked, self.agent, self.session)?;
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
        self.send(convert::permit_answer(asked, reason)).await
    }
}
