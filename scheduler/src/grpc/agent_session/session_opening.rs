//! Opens an agent's session: records it in the place of a former one, wakes the jobs that may use
//! the agent, and welcomes the agent.

use std::net::IpAddr;

use landfall_proto::v1;
use tonic::Status;

use super::message_fields::respond;
use super::registration::registration;
use crate::Scheduler;
use crate::config::LeaseConfig;
use crate::grpc::auth;
use crate::grpc::operator::convert::duration;
use crate::model::AgentId;
use crate::store;
use crate::store::agents::CredentialHolder;
use crate::store::agents::refusals::{self, Refusal};
use crate::store::agents::sessions::{self, OpenedSession, SessionTerms};

/// Opens the session of an agent that registered. Wakes the jobs that may use the agent.
pub(super) async fn open(
    scheduler: &Scheduler,
    (CredentialHolder { agent, name, .. }, credential): (&CredentialHolder, auth::Credential),
    peer: Option<IpAddr>,
    register: v1::Register,
) -> Result<sessions::OpenedSession, Status> {
    let agent = *agent;
    let registration = registration(register, peer)?;
    let terms = terms(&scheduler.config.lease);
    let mut tx = store::begin(&scheduler.pool).await?;
    let opened = match sessions::open(&mut tx, agent, &registration, terms).await {
        Ok(opened) => opened,
        Err(error) => {
            tx.rollback().await.map_err(store::Error::from)?;
            return Err(refused(scheduler, agent, error).await?);
        }
    };
    // The credential is checked again, because another machine may have been enrolled as this
    // agent in the meantime. `sessions::open` has locked the agent's row until the commit.
    credential.agent(&mut tx).await?;
    store::commit(tx).await?;
    tracing::info!(
        agent.name = name,
        session.id = %opened.session,
        incarnation = %opened.incarnation,
        kept = opened.kept.len(),
        "an agent connected"
    );
    let wakes = &scheduler.wakes;
    // Wakes the stream of the session that the new session supersedes, so that the stream ends.
    wakes.wake_agents([agent]);
    wakes.measure.notify_one();
    wakes.fit.notify_one();
    wakes.assign.notify_one();
    Ok(opened)
}

/// Returns the status for an agent whose session is refused. Counts the refusals caused by two
/// processes that share a credential, so that the operator sees them.
async fn refused(scheduler: &Scheduler, agent: AgentId, error: sessions::OpenError) -> Result<Status, Status> {
    let refusal = match &error {
        sessions::OpenError::Flapping { .. } => Some(Refusal::Flapping),
        sessions::OpenError::Taken(_) => Some(Refusal::Twin),
        sessions::OpenError::Removed | sessions::OpenError::Store(_) => None,
    };
    if let Some(refusal) = refusal {
        let mut conn = store::acquire(&scheduler.pool).await?;
        refusals::count(&mut conn, agent, refusal, &error.to_string()).await?;
    }
    Ok(error.into())
}

pub(super) async fn contact_url(scheduler: &Scheduler) -> Result<Option<String>, Status> {
    let mut conn = store::acquire(&scheduler.pool).await?;
    Ok(store::settings::contact_url(&mut conn).await?)
}

/// The time limits and other limits that this configuration sets for a session.
fn terms(lease: &LeaseConfig) -> SessionTerms {
    let LeaseConfig { life, grace, max_supersessions, max_crashes, .. } = *lease;
    SessionTerms { lifetime: life + grace, max_supersessions, max_crashes }
}

pub(super) fn welcome(
    agent: AgentId,
    opened: &OpenedSession,
    lease: &LeaseConfig,
    contact_url: Option<String>,
    others: Vec<String>,
) -> v1::SessionResponse {
    respond(v1::session_response::Message::Welcome(v1::Welcome {
        agent_id: agent.get(),
        incarnation: opened.incarnation.get(),
        heartbeat_interval: Some(duration(lease.heartbeat_interval)),
        lease_life: Some(duration(lease.life)),
        kept: opened
            .kept
            .iter()
            .map(|(task, token)| v1::HeldLease { task_id: task.get(), token: token.get() })
            .collect(),
        contact_url: contact_url.unwrap_or_default(),
        other_scheduler_urls: others,
    }))
}
