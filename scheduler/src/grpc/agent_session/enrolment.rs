//! Enrols an agent: exchanges its token for a credential.

use landfall_proto::v1;
use tonic::Status;

use crate::Scheduler;
use crate::store;
use crate::store::agents::enrolments::{self, RedeemResult};

/// Enrols the agent to which the token belongs. Ends the session of a machine that it replaces.
pub(super) async fn enrol(scheduler: &Scheduler, token: &str) -> Result<v1::EnrolResponse, Status> {
    let mut tx = store::begin(&scheduler.pool).await?;
    let max_crashes = scheduler.config.lease.max_crashes;
    let redeemed = enrolments::redeem(&mut tx, token, max_crashes).await?;
    store::commit(tx).await?;
    let (agent, name) = (redeemed.agent, &redeemed.name);
    if redeemed.replaced {
        tracing::info!(agent.name = name, "an agent enrolled in the place of another machine");
        // Ends the session of the replaced machine at once.
        scheduler.wakes.wake_agents([agent]);
        scheduler.wakes.assign.notify_one();
    } else {
        tracing::info!(agent.name = name, "an agent enrolled");
    }
    Ok(enrolled(redeemed))
}

fn enrolled(redeemed: RedeemResult) -> v1::EnrolResponse {
    v1::EnrolResponse {
        agent_id: redeemed.agent.get(),
        credential: redeemed.credential,
        name: redeemed.name,
        city: redeemed.city,
        carrier: redeemed.carrier,
        country: redeemed.country,
    }
}
