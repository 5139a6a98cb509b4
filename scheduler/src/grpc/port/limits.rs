//! The state of the port, which all its connections share.

use std::sync::Arc;

use super::connections::Connections;
use super::guesses::{self, Guesses};
use super::refusals::Refusals;
use crate::config::PortConfig;

/// The limits of the port, and what counts against them.
#[derive(Debug)]
pub struct Port {
    pub(crate) config: PortConfig,
    pub(crate) connections: Connections,
    pub(crate) guesses: Guesses,
    pub(crate) refusals: Arc<Refusals>,
}

impl Port {
    pub fn new(config: PortConfig) -> Self {
        let refusals = Arc::<Refusals>::default();
        let connections = Connections::new(&config, Arc::clone(&refusals));
        let guesses = Guesses::new(&config, (guesses::HOLD, guesses::PATIENCE), Arc::clone(&refusals));
        Self { config, connections, guesses, refusals }
    }

    /// A port that forgets wrong secrets at once, for tests that present many.
    #[cfg(test)]
    pub(crate) fn forgetful(config: PortConfig) -> Self {
        use std::time::Duration;

        let mut port = Self::new(config);
        port.guesses = Guesses::new(&port.config, (Duration::ZERO, guesses::PATIENCE), Arc::clone(&port.refusals));
        port
    }
}
