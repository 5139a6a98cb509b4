//! Cuts of agents' links. A cut can be made and healed while packets are in transit.
//!
//! A cut drops packets silently, like a broken cable. The router checks for cuts when it receives a
//! packet, and again when it delivers the packet.

use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutDirection {
    /// All packets to and from the agent are lost.
    Both,
    /// Packets to the agent are lost.
    Towards,
    /// Packets from the agent are lost.
    From,
}

impl CutDirection {
    pub(super) fn loses_towards(self) -> bool {
        matches!(self, Self::Both | Self::Towards)
    }

    pub(super) fn loses_from(self) -> bool {
        matches!(self, Self::Both | Self::From)
    }
}

/// The cuts of all agents' links; initially none. Clones share the state.
#[derive(Debug, Clone)]
pub struct LinkCuts {
    /// The cut of each link, by agent index.
    links: Arc<[Mutex<Option<CutDirection>>]>,
}

impl LinkCuts {
    /// One link for each agent; no link is cut.
    pub(super) fn none(agents: usize) -> Self {
        Self { links: (0..agents).map(|_| Mutex::default()).collect() }
    }

    /// Cuts the link of an agent. A new cut replaces an earlier one.
    ///
    /// # Panics
    /// Panics if the index is invalid.
    pub fn cut(&self, agent: usize, cut: CutDirection) {
        self.set(agent, Some(cut));
    }

    /// # Panics
    /// Panics if the index is invalid.
    pub fn heal(&self, agent: usize) {
        self.set(agent, None);
    }

    /// The cut of an agent's link; `None` if the link is not cut.
    ///
    /// # Panics
    /// Panics if the index is invalid.
    pub(super) fn of(&self, agent: usize) -> Option<CutDirection> {
        *self.links[agent].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, agent: usize, cut: Option<CutDirection>) {
        *self.links[agent].lock().unwrap_or_else(PoisonError::into_inner) = cut;
    }
}
