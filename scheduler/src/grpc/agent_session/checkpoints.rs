//! Stores the checkpoints of an agent's crawls.

use landfall_proto::v1;
use tonic::Status;

use super::convert;
use super::session::Session;
use crate::store::leases::checkpoints;

impl Session {
    /// Stores a crawl's checkpoint, unless the agent no longer has the lease.
    pub(super) async fn keep(&self, checkpoint: v1::CrawlCheckpoint) -> Result<(), Status> {
        let checkpoint = convert::crawls::checkpoint(checkpoint)?;
        let mut conn = self.connection().await?;
        if !checkpoints::save(&mut conn, self.agent, self.session, &checkpoint).await? {
            let (task, token) = (checkpoint.task, checkpoint.token);
            tracing::debug!(agent.name = self.name, task.id = %task, token = %token, "a checkpoint of a lease that is not held");
        }
        Ok(())
    }
}
