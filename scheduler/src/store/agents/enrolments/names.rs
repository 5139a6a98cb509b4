//! Finds free names for agents that are to be enrolled.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::naming;
use crate::store::rows::Rows;
use crate::store::{Error, minute};

use super::agent_request::{AgentRequest, Name};

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
pub(super) struct TakenNames {
    /// Names of agents, and whether each agent is in use.
    agents: HashMap<String, bool>,
    /// Agent names of open tokens, and when each token was made.
    open: HashMap<String, DateTime<Utc>>,
}

impl TakenNames {
    pub(super) async fn of(conn: &mut PgConnection, wanted: &[AgentRequest]) -> Result<Self, Error> {
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

    pub(super) fn in_use(&self, name: &str) -> bool {
        self.agents.get(name).copied().unwrap_or_default()
    }

    /// Returns a name for each requested agent, or all refusals. Names given by the operator are
    /// assigned first, so that no generated name takes one of them.
    pub(super) fn names(&self, wanted: &[AgentRequest]) -> Result<Vec<String>, Vec<(usize, NameRefusal)>> {
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
