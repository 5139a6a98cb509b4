//! Looks up the names of batches, agents and sites in requests.
//!
//! Read-only calls accept a prefix of a name if no other name has the same prefix. An exact name
//! always takes precedence. Calls that change something accept only exact names (`exact_...`). The
//! message for an unknown name suggests the nearest known names.

use sqlx::PgConnection;
use tonic::Status;

use super::convert::{Places, whole};
use crate::model::site_name::SiteName;
use crate::model::{AgentId, similar_names};
use crate::store::agents::{self, Agent, issued_tokens};
use crate::store::batches::{self, Batch};
use crate::store::names::{self, MOST_BEGINNINGS, Noun};
use crate::store::sites::{self, Site};

/// Maximum number of names listed if a prefix is ambiguous.
const LISTED: usize = 10;

/// The request names an object that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::grpc) enum Unknown {
    #[error("no batch is called '{0}'")]
    Batch(String),
    #[error("no agent is called {0}")]
    Agent(String),
    #[error("{}", issued_tokens::not_yet(.0))]
    NotYet(String),
    #[error("no site is known as '{0}'")]
    Site(String),
    #[error("batch {batch} does not contain {site}")]
    InBatch { batch: String, site: String },
    #[error("batch {batch} has no round {round}: {}", newest.map_or("it has no site".to_owned(), |newest| format!("its newest is {newest}")))]
    Round { batch: String, round: u32, newest: Option<u32> },
    #[error("{site} has no choice {number}: `landfall explain {site}` lists those it has")]
    Choice { site: String, number: i64 },
}

/// The text in the request is a prefix of more than one name, so it identifies no single object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("several {} begin with '{beginning}': {}{}; give more of the name", plural(*.noun), .names.join(", "), rest(*.more, *.all))]
pub(in crate::grpc) struct Ambiguous {
    pub(in crate::grpc) noun: Noun,
    pub(in crate::grpc) beginning: String,
    /// The first of the names with this prefix.
    pub(in crate::grpc) names: Vec<String>,
    /// Number of other names that were found.
    pub(in crate::grpc) more: u64,
    /// Whether every name with this prefix was found.
    pub(in crate::grpc) all: bool,
}

const fn plural(noun: Noun) -> &'static str {
    match noun {
        Noun::Batch => "batches",
        Noun::Agent | Noun::FormerAgent => "agents",
        Noun::Site => "sites",
        Noun::Token => "tokens",
    }
}

fn rest(more: u64, all: bool) -> String {
    match (more, all) {
        (0, _) => String::new(),
        (more, true) => format!(" and {more} more"),
        (more, false) => format!(" and at least {more} more"),
    }
}

/// An agent in the fleet, with its full name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::grpc) struct FoundAgent {
    pub(in crate::grpc) id: AgentId,
    pub(in crate::grpc) name: String,
}

pub(in crate::grpc) async fn batch(conn: &mut PgConnection, name: &str) -> Result<Batch, Status> {
    if let Some(batch) = batches::by_name(conn, name).await? {
        return Ok(batch);
    }
    let unknown = || Unknown::Batch(name.to_owned());
    let full = full(conn, Noun::Batch, name, unknown().into()).await?;
    batches::by_name(conn, &full).await?.ok_or_else(|| unknown().into())
}

pub(in crate::grpc) async fn exact_batch(conn: &mut PgConnection, name: &str) -> Result<Batch, Status> {
    match batches::by_name(conn, name).await? {
        Some(batch) => Ok(batch),
        None => Err(inexact(conn, Noun::Batch, name, Unknown::Batch(name.to_owned()).into()).await),
    }
}

pub(in crate::grpc) async fn site(conn: &mut PgConnection, name: &SiteName) -> Result<Site, Status> {
    if let Some(site) = sites::find(conn, name).await? {
        return Ok(site);
    }
    let unknown = || Unknown::Site(name.to_string());
    let full = full(conn, Noun::Site, name.as_str(), unknown().into()).await?;
    let full: SiteName = full.parse().map_err(|_| unknown())?;
    sites::find(conn, &full).await?.ok_or_else(|| unknown().into())
}

pub(in crate::grpc) async fn exact_site(conn: &mut PgConnection, name: &SiteName) -> Result<Site, Status> {
    match sites::find(conn, name).await? {
        Some(site) => Ok(site),
        None => Err(inexact(conn, Noun::Site, name.as_str(), Unknown::Site(name.to_string()).into()).await),
    }
}

