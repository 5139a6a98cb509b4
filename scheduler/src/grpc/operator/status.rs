//! Implements the operators' gRPC service that shows the state of the whole system.

use futures_util::future::join_all;
use landfall_proto::v1;
use landfall_proto::v1::status_service_server::{StatusService, StatusServiceServer};
use tonic::{Request, Response, Status};

use crate::Scheduler;
use crate::grpc::identity::Identity;
use crate::status::attention;
use crate::store;
use crate::store::reports::status;

use super::convert::InvalidField;
use super::remaining_time::STATUS_PATIENCE;

/// Maximum size of a request in bytes. Every request has only a few bytes.
const MAX_MESSAGE: usize = 64 << 10;
/// Default and maximum number of batches shown.
const BATCHES: u32 = 20;
const MOST_BATCHES: u32 = 1_000;

#[derive(Debug, Clone)]
pub(crate) struct StatusDesk {
    scheduler: Scheduler,
    url: String,
}

impl StatusDesk {
    pub(in crate::grpc) fn new(scheduler: Scheduler, identity: &Identity) -> Self {
        Self { scheduler, url: identity.scheduler_url.clone() }
    }

    pub(in crate::grpc) fn server(self) -> StatusServiceServer<Self> {
        StatusServiceServer::new(self).max_decoding_message_size(MAX_MESSAGE)
    }

    /// The state of the system, with at most `batches` batches. The batches have estimates only if
    /// `estimated` is set. The call then waits up to [`STATUS_PATIENCE`] for missing estimates.
    pub(crate) async fn read(&self, batches: u32, estimated: bool) -> Result<v1::ShowStatusResponse, Status> {
        let Scheduler { pool, estimates, .. } = &self.scheduler;
        let mut tx = store::begin_snapshot(pool).await?;
        let mut status = status::read(&mut tx, batches).await?;
        drop(tx);
        if estimated {
            let estimated = status.batches.iter().map(|batch| estimates.of(pool, batch.id, STATUS_PATIENCE));
            let estimated = join_all(estimated).await;
            for (batch, estimate) in status.batches.iter_mut().zip(estimated) {
                batch.estimate = estimate.flatten();
            }
        }
        let attention = attention(&status);
        let response = v1::ShowStatusResponse::from(status);
        let attention = attention.into_iter().map(Into::into).collect();
        Ok(v1::ShowStatusResponse { answering_url: self.url.clone(), attention, ..response })
    }
}

#[tonic::async_trait]
impl StatusService for StatusDesk {
    async fn show_status(
        &self,
        request: Request<v1::ShowStatusRequest>,
    ) -> Result<Response<v1::ShowStatusResponse>, Status> {
        let batches = match request.get_ref().batches {
            0 => BATCHES,
            batches @ 1..=MOST_BATCHES => batches,
            _ => return Err(InvalidField::new("batches", format!("must be at most {MOST_BATCHES}")).into()),
        };
        Ok(Response::new(self.read(batches, true).await?))
    }
}
