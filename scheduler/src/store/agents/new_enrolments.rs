//! Enrols agents: finds free names for the agents that the operator requests, and makes their
//! one-time tokens, or none if any name is refused.

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::machine::secret::{Secret, SecretHash, hex};
use crate::model::geo::Position;
use crate::model::naming;
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::types::Interval;
use crate::store::{Error, Tx, minute};

/// Number of bytes of a token's hash that form the token's identifier.
const ID_BYTES: usize = 5;

#[derive(Debug, Clone)]
pub struct Enrolment {
    /// The identifier by which operators refer to the token.
    pub id: String,
    pub name: String,
    /// The token in clear text, returned only here.
    pub token: Secret,
    pub expires_at: DateTime<Utc>,
    pub replaces: bool,
    /// Whether the name belongs to an agent that is in use now.
    pub in_use: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The refusals, each with the index of its name in the request.
    #[error("{}", first(.0))]
    Refused(Vec<(usize, NameRefusal)>),
    #[error("draw a token")]
    Randomness(#[from] io::Error),
    #[error("make an enrolment token")]
    Store(#[from] Error),
}

fn first(refused: &[(usize, NameRefusal)]) -> String {
    refused.first().map(|(_, refusal)| refusal.to_string()).unwrap_or_default()
}

/// Makes a token for every agent of the request, or none if any name is refused.
pub async fn create(tx: &mut Tx<'_>, wanted: &[AgentRequest]) -> Result<Vec<Enrolment>, CreateError> {
    // Prevents two concurrent requests from getting the same free name.
    sqlx::query!("select pg_advisory_xact_lock(7172)").run(tx).await?;
    let taken = TakenNames::of(tx, wanted).await?;
    let names = taken.names(wanted).map_err(CreateError::Refused)?;
    let secrets = wanted.iter().map(|_| Secret::generate()).collect::<io::Result<Vec<_>>>()?;
    let ends = insert(tx, wanted, &names, &secrets).await?;
    let made = names.into_iter().zip(secrets).zip(wanted).map(|((name, token), wanted)| {
        let hash = token.hash();
        let expires_at = ends.get(hash.as_bytes()).copied().unwrap_or_default();
        let in_use = taken.in_use(&name);
        Enrolment { id: id(&hash), name, token, expires_at, replaces: wanted.replaces, in_use }
    });
    Ok(made.collect())
}

/// Stores the tokens, and returns their expiry times by hash.
async fn insert(
    conn: &mut PgConnection,
    wanted: &[AgentRequest],
    names: &[String],
    secrets: &[Secret],
) -> Result<HashMap<Vec<u8>, DateTime<Utc>>, Error> {
    let hashes: Vec<Vec<u8>> = secrets.iter().map(|secret| secret.hash().as_bytes().to_vec()).collect();
    let texts = |of: fn(&AgentRequest) -> &String| wanted.iter().map(of).cloned().collect::<Vec<String>>();
    let degrees = |of: fn(Position) -> f64| wanted.iter().map(|one| one.position.map(of)).collect::<Vec<Option<f64>>>();
    // Tags contain no spaces, so they can be joined with spaces.
    let tags: Vec<String> = wanted.iter().map(|one| one.tags.join(" ")).collect();
    let lives: Vec<Interval> = wanted.iter().map(|one| Interval(one.valid_for)).collect();
    let replaces: Vec<bool> = wanted.iter().map(|one| one.replaces).collect();
    let made = sqlx::query!(
        r#"
        insert into enrolments (token_hash, agent_name, city, carrier, country, latitude, longitude, tags, replaces, expires_at)
        select hash, name, city, carrier, country, latitude, longitude, string_to_array(tags, ' '), replaces,
               now() + lives
        from unnest($1::bytea[], $2::text[], $3::text[], $4::text[], $5::text[], $6::double precision[], $7::double precision[],
                    $8::text[], $9::boolean[], $10::interval[])
            as wanted (hash, name, city, carrier, country, latitude, longitude, tags, replaces, lives)
        returning token_hash, expires_at
        "#,
        &hashes,
        names,
        &texts(|one| &one.city),
        &texts(|one| &one.carrier),
        &texts(|one| &one.country),
        &degrees(Position::latitude) as &[Option<f64>],
        &degrees(Position::longitude) as &[Option<f64>],
        &tags,
        &replaces,
        &lives as _,
    )
    .all(conn)
    .await?;
    Ok(made.into_iter().map(|row| (row.token_hash, row.expires_at)).collect())
}

fn id(hash: &SecretHash) -> String {
    hex(&hash.as_bytes()[..ID_BYTES])
}

/// An agent for which the operator requests a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRequest {
    pub name: Name,
    pub city: String,
    pub carrier: String,
    /// The country's ISO 3166-1 alpha-2 code; empty when unknown.
    pub country: String,
    pub position: Option<Position>,
    /// The agent's tags. If the operator gave none, an agent that is enrolled again keeps its
    /// previous tags.
    pub tags: Vec<String>,
    pub valid_for: Duration,
    /// Whether to replace an agent of this name that is in use.
    pub replaces: bool,
}

/// The name that an agent is to get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Name {
    Given(String),
    /// A name formed from city and carrier, with a number appended if the name is taken.
    Formed(String),
}

