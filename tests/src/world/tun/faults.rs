//! Deliberate faults of agents' links: cuts and slowness, set and lifted while packets flow.
//!
//! A cut loses packets silently, as a broken line does: no end is notified, and the kernel's
//! reaction is real. The router checks for faults when it takes a packet in and when it hands one
//! over, so lifting a fault fully restores the link.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The direction in which an agent's link is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutDirection {
    /// Nothing passes.
    Both,
    /// Nothing reaches the agent; what it sends passes.
    Towards,
    /// Nothing the agent sends passes; what is sent to it arrives.
    From,
}

/// The faults of all agents' links, initially none. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LinkFaults {
    /// By agent.
    links: Arc<[Mutex<LinkFault>]>,
}

/// The fault of one link.
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
    /// Whether packets for the agent are lost.
    pub(super) fn loses_towards(self) -> bool {
        matches!(self.cut, Some(CutDirection::Both | CutDirection::Towards))
    }

    /// Whether the agent's packets are lost.
    pub(super) fn loses_from(self) -> bool {
        matches!(self.cut, Some(CutDirection::Both | CutDirection::From))
    }

    /// A packet's extra delay, and the maximum random addition to it; zero once the slowness is
    /// over.
    pub(super) fn slowness(self, now: Instant) -> (Duration, Duration) {
        self.slow.filter(|slow| now < slow.until).map_or_else(Default::default, |slow| (slow.extra, slow.jitter))
    }
}

impl LinkFaults {
    /// A link without faults for each agent.
    pub(super) fn none(agents: usize) -> Self {
        Self { links: (0..agents).map(|_| Mutex::default()).collect() }
    }

    /// Cuts an agent's link, replacing an earlier cut.
    ///
    /// # Panics
    /// When the index is invalid.
    pub fn cut(&self, agent: usize, cut: CutDirection) {
        self.change(agent, |fault| fault.cut = Some(cut));
    }

    /// Removes all faults of an agent's link.
    ///
    /// # Panics
    /// When the index is invalid.
    pub fn heal(&self, agent: usize) {
        self.change(agent, |fault| *fault = LinkFault::default());
    }

    /// Removes all faults of all links.
    pub fn heal_all(&self) {
        (0..self.links.len()).for_each(|agent| self.heal(agent));
    }

    /// Lengthens every round trip of an agent for a while: by `extra`, half of it each way, and by
    /// up to `jitter` at random on the way to the agent. Replaces an earlier slowdown.
    ///
    /// # Panics
    /// When the index is invalid.
    pub fn slow(&self, agent: usize, extra: Duration, jitter: Duration, lasting: Duration) {
        let until = Instant::now() + lasting;
        self.change(agent, |fault| fault.slow = Some(Slowdown { extra, jitter, until }));
    }

    /// An agent's current cut; `None` without one.
    ///
    /// # Panics
    /// When the index is invalid.
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
