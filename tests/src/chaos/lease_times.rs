//! Gives the schedulers of a run their lease times, short or real, and limits for a fleet that
//! suffers many faults.

use std::time::Duration;

#[derive(Debug, Clone, Copy)]
pub(super) struct LeaseTimes {
    pub(super) heartbeat: Duration,
    pub(super) life: Duration,
    pub(super) grace: Duration,
}

impl LeaseTimes {
    pub(super) const SHORT: Self =
        Self { heartbeat: Duration::from_millis(500), life: Duration::from_secs(3), grace: Duration::from_millis(500) };

    pub(super) fn real() -> Self {
        let real = landfall_scheduler::config::LeaseConfig::default();
        Self { heartbeat: real.heartbeat_interval, life: real.life, grace: real.grace }
    }

    pub(super) fn lifetime(self) -> Duration {
        self.life + self.grace
    }

    /// The schedulers' configuration. The limits on crashes, and on sessions replaced by newer
    /// sessions of the same agent, are higher than the defaults. Ten agents suffer more faults in
    /// this run than a whole fleet does in a year.
    pub(super) fn scheduler(self) -> String {
        let Self { heartbeat, life, grace } = self;
        // A term lasts at most a third of a session's life, so that the roles of a killed leader
        // pass to another scheduler faster than sessions expire.
        let term = landfall_scheduler::config::TermConfig::default().life.min(life / 3);
        format!(
            "[term]\nlife = '{term:?}'\n[lease]\nheartbeat_interval = '{heartbeat:?}'\nlife = '{life:?}'\ngrace = '{grace:?}'\n\
             max_supersessions = 600\nmax_crashes = 100\n\
             [measure]\nsite_interval = '100ms'\nsite_samples = 4\nmax_site_orders = 2000\n"
        )
    }
}
