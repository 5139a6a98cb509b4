//! Faults of agents' links: cuts and slowdowns. They can be set and removed while packets are in
//! transit.
//!
//! A cut drops packets silently, like a broken cable. The router checks for faults when it receives
//! a packet, and again when it delivers the packet.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutDirection {
    /// All packets from and to the agent are lost.
    Both,
    /// Packets to the agent are lost.
    Towards,
    /// Packets from the agent are lost.
    From,
}

/// The faults of all agents' links; initially none. Clones share the state.
#[derive(Debug, Clone)]
pub struct LinkFaults {
    /// The faults of each link, by agent index.
    links: Arc<[Mutex<LinkFault>]>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LinkFault {
    cut: Option<CutDirection>,
    slow: Option<Slowdown>,
}

#[derive(Debug, Clone, Copy)]
struct Slowdown {
    extra: Duration,
    jitter: Duration,
    until: Instant,
}

impl LinkFault {
    pub(super) fn loses_towards(self) -> bool {
        matches!(self.cut, Some(CutDirection::Both | CutDirection::Towards))
    }

    pub(super) fn loses_from(self) -> bool {
        matches!(self.cut, Some(CutDirection::Both | CutDirection::From))
    }

    /// The extra delay of a round trip, and the maximum random delay. Both are zero when the
    /// slowdown has ended.
    pub(super) fn slowness(self, now: Instant) -> (Duration, Duration) {
        self.slow.filter(|slow| now < slow.until).map_or_else(Default::default, |slow| (slow.extra, slow.jitter))
    }
}

impl LinkFaults {
    /// One link without faults per agent.
    pub(super) fn none(agents: usize) -> Self {
        Self { links: (0..agents).map(|_| Mutex::default()).collect() }
    }

    /// Cuts the link of an agent. A new cut replaces an earlier one.
    ///
    /// # Panics
    /// Panics if the index is invalid.
    pub fn cut(&self, agent: usize, cut: CutDirection) {
        self.change(agent, |fault| fault.cut = Some(cut));
    }

    /// # Panics
    /// Panics if the index is invalid.
    pub fn heal(&self, agent: usize) {
        self.change(agent, |fault| *fault = LinkFault::default());
    }

    pub fn heal_all(&self) {
        (0..self.links.len()).for_each(|agent| self.heal(agent));
    }

    /// Slows an agent's link down for the time `lasting`. Each round trip takes `extra` longer,
    /// half of it in each direction. Packets to the agent also get a random delay of at most
    /// `jitter`. A new slowdown replaces an earlier one.
    ///
    /// # Panics
    /// Panics if the index is invalid.
    pub fn slow(&self, agent: usize, extra: Duration, jitter: Duration, lasting: Duration) {
        let until = Instant::now() + lasting;
        self.change(agent, |fault| fault.slow = Some(Slowdown { extra, jitter, until }));
    }

    /// The cut of an agent's link; `None` if the link is not cut.
    ///
    /// # Panics
    /// Panics if the index is invalid.
    pub fn cut_of(&self, agent: usize) -> Option<CutDirection> {
        self.of(agent).cut
    }

    pub(super) fn of(&self, agent: usize) -> LinkFault {
        *self.links[agent].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, agent: usize, change: impl FnOnce(&mut LinkFault)) {
        change(&mut self.links[agent].lock().unwrap_or_else(PoisonError::into_inner));
    }
}
