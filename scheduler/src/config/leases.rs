//! How leases live, and how soon another scheduler takes over.

use std::time::Duration;

use humantime_serde::re::humantime::format_duration;
use serde::Deserialize;

use super::{ConfigError, DAY, MINUTE, TENTH, counted, value, within};

/// How leases live.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LeaseConfig {
    /// Mean time between two heartbeats, 100 ms to 1 min. Shorter finds dead agents sooner and costs one row update each.
    #[serde(with = "humantime_serde")]
    pub heartbeat_interval: Duration,
    /// How long an agent may crawl after sending a heartbeat; at least twice the interval, so that one may be lost.
    #[serde(with = "humantime_serde")]
    pub life: Duration,
    /// How much longer the scheduler waits before it gives the leases to another, 100 ms to 1 min: it covers the
    /// network's delay and the drift of two clocks over one life. What waits at an agent that hung up, not begun, waits as long
    /// for it to come back: most do within a second.
    #[serde(with = "humantime_serde")]
    pub grace: Duration,
    /// Sessions of one agent superseded within a minute from which on further ones are refused, 2 to 600. A bad line breaks a
    /// session or two a minute; two processes with one credential break each other's all the time.
    pub max_supersessions: u32,
    /// Crashes of one task after which it is given up as poison, 1 to 100. A page that kills its crawler takes every one of its
    /// leases; a line that is down, or a machine that is restarted, takes one of each task the agent held, seldom two.
    pub max_crashes: u32,
}

impl Default for LeaseConfig {
    fn default() -> Self {
        Self {
            heartbeat_interval: Duration::from_secs(10),
            life: Duration::from_secs(30),
            grace: Duration::from_secs(5),
            max_supersessions: 10,
            max_crashes: 5,
        }
    }
}

impl LeaseConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        within("lease.heartbeat_interval", self.heartbeat_interval, &(TENTH..=MINUTE))?;
        within("lease.life", self.life, &(2 * TENTH..=DAY))?;
        within("lease.grace", self.grace, &(TENTH..=MINUTE))?;
        counted("lease.max_supersessions", self.max_supersessions, &(2..=600))?;
        counted("lease.max_crashes", self.max_crashes, &(1..=100))?;
        if self.life < 2 * self.heartbeat_interval {
            let rule =
                format!("at least twice lease.heartbeat_interval ({})", format_duration(self.heartbeat_interval));
            return Err(value("lease.life", rule, format_duration(self.life)));
        }
        Ok(())
    }
}

/// How duties pass from one scheduler to another.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TermConfig {
    /// How long a scheduler that is not heard of keeps its duties, 300 ms to 1 min. It is renewed four times as often. Shorter,
    /// and another takes over sooner after a crash; longer, and a database or machine that stands still for a moment costs no
    /// change. All schedulers of one database should say the same.
    #[serde(with = "humantime_serde")]
    pub life: Duration,
}

impl Default for TermConfig {
    fn default() -> Self {
        Self { life: Duration::from_secs(5) }
    }
}

impl TermConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        within("term.life", self.life, &(3 * TENTH..=MINUTE))
    }
}
