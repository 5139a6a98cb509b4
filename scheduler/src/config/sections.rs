//! The sections of the configuration file, each setting with its default and bounds, the macro that
//! declares a section, and the reasons why a configuration is invalid.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::model::durations_and_sizes::{deserialize_duration, in_largest_unit};
use crate::model::{CrawlPolicy, PolicyRequest, words};
use crate::store::schema::retention::RetainedKind;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
pub(super) const DAY: Duration = Duration::from_secs(24 * 3600);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// A tenth of a second, the lower bound of several duration settings.
const TENTH: Duration = Duration::from_millis(100);

/// The type of a setting with bounds. It reads values from a file, and formats them for messages.
pub(super) trait Setting: PartialOrd + Copy {
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error>;
    fn said(self) -> String;
}

impl Setting for u32 {
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::deserialize(from)
    }

    fn said(self) -> String {
        self.to_string()
    }
}

impl Setting for Duration {
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        deserialize_duration(from)
    }

    fn said(self) -> String {
        in_largest_unit(self)
    }
}

/// Checks that a value lies within its bounds.
pub(super) fn within<S: Setting>(key: &'static str, found: S, range: &RangeInclusive<S>) -> Result<(), ConfigError> {
    if range.contains(&found) {
        return Ok(());
    }
    Err(value(key, format!("{} to {}", range.start().said(), range.end().said()), found.said()))
}