/// Why no token is made for a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameRefusal {
    #[error("an agent called {0} is in use: choose another name, or move it to another machine with --replace")]
    InUse(String),
    #[error(
        "a token for {name} is open, made at {}: `landfall agents revoke {name}` voids it", minute(.made_at)
    )]
    Open { name: String, made_at: DateTime<Utc> },
    #[error("{0} is named twice")]
    Repeated(String),
}

/// The agents and open tokens that may conflict with a request. The name of each agent or token is
/// a requested name, or a requested base name with or without a number (`tokyo`, `tokyo-2`).
struct TakenNames {
    /// Names of agents, and whether each agent is in use.
    agents: HashMap<String, bool>,
    /// Agent names of open tokens, and when each token was made.
    open: HashMap<String, DateTime<Utc>>,
}

impl TakenNames {
    async fn of(conn: &mut PgConnection, wanted: &[AgentRequest]) -> Result<Self, Error> {
        let (mut given, mut formed) = (Vec::new(), Vec::new());
        for one in wanted {
            match &one.name {
                Name::Given(name) => given.push(name.clone()),
                Name::Formed(base) => formed.push(base.clone()),
            }
        }
        let agents = sqlx::query!(
            r#"
            select name, removed_at is null as "in_use!" from agents
            where name = any($1) or regexp_replace(name, '-[0-9]+$', '') = any($2) or name = any($2)
            "#,
            &given,
            &formed,
        )
        .all(conn)
        .await?;
        let open = sqlx::query!(
            r#"
            select agent_name, created_at from enrolments
            where used_at is null and revoked_at is null and expires_at > now()
              and (agent_name = any($1) or regexp_replace(agent_name, '-[0-9]+$', '') = any($2) or agent_name = any($2))
            "#,
            &given,
            &formed,
        )
        .all(conn)
        .await?;
        Ok(Self {
            agents: agents.into_iter().map(|row| (row.name, row.in_use)).collect(),
            open: open.into_iter().map(|row| (row.agent_name, row.created_at)).collect(),
        })
    }

    fn in_use(&self, name: &str) -> bool {
        self.agents.get(name).copied().unwrap_or_default()
    }

    /// Returns a name for each requested agent, or all refusals. Names given by the operator are
    /// assigned first, so that no generated name takes one of them.
    fn names(&self, wanted: &[AgentRequest]) -> Result<Vec<String>, Vec<(usize, NameRefusal)>> {
        let (mut names, mut refused) = (HashSet::new(), Vec::new());
        for (index, one) in wanted.iter().enumerate() {
            let Name::Given(name) = &one.name else { continue };
            if let Some(refusal) = self.refusal(name, one.replaces, &names) {
                refused.push((index, refusal));
            }
            names.insert(name.clone());
        }
        if !refused.is_empty() {
            return Err(refused);
        }
        let mut next: HashMap<&str, u64> = HashMap::new();
        let taken = |name: &str| self.agents.contains_key(name) || self.open.contains_key(name);
        let mut all = Vec::with_capacity(wanted.len());
        for one in wanted {
            all.push(match &one.name {
                Name::Given(name) => name.clone(),
                Name::Formed(base) => {
                    let next = next.entry(base.as_str()).or_insert(1);
                    let free = naming::first_free(base, next, |name| taken(name) || names.contains(name));
                    names.insert(free.clone());
                    free
                }
            });
        }
        Ok(all)
    }

    fn refusal(&self, name: &str, replaces: bool, before: &HashSet<String>) -> Option<NameRefusal> {
        let name = name.to_owned();
        if before.contains(&name) {
            return Some(NameRefusal::Repeated(name));
        }
        if let Some(made_at) = self.open.get(&name).copied() {
            return Some(NameRefusal::Open { name, made_at });
        }
        (self.in_use(&name) && !replaces).then_some(NameRefusal::InUse(name))
    }
}
