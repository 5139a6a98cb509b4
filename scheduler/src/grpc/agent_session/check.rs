//! Answers an agent that asks for its own state: whether it is connected, and which other agents it
//! reaches and which reach it.

use landfall_proto::v1;
use tonic::Status;

use crate::Scheduler;
use crate::grpc::operator::convert::{count, timestamp};
use crate::store::agents::{self, CredentialHolder};
use crate::store::measurements::reach::{self, ReachDirection, ReachFilter, Reachability};
use crate::store::{self, embeddings};

pub(super) async fn check(scheduler: &Scheduler, holder: CredentialHolder) -> Result<v1::CheckResponse, Status> {
    let mut conn = store::acquire(&scheduler.pool).await?;
    let config = &scheduler.config.measure;
    let asked = ReachFilter {
        agent: holder.agent,
        other: None,
        max_age: config.mesh_max_age,
        max_peers: config.max_mesh_peers,
    };
    let ways = reach::ways(&mut conn, &asked).await?;
    let agent = agents::show(&mut conn, &holder.name).await?;
    let now = embeddings::clock(&mut conn).await?;
    let contact_url = store::settings::contact_url(&mut conn).await?;
    let connected = agent.is_some_and(|agent| agent.connected && !agent.disconnected);
    let standing = v1::CheckResponse {
        name: holder.name,
        now: Some(timestamp(now)),
        connected,
        contact_url: contact_url.unwrap_or_default(),
        ..v1::CheckResponse::default()
    };
    Ok(with_ways(standing, &ways))
}

/// Adds three facts to an agent's state: how many other agents reach this agent, how many other
/// agents it reaches, and the text of one failure in each direction.
fn with_ways(response: v1::CheckResponse, ways: &[ReachDirection]) -> v1::CheckResponse {
    let counted = |here: &dyn Fn(&ReachDirection) -> bool, there: fn(&ReachDirection) -> &str| {
        let tried = ways.iter().filter(|way| here(way));
        let with_state = |wanted| tried.clone().filter(|way| way.reachability == wanted).count();
        let (reached, failed) = (with_state(Reachability::Reached), with_state(Reachability::Failed));
        let failure = tried.clone().filter(|way| way.reachability == Reachability::Failed).find_map(|way| {
            let failure = &way.failed.as_ref()?.0;
            let message = if failure.said.is_empty() { failure.to_string() } else { failure.said.clone() };
            Some(v1::BeaconFailure { agent: there(way).to_owned(), message })
        });
        (count(reached), count(reached.saturating_add(failed)), failure)
    };
    let name = response.name.clone();
    let (reached_by, tried_by, not_reached_by) = counted(&|way| way.target == name, |way| &way.prober);
    let (reaches, tries, not_reached) = counted(&|way| way.prober == name, |way| &way.target);
    v1::CheckResponse { reached_by, tried_by, not_reached_by, reaches, tries, not_reached, ..response }
}
