//! Chooses landmarks: an operator names them, or an election chooses them from the measured round
//! trips between agents. Lists and explains the chosen landmarks.
//!
//! Invariant: the landmarks and the embedding's requested dimensions change together, in the
//! caller's transaction, and never contradict each other. No call waits for measurements: an
//! election is refused until the agents have measured each other.

use std::collections::{BTreeMap, HashSet};

use futures_util::FutureExt as _;
use landfall_proto::v1;
use sqlx::PgConnection;
use tonic::Status;
use url::Url;

use super::convert::{count, duration, rtt};
use super::named;
use crate::Scheduler;
use crate::gnp::{
    self, Coverage, Diversity, ELECTION_SEED, ElectError, Embedding, Explanation, FEWEST_ELECTED, LandmarkWorth, Mesh,
    Nominee,
};
use crate::model::AgentId;
use crate::store::Tx;
use crate::store::agents::{self, Agent};
use crate::store::embeddings;
use crate::store::embeddings::landmarks::{self, ChosenBy, Landmark};
use crate::store::measurements;
use crate::store::measurements::reach::{self, ReachFailure, UnreachedAgent};
use crate::store::names::Noun;
use crate::store::settings;

/// Makes the named agents the landmarks.
pub(super) async fn set(
    scheduler: &Scheduler,
    request: v1::SetLandmarksRequest,
) -> Result<v1::ListLandmarksResponse, Status> {
    let (names, dimensions) = (request.names.as_slice(), dimensions(request.dimensions));
    scheduler
        .operators
        .tx("set landmarks", |tx| {
            async move {
                match set_named(tx, names, dimensions).await {
                    Err(ChoiceError::UnknownAgent(name)) => {
                        let unknown = ChoiceError::UnknownAgent(name.clone()).into();
                        Err(named::inexact(tx, Noun::Agent, &name, unknown).await)
                    }
                    set => Ok(set?),
                }
            }
            .boxed()
        })
        .await?;
    changed(scheduler).await
}

/// Lets an election choose the landmarks, and explains its choice.
pub(super) async fn elect(
    scheduler: &Scheduler,
    request: v1::ElectLandmarksRequest,
) -> Result<v1::ListLandmarksResponse, Status> {
    let (peers, dimensions) = (scheduler.config.measure.max_mesh_peers, dimensions(request.dimensions));
    let mut conn = scheduler.operators.read("read who may be a landmark").await?;
    let candidates = Candidates::read(&mut conn, request.count, dimensions, peers).await?;
    // The election takes about a second for thirty agents, too long for a thread of the async
    // runtime, and for a connection that waits.
    drop(conn);
    let held = tokio::task::spawn_blocking(move || candidates.elect()).await.map_err(ChoiceError::Interrupted)?;
    let (chosen, explained) = match held {
        Err(error @ ElectError::TooFewReached { .. }) => {
            let mut conn = scheduler.operators.read("read who does not reach whom").await?;
            let trouble = reach::trouble(&mut conn).await?.map(Box::new);
            return Err(ChoiceError::Elect { error, trouble }.into());
        }
        held => held.map_err(|error| ChoiceError::Elect { error, trouble: None })?,
    };
    let chosen = chosen.as_slice();
    scheduler
        .operators
        .tx("store elected landmarks", |tx| async move { take_over(tx, chosen, dimensions).await }.boxed())
        .await?;
    let mut answer = changed(scheduler).await?;
    answer.explanation = Some(explained.into());
    Ok(answer)
}

pub(super) async fn list(scheduler: &Scheduler) -> Result<v1::ListLandmarksResponse, Status> {
    let mut conn = scheduler.operators.read("list landmarks").await?;
    Ok(listed(&mut conn).await?)
}

/// Wakes the jobs that use landmarks, and lists the new landmarks.
async fn changed(scheduler: &Scheduler) -> Result<v1::ListLandmarksResponse, Status> {
    scheduler.wakes.fit.notify_one();
    scheduler.wakes.measure.notify_one();
    list(scheduler).await
}

