//! How an operator comes to landmarks: by naming them, or by an election over the measured mesh.
//!
//! Invariant: the set and the dimensions asked of the embedding change together, in the caller's transaction, and never
//! contradict each other. Nothing waits here: an election before the mesh is measured is refused.

use std::collections::HashSet;

use sqlx::PgConnection;

use crate::gnp::{self, ElectError, Mesh, Nominee};
use crate::model::AgentId;
use crate::store::{agents, landmarks, measurements, settings};

/// One mesh gives one set of landmarks, whoever asks and however often.
const ELECTION_SEED: u64 = 1;
/// Fewer landmarks than this place nothing: two distances leave a mirror image.
const FEWEST_ELECTED: u32 = 3;

/// Why landmarks were not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChoiceError {
    /// No agent has this name.
    #[error("names: no agent is called {0}")]
    UnknownAgent(String),
    /// A name was given twice.
    #[error("names: {0} is named twice")]
    Repeated(String),
    /// An embedding of n dimensions needs n + 1 landmarks.
    #[error("dimensions: {dimensions} dimensions need at least {} landmarks, {landmarks} were asked for", u64::from(*.dimensions) + 1)]
    TooManyDimensions {
        /// Dimensions asked.
        dimensions: u32,
        /// Landmarks asked.
        landmarks: usize,
    },
    /// Too few to elect.
    #[error("count: an election needs at least {FEWEST_ELECTED} landmarks, {0} were asked for")]
    TooFewAsked(u32),
    /// More asked than could be measured from.
    #[error("{asked} landmarks were asked for, {there} agents are connected and run a beacon")]
    TooFewBeacons {
        /// Landmarks asked.
        asked: u32,
        /// Agents that are connected and run a beacon.
        there: usize,
    },
    /// The election would judge by distances nobody has measured.
    #[error("the mesh is not measured yet: {measured} of {pairs} pairs")]
    MeshIncomplete {
        /// Directed pairs measured, or tried in vain.
        measured: u64,
        /// Directed pairs to be measured.
        pairs: u64,
    },
    /// The election found no set.
    #[error(transparent)]
    Elect(#[from] ElectError),
    /// The scheduler is being stopped.
    #[error("the election was interrupted")]
    Interrupted(#[from] tokio::task::JoinError),
    /// The store failed.
    #[error("store landmarks")]
    Store(#[from] crate::store::Error),
}

/// Names the landmarks; no names: none any more.
///
/// # Errors
/// When a name is unknown or repeated, the dimensions do not fit, or the database fails.
pub async fn set(conn: &mut PgConnection, names: &[String], dimensions: Option<u32>) -> Result<(), ChoiceError> {
    let agents = agents::list(conn).await?;
    let mut chosen: Vec<(AgentId, String)> = Vec::with_capacity(names.len());
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(ChoiceError::Repeated(name.clone()));
        }
        let agent = agents.iter().find(|agent| agent.name == *name);
        let agent = agent.ok_or_else(|| ChoiceError::UnknownAgent(name.clone()))?;
        chosen.push((agent.id, "named by the operator".to_owned()));
    }
    check_dimensions(dimensions, chosen.len())?;
    replace(conn, &chosen, dimensions).await
}

/// Elects `count` landmarks among the connected agents that run a beacon. `peers` is the number of others each agent
/// measures at most.
///
/// # Errors
/// When the request contradicts itself, agents or measurements are missing, or the database fails.
pub async fn elect(
    conn: &mut PgConnection,
    count: u32,
    dimensions: Option<u32>,
    peers: u32,
) -> Result<(), ChoiceError> {
    if count < FEWEST_ELECTED {
        return Err(ChoiceError::TooFewAsked(count));
    }
    let wanted = usize::try_from(count).unwrap_or(usize::MAX);
    check_dimensions(dimensions, wanted)?;
    let nominees: Vec<Nominee> = agents::list(conn)
        .await?
        .into_iter()
        .filter(|agent| agent.connected && agent.beacon_url.is_some())
        .map(|agent| Nominee { agent: agent.id, city: agent.city, carrier: agent.carrier })
        .collect();
    if nominees.len() < wanted {
        return Err(ChoiceError::TooFewBeacons { asked: count, there: nominees.len() });
    }
    let ids: Vec<AgentId> = nominees.iter().map(|nominee| nominee.agent).collect();
    let coverage = measurements::coverage(conn, &ids, peers).await?;
    if coverage.measured < coverage.pairs {
        return Err(ChoiceError::MeshIncomplete { measured: coverage.measured, pairs: coverage.pairs });
    }
    let mut mesh = Mesh::new();
    for measured in measurements::mesh(conn).await? {
        mesh.insert(measured.prober, measured.target, measured.rtt);
    }
    // A second's work for thirty agents: too long for a thread that serves others.
    let elected =
        tokio::task::spawn_blocking(move || gnp::elect_held_out(&mesh, &nominees, wanted, ELECTION_SEED)).await??;
    let chosen: Vec<(AgentId, String)> = elected.into_iter().map(|elected| (elected.agent, elected.reason)).collect();
    replace(conn, &chosen, dimensions).await
}

fn check_dimensions(dimensions: Option<u32>, landmarks: usize) -> Result<(), ChoiceError> {
    match dimensions {
        Some(dimensions) if usize::try_from(dimensions).unwrap_or(usize::MAX) >= landmarks => {
            Err(ChoiceError::TooManyDimensions { dimensions, landmarks })
        }
        _ => Ok(()),
    }
}

async fn replace(
    conn: &mut PgConnection,
    chosen: &[(AgentId, String)],
    dimensions: Option<u32>,
) -> Result<(), ChoiceError> {
    // First, because it locks the one row of settings: two operators at once take turns.
    settings::set_dimensions(conn, dimensions).await?;
    Ok(landmarks::replace(conn, chosen).await?)
}
