//! Service states: whether an agent accepts work, and why not.

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServiceState {
    Ready,
    /// The agent finishes its leases and gets no new leases.
    Draining,
    /// The agent has no leases left and gets no new leases.
    Drained,
    /// The agent gets no leases until a problem that it reported is over.
    Paused,
    Away,
    Removed,
    /// The agent accepts work, but its measurements are ignored.
    Quarantined,
    NeverConnected,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct ServiceFacts {
    pub removed: bool,
    pub draining: bool,
    /// Whether the agent has a lease.
    pub leased: bool,
    /// Whether the agent has ever connected.
    pub known: bool,
    /// Whether the agent has an active session with an open stream.
    pub connected: bool,
    pub paused: bool,
    pub quarantined: bool,
}

impl ServiceFacts {
    /// If several states apply, states caused by the operator have priority, then states that
    /// prevent work.
    pub const fn state(self) -> ServiceState {
        match self {
            Self { removed: true, .. } => ServiceState::Removed,
            Self { draining: true, leased: false, .. } => ServiceState::Drained,
            Self { draining: true, .. } => ServiceState::Draining,
            Self { known: false, .. } => ServiceState::NeverConnected,
            Self { connected: false, .. } => ServiceState::Away,
            Self { paused: true, .. } => ServiceState::Paused,
            Self { quarantined: true, .. } => ServiceState::Quarantined,
            _ => ServiceState::Ready,
        }
    }
}