/// Finds an agent, even if it was removed, because reports still contain its results.
pub(in crate::grpc) async fn former_agent(conn: &mut PgConnection, name: &str) -> Result<Agent, Status> {
    if let Some(agent) = agents::show(conn, name).await? {
        return Ok(agent);
    }
    let full = full_agent(conn, Noun::FormerAgent, name).await?;
    agents::show(conn, &full).await?.ok_or_else(|| Unknown::Agent(name.to_owned()).into())
}

/// Finds the agents that a filter selects, including removed agents. If `name` is not empty, only
/// the agent of this name can be selected. Returns `None` if `name` is empty and `places` accepts
/// all agents.
pub(in crate::grpc) async fn agents_at(
    conn: &mut PgConnection,
    name: &str,
    places: &Places,
) -> Result<Option<Vec<AgentId>>, Status> {
    let named = if name.is_empty() { None } else { Some(former_agent(conn, name).await?.id) };
    if places.are_unset() {
        return Ok(named.map(|agent| vec![agent]));
    }
    let known = agents::places(conn).await?.into_iter();
    let meant = known.filter(|(agent, _)| named.is_none_or(|named| *agent == named));
    let meant = meant.filter(|(_, place)| places.include(&place.city, &place.carrier, &place.country));
    Ok(Some(meant.map(|(agent, _)| agent).collect()))
}

pub(in crate::grpc) async fn agent(conn: &mut PgConnection, name: &str) -> Result<FoundAgent, Status> {
    if let Some(id) = agents::by_name(conn, name).await? {
        return Ok(FoundAgent { id, name: name.to_owned() });
    }
    let name = full_agent(conn, Noun::Agent, name).await?;
    match agents::by_name(conn, &name).await? {
        Some(id) => Ok(FoundAgent { id, name }),
        None => Err(Unknown::Agent(name).into()),
    }
}

pub(in crate::grpc) async fn exact_agent(conn: &mut PgConnection, name: &str) -> Result<AgentId, Status> {
    match agents::by_name(conn, name).await? {
        Some(agent) => Ok(agent),
        None => Err(no_agent(conn, name).await),
    }
}

/// The status for a call that would change an agent, if no agent has this name.
pub(in crate::grpc) async fn no_agent(conn: &mut PgConnection, name: &str) -> Status {
    match open_token(conn, name).await {
        Ok(()) => inexact(conn, Noun::Agent, name, Unknown::Agent(name.to_owned()).into()).await,
        Err(status) => status,
    }
}

/// The full name of the only agent whose name has this prefix.
async fn full_agent(conn: &mut PgConnection, noun: Noun, beginning: &str) -> Result<String, Status> {
    open_token(conn, beginning).await?;
    full(conn, noun, beginning, Unknown::Agent(beginning.to_owned()).into()).await
}

/// Fails if there is a token for an agent of this name, but the agent has not enrolled yet.
async fn open_token(conn: &mut PgConnection, name: &str) -> Result<(), Status> {
    if issued_tokens::is_open(conn, name).await? { Err(Unknown::NotYet(name.to_owned()).into()) } else { Ok(()) }
}

/// The only name that has this prefix. `unknown` is the status if no name has this prefix.
async fn full(conn: &mut PgConnection, noun: Noun, beginning: &str, unknown: Status) -> Result<String, Status> {
    let mut known = names::beginning_with(conn, noun, beginning).await?;
    match known.len() {
        0 => Err(suggesting(conn, noun, beginning, unknown).await),
        1 => Ok(known.swap_remove(0)),
        count => {
            known.truncate(LISTED);
            let more = whole(count.saturating_sub(LISTED));
            let all = i64::try_from(count).is_ok_and(|count| count < MOST_BEGINNINGS);
            Err(Ambiguous { noun, beginning: beginning.to_owned(), names: known, more, all }.into())
        }
    }
}

/// The status for an unknown name in a call that changes something. The message suggests the
/// nearest known names. If only one name has this prefix, the message also says that names must be
/// given in full.
pub(in crate::grpc) async fn inexact(conn: &mut PgConnection, noun: Noun, name: &str, unknown: Status) -> Status {
    match names::beginning_with(conn, noun, name).await {
        Ok(known) if known.len() == 1 => {
            let said = format!("{}: names must be given in full here", unknown.message());
            suggesting(conn, noun, name, Status::new(unknown.code(), said)).await
        }
        Ok(_) => suggesting(conn, noun, name, unknown).await,
        Err(error) => error.into(),
    }
}

/// Adds the nearest known names to the status for an unknown name.
async fn suggesting(conn: &mut PgConnection, noun: Noun, name: &str, unknown: Status) -> Status {
    match names::nearest_to(conn, noun, name).await {
        Ok(near) => Status::new(unknown.code(), format!("{}{}", unknown.message(), similar_names::question(near))),
        Err(error) => error.into(),
    }
}
