//! The section `[lease]`: how long a lease lasts, and how often an agent may fail.

use std::time::Duration;

use serde::Deserialize;

use super::error::{ConfigError, value};
use super::section::{DAY, MINUTE, SECOND, Setting, TENTH, section, within};

section! {
    /// The lifetime of leases.
    LeaseConfig "lease" {
        /// Mean time between heartbeats, 100 ms to 1 min. A shorter interval detects dead agents
        /// sooner; each heartbeat updates one row.
        heartbeat_interval: Duration = 10 * SECOND, TENTH..=MINUTE;
        /// How long an agent may crawl after sending a heartbeat; at least twice the interval, so
        /// that one lost heartbeat does not end a crawl.
        life: Duration = 30 * SECOND, 2 * TENTH..=DAY;
        /// How much longer the scheduler waits before it gives the leases to another agent, 100 ms
        /// to 1 min. This allows for the network's delay and the drift of clocks. A lost agent
        /// also keeps its waiting tasks for this time, because most agents return within a second.
        grace: Duration = 5 * SECOND, TENTH..=MINUTE;
        /// Maximum number of times per minute that a new session of an agent may replace the
        /// agent's previous session, 2 to 600; further sessions are refused. A bad connection
        /// causes one or two replacements a minute; two processes with one credential replace each
        /// other's session all the time.
        max_supersessions: u32 = 10, 2..=600;
        /// Number of crashes after which a task fails as poison, 1 to 100. A page that kills its
        /// crawler crashes every lease of its task. A broken connection or a restarted machine
        /// counts as one crash, seldom as two, for each task that the agent held.
        max_crashes: u32 = 5, 1..=100;
    }
}

impl LeaseConfig {
    /// Checks that a lease lasts for at least two heartbeats.
    pub(super) fn check_life(&self) -> Result<(), ConfigError> {
        let Self { life, heartbeat_interval, .. } = *self;
        if life < 2 * heartbeat_interval {
            let rule = format!("at least twice lease.heartbeat_interval ({})", heartbeat_interval.said());
            return Err(value("lease.life", rule, life.said()));
        }
        Ok(())
    }
}
