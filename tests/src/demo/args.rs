//! Defines the arguments of `lab demo`, and makes the scenario that they ask for.

use std::path::PathBuf;

use anyhow::ensure;
use clap::Args;
use landfall_scheduler::simulate::Matrix;

use crate::world::Grade;
use crate::world::scenario::{Layout, PAPER, Scenario};

/// Arguments of `lab demo`.
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// Draw agents and sites from a matrix of measured round trips (CSV, gzip or plain,
    /// milliseconds)
    #[arg(long, value_name = "FILE", conflicts_with = "scenario")]
    pub(super) matrix: Option<PathBuf>,
    /// A layout other than the paper's (TOML)
    #[arg(long, value_name = "FILE")]
    pub(super) scenario: Option<PathBuf>,
    /// How the network is emulated: rootless, or tun, which needs root
    #[arg(long, value_enum, default_value_t = Grade::Rootless)]
    pub(super) grade: Grade,
    /// The seed of the nodes drawn from a matrix, or of the sites of a layout [default: 1, or the
    /// layout's]
    #[arg(long, value_name = "N")]
    pub(super) seed: Option<u64>,
    /// Number of agents [default: 30, or the layout's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=250))]
    pub(super) agents: Option<u16>,
    /// Number of sites [default: 203, or the layout's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=2000))]
    pub(super) sites: Option<u16>,
    /// How agents are chosen: random, gnp-top1, gnp-top3 or gnp-confirmed
    #[arg(long, default_value = "gnp-top3")]
    pub(super) strategy: landfall_scheduler::model::Strategy,
    /// Number of landmarks to elect
    #[arg(long, value_name = "N", default_value_t = 9)]
    pub(super) landmarks: u16,
    /// Dimensions of the map [default: min(8, landmarks - 1)]
    #[arg(long, value_name = "N")]
    pub(super) dims: Option<u16>,
    /// Also print the operator's own reports, every check and every target
    #[arg(long)]
    pub(super) verbose: bool,
    /// At the end, keep everything running until Ctrl-C, so that you can look at the dashboard
    #[arg(long)]
    pub(super) keep: bool,
    /// Fail when a target is missed, or when this computer is too busy for its times to be trusted
    #[arg(long)]
    pub(super) strict: bool,
}

impl DemoArgs {
    pub(super) fn validate(&self) -> anyhow::Result<()> {
        ensure!(self.landmarks >= 3, "--landmarks must be 3 or more, but is {}", self.landmarks);
        if let Some(dims) = self.dims {
            let most = self.landmarks - 1;
            ensure!(
                (1..=most).contains(&dims),
                "--dims {dims} asked of {} landmarks: they span 1 to {most}",
                self.landmarks
            );
        }
        Ok(())
    }

    pub(super) fn scenario(&self) -> anyhow::Result<Scenario> {
        let (agents, sites) = (self.agents.map(usize::from), self.sites.map(usize::from));
        if let Some(file) = &self.matrix {
            let matrix = Matrix::read(file)?;
            let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
            return Scenario::from_matrix(
                &matrix,
                &name,
                self.seed.unwrap_or(1),
                agents.unwrap_or(30),
                sites.unwrap_or(203),
            );
        }
        let mut layout = match &self.scenario {
            Some(file) => Layout::read(file)?,
            None => Layout::parse(PAPER, "paper.toml")?,
        };
        layout.seed = self.seed.unwrap_or(layout.seed);
        layout.scenario(agents, sites)
    }
}