/// Why landmarks were not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChoiceError {
    #[error("names: no agent is called {0}")]
    UnknownAgent(String),
    #[error("names: {0} is named twice")]
    Repeated(String),
    /// An embedding of n dimensions needs n + 1 landmarks.
    #[error(
        "dimensions: {dimensions} dimensions need at least {} landmarks, but {landmarks} were requested",
        u64::from(*.dimensions) + 1
    )]
    TooManyDimensions { dimensions: u32, landmarks: usize },
    #[error("count: an election needs at least {FEWEST_ELECTED} landmarks, but {0} were requested")]
    TooFewAsked(u32),
    #[error("{}", too_few_beacons(*.asked, *.there))]
    TooFewBeacons {
        asked: u32,
        /// Number of agents that are connected and run a beacon.
        there: usize,
    },
    /// The election would depend on distances that have not been measured.
    #[error("the agents have not yet measured each other: {measured} of {pairs} pairs are measured")]
    MeshIncomplete {
        /// Number of directed pairs of agents that were measured, or tried without success.
        measured: u64,
        /// Number of directed pairs of agents to be measured.
        pairs: u64,
    },
    #[error("{error}{}", trouble.as_ref().map(|trouble| format!(": {trouble}")).unwrap_or_default())]
    Elect {
        error: ElectError,
        /// Why agents do not reach each other, if this caused the error.
        trouble: Option<Box<ReachFailure>>,
    },
    #[error("the election was interrupted")]
    Interrupted(#[source] tokio::task::JoinError),
    #[error("agents left during the election: repeat it")]
    Left,
    #[error("store landmarks")]
    Store(#[from] crate::store::Error),
}

/// The message states the number of landmarks, because the operator may have used the default
/// number by omitting `--count`.
fn too_few_beacons(asked: u32, there: usize) -> String {
    let remedy = match u32::try_from(there) {
        Ok(there) if there >= FEWEST_ELECTED => format!("; elect at most {there} with --count"),
        _ => String::new(),
    };
    format!(
        "an election of {asked} landmarks needs as many agents that are connected and run a beacon, but there are \
         {there}{remedy}"
    )
}

/// Sets the landmarks by name; an empty list removes all landmarks.
async fn set_named(tx: &mut Tx<'_>, names: &[String], dimensions: Option<u32>) -> Result<(), ChoiceError> {
    let agents = agents::list(tx).await?;
    let mut chosen: Vec<(AgentId, String)> = Vec::with_capacity(names.len());
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(ChoiceError::Repeated(name.clone()));
        }
        let agent = agents.iter().find(|agent| agent.name == *name && agent.removed_at.is_none());
        let agent = agent.ok_or_else(|| ChoiceError::UnknownAgent(name.clone()))?;
        chosen.push((agent.id, "set by the operator".to_owned()));
    }
    check_dimensions(dimensions, chosen.len())?;
    let locked = settings::set_dimensions(tx, dimensions).await?;
    Ok(landmarks::replace(tx, &locked, &chosen, ChosenBy::Hand).await?)
}

/// The agents from which an election chooses, and what it needs to know about them.
struct Candidates {
    /// Number of landmarks to elect.
    wanted: usize,
    nominees: Vec<Nominee>,
    mesh: Mesh,
    /// All connected agents.
    fleet: Vec<Nominee>,
    names: BTreeMap<AgentId, String>,
    unreached: Vec<UnreachedAgent>,
}

/// Landmarks with the reasons for their election.
type Chosen = Vec<(AgentId, String)>;

impl Candidates {
    /// Reads the connected agents that run a beacon. `peers` is the maximum number of other agents
    /// that each agent measures.
    async fn read(
        conn: &mut PgConnection,
        count: u32,
        dimensions: Option<u32>,
        peers: u32,
    ) -> Result<Self, ChoiceError> {
        if count < FEWEST_ELECTED {
            return Err(ChoiceError::TooFewAsked(count));
        }
        let wanted = usize::try_from(count).unwrap_or(usize::MAX);
        check_dimensions(dimensions, wanted)?;
        let agents = agents::list(conn).await?;
        let names = agents.iter().map(|agent| (agent.id, agent.name.clone())).collect();
        let nominees: Vec<Nominee> = agents.iter().filter(may_be_landmark).cloned().map(Nominee::from).collect();
        if nominees.len() < wanted {
            return Err(ChoiceError::TooFewBeacons { asked: count, there: nominees.len() });
        }
        let ids: Vec<AgentId> = nominees.iter().map(|nominee| nominee.agent).collect();
        let coverage = measurements::coverage(conn, &ids, peers).await?;
        if coverage.measured < coverage.pairs {
            return Err(ChoiceError::MeshIncomplete { measured: coverage.measured, pairs: coverage.pairs });
        }
        let mesh = measurements::mesh(conn).await?.into_iter().collect();
        let fleet = agents.into_iter().filter(|agent| agent.connected).map(Nominee::from).collect();
        Ok(Self { wanted, nominees, mesh, fleet, names, unreached: reach::unreached(conn).await? })
    }

    /// Holds the election, and explains its result.
    fn elect(self) -> Result<(Chosen, ExplainedLandmarks), ElectError> {
        let Self { wanted, nominees, mesh, fleet, names, unreached } = self;
        let elected = gnp::elect_held_out(&mesh, &nominees, wanted, ELECTION_SEED)?;
        let chosen: Chosen = elected.into_iter().map(|elected| (elected.agent, elected.reason)).collect();
        let landmarks: Vec<AgentId> = chosen.iter().map(|(agent, _)| *agent).collect();
        let explanation = gnp::explain_election(&mesh, &fleet, &landmarks);
        Ok((chosen, ExplainedLandmarks { explanation, names, unreached }))
    }
}

fn may_be_landmark(agent: &&Agent) -> bool {
    agent.connected && agent.beacon_url.is_some()
}

