//! Looks up the names in requests. An unknown name gives `NotFound`, with the name in the message.

use sqlx::PgConnection;
use tonic::Status;

use crate::model::AgentId;
use crate::model::site_list::SiteName;
use crate::store::agents::{self, enrolments};
use crate::store::batches::{self, Batch};
use crate::store::sites::{self, Site};

use crate::grpc::status::Unknown;

pub(in crate::grpc) async fn batch(conn: &mut PgConnection, name: &str) -> Result<Batch, Status> {
    let batch = batches::by_name(conn, name).await?;
    batch.ok_or_else(|| Unknown::Batch(name.to_owned()).into())
}

pub(in crate::grpc) async fn site(conn: &mut PgConnection, name: &SiteName) -> Result<Site, Status> {
    let site = sites::find(conn, name).await?;
    site.ok_or_else(|| Unknown::Site(name.to_string()).into())
}

/// Finds an agent that may have been removed; its results are still reported.
pub(in crate::grpc) async fn former_agent(conn: &mut PgConnection, name: &str) -> Result<AgentId, Status> {
    let agent = agents::show(conn, name).await?;
    agent.map(|agent| agent.id).ok_or_else(|| Unknown::Agent(name.to_owned()).into())
}

/// Finds an agent that has not been removed.
pub(in crate::grpc) async fn agent(conn: &mut PgConnection, name: &str) -> Result<AgentId, Status> {
    match agents::by_name(conn, name).await? {
        Some(agent) => Ok(agent),
        None => Err(no_agent(conn, name).await),
    }
}

/// The status if no agent has this name; says if the agent has a token but has not enrolled yet.
pub(in crate::grpc) async fn no_agent(conn: &mut PgConnection, name: &str) -> Status {
    match enrolments::is_open(conn, name).await {
        Ok(true) => Unknown::NotYet(name.to_owned()).into(),
        Ok(false) => Unknown::Agent(name.to_owned()).into(),
        Err(error) => error.into(),
    }
}
