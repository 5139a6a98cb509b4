//! The arguments of `lab chaos`, and the lease times of its schedulers, short or real, with limits
//! for a fleet that suffers many faults.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::world::Grade;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables.
    Table,
    /// One JSON object.
    Json,
}

#[derive(Debug, Clone, Args)]
pub struct ChaosArgs {
    /// Number of sites to crawl
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(super) sites: u32,
    /// Number of faults to inject
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub(super) faults: u32,
    /// The seed of the faults
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Mean time between the starts of two successive faults [default: chosen so that the sites
    /// last as long as the faults]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(super) interval: Option<Duration>,
    /// How the network is emulated: rootless, or tun, which needs root [default: tun if this
    /// machine supports it]
    #[arg(long, value_enum)]
    pub(super) grade: Option<Grade>,
    /// Maximum duration of a fault, in hundredths of a session's lifetime
    #[arg(long, value_name = "N", default_value_t = 140, value_parser = clap::value_parser!(u16).range(20..=2000))]
    pub(super) longest: u16,
    /// Number of schedulers, all on one Postgres
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub(super) schedulers: u8,
    /// Inject only these kinds of fault, named as in by_fault of the JSON output
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub(super) only: Vec<String>,
    /// Use the lease times of a real deployment
    #[arg(long)]
    pub(super) real_times: bool,
    /// An older build of landfall-agent, with which some of the faults restart an agent
    #[arg(long, value_name = "FILE")]
    pub(super) old_agent: Option<PathBuf>,
    /// Write the whole record to this file
    #[arg(long, value_name = "FILE")]
    pub(super) record: Option<PathBuf>,
    /// Time between two requests of a crawl to one site
    #[arg(long, value_name = "TIME", default_value = "250ms")]
    pub(super) request_interval: String,
    /// The output format
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(super) format: Format,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct LeaseTimes {
    heartbeat: Duration,
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