/// Stores elected landmarks, unless one of them can no longer be a landmark.
async fn take_over(tx: &mut Tx<'_>, chosen: &[(AgentId, String)], dimensions: Option<u32>) -> Result<(), ChoiceError> {
    // Locks the settings, so that the agents are those of a moment at which nobody else changes the
    // landmarks.
    let locked = settings::set_dimensions(tx, dimensions).await?;
    let agents = agents::list(tx).await?;
    let there: HashSet<AgentId> = agents.iter().filter(may_be_landmark).map(|agent| agent.id).collect();
    if !chosen.iter().all(|(agent, _)| there.contains(agent)) {
        return Err(ChoiceError::Left);
    }
    Ok(landmarks::replace(tx, &locked, chosen, ChosenBy::Election).await?)
}

/// The quality of the elected landmarks.
#[derive(Debug, Clone)]
struct ExplainedLandmarks {
    /// The explanation, computed from the measured round trips between the connected agents.
    explanation: Explanation,
    names: BTreeMap<AgentId, String>,
    /// Connected agents that cannot be landmarks because no agent reached them.
    unreached: Vec<UnreachedAgent>,
}

fn check_dimensions(dimensions: Option<u32>, landmarks: usize) -> Result<(), ChoiceError> {
    match dimensions {
        Some(dimensions) if usize::try_from(dimensions).unwrap_or(usize::MAX) >= landmarks => {
            Err(ChoiceError::TooManyDimensions { dimensions, landmarks })
        }
        _ => Ok(()),
    }
}

/// The landmarks, with their states, the dimensions and the embedding that uses them.
async fn listed(conn: &mut PgConnection) -> Result<v1::ListLandmarksResponse, crate::store::Error> {
    let landmarks = landmarks::list(conn).await?;
    let requested = settings::dimensions(conn).await?.map(|requested| usize::try_from(requested).unwrap_or(usize::MAX));
    let dimensions = gnp::dimensions_of_fit(landmarks.len(), requested);
    let embedding = embeddings::latest(conn).await?;
    let fleet = agents::list(conn).await?;
    Ok(message(landmarks, &fleet, dimensions, embedding.as_ref()))
}

/// In the protocol, 0 means that the scheduler chooses the number of dimensions.
fn dimensions(asked: u32) -> Option<u32> {
    (asked > 0).then_some(asked)
}

fn message(
    landmarks: Vec<Landmark>,
    fleet: &[Agent],
    dimensions: usize,
    embedding: Option<&Embedding>,
) -> v1::ListLandmarksResponse {
    v1::ListLandmarksResponse {
        dimensions: count(dimensions),
        landmarks: landmarks.into_iter().map(|one| landmark(one, fleet)).collect(),
        epoch: embedding.map_or(0, |embedding| embedding.epoch().get()),
        fit_error: embedding.map_or(0.0, Embedding::fit_error),
        explanation: None,
    }
}

impl From<ExplainedLandmarks> for v1::ElectionExplanation {
    fn from(explained: ExplainedLandmarks) -> Self {
        let ExplainedLandmarks { explanation: told, names, unreached } = explained;
        let name = |agent: AgentId| names.get(&agent).cloned().unwrap_or_default();
        let coverage =
            |reach: Coverage| v1::Coverage { within: Some(duration(reach.within)), agents: count(reach.agents) };
        let worth = |worth: LandmarkWorth| v1::LandmarkWorth {
            name: name(worth.landmark),
            nearest_to: count(worth.nearest_to),
            adds: Some(duration(worth.adds)),
        };
        Self {
            others: count(told.others),
            coverage: told.coverage.into_iter().map(coverage).collect(),
            median: rtt(told.median),
            farthest_agent: told.farthest.map(|(agent, _)| name(agent)).unwrap_or_default(),
            farthest: rtt(told.farthest.map(|(_, rtt)| rtt)),
            uncovered: told.uncovered.into_iter().map(name).collect(),
            cities: Some(diversity(told.cities)),
            carriers: Some(diversity(told.carriers)),
            landmarks: told.landmarks.into_iter().map(worth).collect(),
            unreached: unreached.into_iter().map(Into::into).collect(),
        }
    }
}

fn diversity(kinds: Diversity) -> v1::Diversity {
    v1::Diversity { with: kinds.with, without: kinds.without }
}

impl From<UnreachedAgent> for v1::UnreachedAgent {
    fn from(unreached: UnreachedAgent) -> Self {
        let beacon_url = unreached.beacon_url.unwrap_or_default();
        let port = Url::parse(&beacon_url).ok().and_then(|url| url.port_or_known_default()).unwrap_or(0);
        let failure = unreached.failure.unwrap_or_default();
        Self { name: unreached.name, beacon_url, port: u32::from(port), failure }
    }
}

fn landmark(landmark: Landmark, fleet: &[Agent]) -> v1::Landmark {
    let agent = fleet.iter().find(|agent| agent.name == landmark.name);
    v1::Landmark {
        service: agent.map_or(v1::ServiceState::Unspecified, |agent| agent.service().into()).into(),
        name: landmark.name,
        city: landmark.city,
        carrier: landmark.carrier,
        connected: landmark.connected,
        reason: landmark.reason,
        elected: landmark.by == ChosenBy::Election,
        away_for: landmark.away_for.map(duration),
    }
}
