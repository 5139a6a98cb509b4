//! The section `[measure]`: how often, and with how many samples, hosts are measured.

use std::time::Duration;

use serde::Deserialize;

use super::error::ConfigError;
use super::section::{DAY, MINUTE, SECOND, Setting, TENTH, YEAR, section, within};

/// What a round trip measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// From sending a request on a warm connection to the first byte of the response, as in the
    /// paper.
    Ttfb,
    /// The TCP handshake.
    Connect,
    /// ICMP echo; about 30 % of sites do not answer it.
    Icmp,
}

section! {
    /// How hosts are measured.
    MeasureConfig "measure" [
        metric: Metric = Metric::Ttfb
    ] {
        /// Maximum samples of a site per landmark, 1 to 100. A landmark stops earlier if its
        /// samples agree; the default is enough for sites whose samples do not agree.
        site_samples: u32 = 20, 1..=100;
        /// Samples of a site before a landmark may stop early, 1 to 100. If this is `site_samples`
        /// or more, a landmark never stops early.
        site_least_samples: u32 = 3, 1..=100;
        /// Number of samples that an agent takes of another agent's beacon, 1 to 100. Politeness
        /// sets no limit, because beacons are our own.
        mesh_samples: u32 = 10, 1..=100;
        /// Minimum time between two probes of a site, even by different landmarks, at least 100 ms;
        /// 1 s is polite.
        site_interval: Duration = SECOND, TENTH..=DAY;
        /// Minimum time between two probes of one beacon by one agent.
        mesh_interval: Duration = Duration::from_millis(20), Duration::ZERO..=MINUTE;
        /// Time after which a sample counts as lost, 100 ms to 1 min.
        sample_timeout: Duration = 5 * SECOND, TENTH..=MINUTE;
        /// How many orders to measure sites an agent may have at a time, 1 to 10000. Most of them
        /// wait for `site_interval`.
        max_site_orders: u32 = 256, 1..=10_000;
        /// How many orders to measure beacons an agent may have at a time, 1 to 32. More orders
        /// would queue in the agent and disturb each other's measurements.
        max_mesh_orders: u32 = 4, 1..=32;
        /// Maximum number of other agents that each agent measures, in addition to the landmarks.
        max_mesh_peers: u32 = 32, 0..=1000;
        /// Age at which a measurement of a beacon is repeated.
        mesh_max_age: Duration = 60 * MINUTE, SECOND..=YEAR;
        /// Maximum age, up to a day, of a measurement that sites at one address share. With 0, no
        /// measurement is shared.
        share_max_age: Duration = 15 * MINUTE, Duration::ZERO..=DAY;
        /// Age from which a measurement of a site is no longer used for new tasks.
        site_max_age: Duration = DAY, SECOND..=YEAR;
    }
}
