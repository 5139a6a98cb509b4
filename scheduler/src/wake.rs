//! Wake-up signals: how `grpc` and `tasks` tell one another to look at the store now.
//!
//! A signal carries nothing. Whoever is woken reads what to do from Postgres, and reads it on a period anyway, so a
//! lost signal costs time, never work.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::database::Database;
use crate::model::AgentId;

/// One signal per background task, one per connected agent, and one that says whether there is a store to look at.
#[derive(Debug, Default)]
pub struct Wakes {
    /// Something may need measuring.
    pub measure: Notify,
    /// The mesh or the landmarks changed.
    pub fit: Notify,
    /// A landmark may be lost.
    pub landmarks: Notify,
    /// A site's measurements changed, or the embedding did.
    pub locate: Notify,
    /// A located task may need its site confirmed, or a confirmation have gone on.
    pub confirm: Notify,
    /// A task may need an agent.
    pub assign: Notify,
    /// A session may have ended.
    pub reap: Notify,
    /// Whether the database answers.
    pub database: Database,
    /// Guards only the map itself: it is never held across an await.
    agents: Mutex<HashMap<AgentId, Arc<Notify>>>,
}

impl Wakes {
    /// The signal of one agent's session.
    pub fn agent(&self, agent: AgentId) -> Arc<Notify> {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(agents.entry(agent).or_default())
    }

    /// Tells the sessions of these agents that orders or grants may wait for them.
    pub fn wake_agents(&self, woken: impl IntoIterator<Item = AgentId>) {
        let agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        for agent in woken {
            if let Some(notify) = agents.get(&agent) {
                notify.notify_one();
            }
        }
    }
}