/// Declares a section of the configuration file: each setting with its default and bounds. A
/// setting without bounds is written in brackets.
macro_rules! section {
    ($(#[$about:meta])* $section:ident $key:literal
     $([$(#[$free_doc:meta])* $free:ident: $free_type:ty = $free_default:expr])? {
        $($(#[$doc:meta])* $setting:ident: $type:ty = $default:expr, $bounds:expr;)+
    }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $section {
            $($(#[$free_doc])* pub $free: $free_type,)?
            $($(#[$doc])* #[serde(deserialize_with = "Setting::read")] pub $setting: $type,)+
        }

        impl Default for $section {
            fn default() -> Self {
                Self { $($free: $free_default,)? $($setting: $default,)+ }
            }
        }

        impl $section {
            pub(super) fn check_bounds(&self) -> Result<(), ConfigError> {
                $(within(concat!($key, ".", stringify!($setting)), self.$setting, &($bounds))?;)+
                Ok(())
            }
        }
    };
}

/// Why a configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("read the configuration {path}")]
    Read { path: PathBuf, source: std::io::Error },
    /// The file is not TOML, or has an unknown key or a value of the wrong type. Lines are
    /// counted from 1.
    #[error("{path}:{line}: {message}")]
    Parse { path: PathBuf, line: usize, message: String },
    /// A value is out of range, or contradicts another value.
    #[error("{key} must be {rule}, but is {value}")]
    Value { key: &'static str, rule: String, value: String },
    /// The file is valid TOML, but a value in it is not valid.
    #[error("{path}")]
    In { path: PathBuf, source: Box<ConfigError> },
}

/// The error for a value that does not follow the rule.
pub(super) fn value(key: &'static str, rule: impl Into<String>, value: impl Display) -> ConfigError {
    ConfigError::Value { key, rule: rule.into(), value: value.to_string() }
}

section! {
    /// The confirmations of the strategy `gnp-confirmed`.
    ConfirmConfig "confirm" {
        /// Maximum number of agents that measure a site, one after another, 1 to 16. A third agent
        /// still shortens the mean distance by several per cent, and a fifth agent by one or two.
        /// Sixteen agents delay a site by more than a minute.
        agents: u32 = 3, 1..=16;
        /// Samples per agent, 1 to 100. The median of three tolerates one bad sample.
        samples: u32 = 3, 1..=100;
    }
}

/// Parses the section `[crawl]` like a batch's policy, with the same bounds for values.
pub(super) fn crawl<'de, D: Deserializer<'de>>(from: D) -> Result<CrawlPolicy, D::Error> {
    let asked = PolicyRequest::deserialize(from)?.checked();
    let policy = asked.and_then(|asked| asked.or(&CrawlPolicy::default()).agreed());
    policy.map_err(|error| D::Error::custom(format!("crawl.{error}")))
}

/// Settings of the pages for browsers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DashboardConfig {
    /// Whether everybody who reaches the scheduler may read the pages without signing in. Only an
    /// operator may change something.
    pub public: bool,
    /// Whether everybody may read the metrics even if the scheduler listens on more than loopback.
    pub public_metrics: bool,
}

words!(
    /// The facts used to draw an agent from a task's candidates.
    #[derive(Default)]
    Draws {
        /// Agents with free slots are preferred, and results of crawls correct the distances. A
        /// task that waits for a slot moves to an agent that would finish it sooner.
        #[default]
        Balanced = "balanced",
        /// Considers only the distances, as in the paper: a full agent is as likely to be chosen as
        /// an idle one, and no waiting task is moved.
        Static = "static",
    }
);

section! {
    /// How long old rows are kept.
    KeepConfig "keep" {
        /// How long events stay in the log. In each round a site creates about eight events of some
        /// 150 bytes, so a million sites a day take 1.2 GB a day. With the default of a week, last
        /// Monday's events can still be looked up.
        events: Duration = 7 * DAY, 60 * MINUTE..=10 * YEAR;
        /// How long a round, with its assignments, leases and outcomes, is kept after a newer round
        /// of the same site and batch is created. Deleted rounds no longer appear in reports and
        /// `sites show`. A round takes about 2 KB.
        rounds: Duration = 90 * DAY, 60 * MINUTE..=10 * YEAR;
        /// How long assignments and leases are kept after a newer assignment of the same task. Once
        /// they are deleted, `sites show` lists only the later ones.
        moves: Duration = 7 * DAY, 60 * MINUTE..=10 * YEAR;
        /// How long measurements of sites are kept; at least `measure.site_max_age`. A waiting site
        /// whose measurements were deleted is assigned by its placement on the map alone.
        measurements: Duration = 90 * DAY, 60 * MINUTE..=10 * YEAR;
        /// How long sessions are kept after they end. If a crawl was lost in a deleted session, the
        /// cause is no longer known.
        sessions: Duration = 30 * DAY, 60 * MINUTE..=10 * YEAR;
        /// How long results of submissions are kept. After this time, a submission with the same
        /// key counts as new.
        submissions: Duration = 7 * DAY, 60 * MINUTE..=10 * YEAR;
        /// How long quarantines, and alarms of the map, are kept after they end.
        quarantines: Duration = YEAR, 60 * MINUTE..=10 * YEAR;
        /// How long an embedding stays in the history after its fit. `embedding history` lists only
        /// the embeddings that are still kept.
        embeddings: Duration = YEAR, 60 * MINUTE..=10 * YEAR;
        /// How long an enrolment token is kept after it expires, whether it was used, revoked or
        /// neither. Until a token is deleted, `agents tokens --all` lists it, and an agent that
        /// uses it learns why it is invalid.
        enrolments: Duration = 30 * DAY, 60 * MINUTE..=10 * YEAR;
        /// How long each minute's throughput is kept. A batch adds a row of some 60 bytes in each
        /// minute in which one of its crawls ends.
        minutes: Duration = 90 * DAY, 60 * MINUTE..=10 * YEAR;
    }
}

impl KeepConfig {
    /// The time for which rows of this kind are kept.
    pub const fn of(&self, subject: RetainedKind) -> Duration {
        match subject {
            RetainedKind::Rounds => self.rounds,
            RetainedKind::Moves => self.moves,
            RetainedKind::Measurements => self.measurements,
            RetainedKind::Sessions => self.sessions,
            RetainedKind::Submissions => self.submissions,
            RetainedKind::Quarantines => self.quarantines,
            RetainedKind::Embeddings => self.embeddings,
            RetainedKind::Enrolments => self.enrolments,
            RetainedKind::Minutes => self.minutes,
        }
    }

    /// Checks that all rows are kept for at least the life and grace of a lease, and measurements
    /// for at least as long as they are used.
    pub(super) fn check_life(&self, lease: &LeaseConfig, measure: &MeasureConfig) -> Result<(), ConfigError> {
        let rows = RetainedKind::ALL.iter().map(|kind| (kind.name(), self.of(*kind)));
        let all = [("keep.events", self.events)].into_iter().chain(rows);
        let lived = lease.life + lease.grace;
        if let Some((key, kept)) = all.into_iter().find(|(_, kept)| *kept < lived) {
            let rule = format!("at least lease.life and lease.grace together ({})", lived.said());
            return Err(value(key, rule, kept.said()));
        }
        if self.measurements < measure.site_max_age {
            let rule = format!("at least measure.site_max_age ({})", measure.site_max_age.said());
            return Err(value("keep.measurements", rule, self.measurements.said()));
        }
        Ok(())
    }
}

section! {
    /// How lost landmarks are replaced.
    LandmarksConfig "landmarks" {
        /// How long an elected landmark may be disconnected before another is elected to replace
        /// it, 10 s to 365 days. A restart or a brief loss of the connection should not change the
        /// map. A landmark set by hand is never replaced.
        replace_after: Duration = 10 * MINUTE, 10 * SECOND..=YEAR;
    }
}

section! {
    /// The lifetime of leases.
    LeaseConfig "lease" {
        /// Mean time between heartbeats, 100 ms to 1 min. A shorter interval detects dead agents
        /// sooner; each heartbeat updates one row.
        heartbeat_interval: Duration = 10 * SECOND, TENTH..=MINUTE;
        /// How long an agent may crawl after sending a heartbeat; at least twice the interval, so
        /// that one lost heartbeat does not end a crawl.
        life: Duration = 30 * SECOND, 2 * TENTH..=DAY;
        /// How much longer the scheduler waits for a lost agent, 100 ms to 1 min. This allows for
        /// network delay and clock drift.
        grace: Duration = 5 * SECOND, TENTH..=MINUTE;
        /// Maximum number of sessions of an agent that are replaced per minute, 2 to 600. A bad
        /// connection causes one or two; two processes with one credential cause one after another.
        max_supersessions: u32 = 10, 2..=600;
        /// Number of crashes after which a task fails as poison, 1 to 100. A broken connection or a
        /// restarted machine counts as one crash, seldom two, for each task that the agent held.
        max_crashes: u32 = 5, 1..=100;
        /// How long after a crawl's time limit its lease is taken back, 1 s to 1 day. External
        /// crawlers need up to 30 s to stop, and a slow disk needs time to store the outcome.
        overtime: Duration = 2 * MINUTE, SECOND..=DAY;
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

section! {
    /// Limits per address, over all agents together.
    PolitenessConfig "politeness" {
        /// Maximum number of sites at one address that are crawled at once, over all agents, 1 to
        /// 1000. The limit is lower for an address with few known sites: the square root of their
        /// number. Eight crawls at one request a second load a server as much as one busy person.
        crawls_at_address: u32 = 8, 1..=1000;
    }
}

section! {
    /// What connections and calls may take of the scheduler. A stranger's connection is one on which
    /// no right token or credential was presented yet. A peer is an IPv4 address, or the first 64
    /// bits of an IPv6 address.
    PortConfig "port" {
        /// Maximum number of connections, 16 to 1000000. An agent has one connection. A connection
        /// takes about 50 KB and one of the process' descriptors, of which a quarter is left to the
        /// database and to files.
        connections: u32 = 16_384, 16..=1_000_000;
        /// Maximum number of connections of one peer, 4 to 1000000. All agents behind a NAT or a
        /// balancer are one peer; the default is enough for a thousand agents and their reconnects.
        peer_connections: u32 = 8192, 4..=1_000_000;
        /// Maximum number of strangers' connections, 8 to 1000000. If there are more, the oldest one
        /// of the peer with most of them is closed. An agent is a stranger for some milliseconds.
        /// Silent sockets take little memory, and those who are cut off return at once, so a low
        /// limit costs more processor time than it saves memory.
        strangers: u32 = 8192, 8..=1_000_000;
        /// Maximum number of strangers' connections of one peer, 2 to 1000000. If there are more,
        /// the peer's oldest one is closed. The default lets a thousand agents behind one address
        /// return while a stranger behind the same address holds five thousand sockets.
        peer_strangers: u32 = 6144, 2..=1_000_000;
        /// Maximum number of open calls and pages of one peer's strangers, 2 to 100000; of all
        /// peers, 16 times as many. Further calls are refused, and agents repeat them.
        stranger_calls: u32 = 512, 2..=100_000;
        /// How long a stranger's connection may be without a request, 1 s to 1 day; longer than
        /// Prometheus' usual interval.
        stranger_idle: Duration = 90 * SECOND, SECOND..=DAY;
        /// Maximum duration of a TLS handshake, 500 ms to 1 min. Over a satellite, a handshake takes
        /// two seconds, and five if a packet is lost.
        handshake: Duration = 5 * SECOND, 5 * TENTH..=MINUTE;
        /// Maximum time from the handshake to the first whole head of a request, 500 ms to 1 min.
        first_request: Duration = 10 * SECOND, 5 * TENTH..=MINUTE;
        /// Maximum number of streams that a connection may have open, 16 to 10000. An agent needs
        /// one or two, and browsers and HTTP libraries expect to get a hundred.
        streams: u32 = 128, 16..=10_000;
        /// Number of wrong tokens and credentials of one peer within eight seconds, 1 to 1000; others
        /// wait. The database sees no more guesses than this.
        wrong_secrets: u32 = 16, 1..=1000;
    }
}

impl PortConfig {
    /// Checks that a part of the connections is not larger than all of them.
    pub(super) fn check_parts(&self) -> Result<(), ConfigError> {
        let Self { connections, peer_connections, strangers, peer_strangers, .. } = *self;
        for (key, part, name, whole) in [
            ("port.peer_connections", peer_connections, "port.connections", connections),
            ("port.strangers", strangers, "port.connections", connections),
            ("port.peer_strangers", peer_strangers, "port.strangers", strangers),
        ] {
            if part > whole {
                return Err(value(key, format!("at most {name} ({whole})"), part));
            }
        }
        Ok(())
    }
}

section! {
    /// How roles pass from one scheduler to another.
    TermConfig "term" {
        /// How long an unresponsive scheduler keeps its roles, 300 ms to 1 min. A leader renews its
        /// roles four times within this time. With a shorter time, another scheduler takes over
        /// sooner after a crash; with a longer time, roles survive a brief stall of the database or
        /// machine. All schedulers of one database should use the same value.
        life: Duration = 5 * SECOND, 3 * TENTH..=MINUTE;
    }
}
