//! Whether an agent accepts work.

/// Whether an agent accepts work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServiceState {
    Ready,
    /// It finishes its leases and takes no new ones.
    Draining,
    /// It takes no new leases and has none left.
    Drained,
    /// It takes no leases until a problem that it reported is over.
    Paused,
    Away,
    Removed,
    /// It takes work, but its measurements are ignored.
    Quarantined,
    NeverConnected,
}

/// What decides an agent's service state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct ServiceFacts {
    pub removed: bool,
    pub draining: bool,
    /// Whether it holds a lease.
    pub leased: bool,
    /// Whether it has ever connected.
    pub known: bool,
    /// Whether it has an active session with an open stream.
    pub connected: bool,
    pub paused: bool,
    pub quarantined: bool,
}

impl ServiceFacts {
    /// If several states apply, those caused by the operator take precedence, then those that
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
