//! `landfall simulate`: evaluates the map and the strategies on a measured matrix, without a fleet.
//!
//! The command needs no scheduler and no database. The module `simulate` computes the figures; this
//! module parses the flags and prints the report.

use std::io::Write as _;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::thread;

use clap::Args;
use serde::Serialize;

use super::ConnectionArgs;
use super::files::{beside, write};
use super::filters::one_of;
use super::output::progress_bar::Bar;
use super::output::{self, Column, Row, ShowFormatArgs, View, float_cell as figure};
use crate::app::exit::{sentence, usage};
use crate::gnp::{PlainSwitches, RefinedSwitches, Tier};
use crate::model::Strategy;
use crate::simulate::{
    ContenderScore, Distributions, Election, Estimate, FileError, Matrix, Node, Page, Report, Settings, SettingsError,
    SimulateError, dump, judge, judged, page, read_nodes,
};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall simulate --matrix rtt.csv.gz                                    thirty agents, nine of them landmarks
  landfall simulate --matrix rtt.csv.gz --landmarks 15 --format json
  landfall simulate --matrix rtt.csv.gz --strategy gnp-top3,gnp-confirmed --dump pairs.csv")]
pub(super) struct SimulateArgs {
    /// Measured round trips: a square matrix in milliseconds, comma-separated, gzip or plain,
    /// without a header; rows are sources, columns are destinations, nan means not measured
    #[arg(long, value_name = "FILE")]
    matrix: PathBuf,
    /// Number of nodes that are agents, drawn with the seed; every other node is a site
    #[arg(long, default_value_t = 30)]
    agents: usize,
    /// Number of agents that are landmarks, elected by the round trips between agents
    #[arg(long, default_value_t = 9)]
    landmarks: usize,
    /// Dimensions of the maps gnp and plain [default: min(8, landmarks - 1)]
    #[arg(long)]
    dims: Option<usize>,
    /// Number of seeds; agents are drawn anew for each
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    /// The first seed; the others follow it
    #[arg(long, default_value_t = 0, value_name = "SEED")]
    first_seed: u64,
    /// Number of sites for each seed, drawn from all sites [default: all]
    #[arg(long, value_name = "N")]
    sites: Option<usize>,
    /// Strategies to compare; all leaves out domain, geographic and prefix unless --nodes gives the
    /// data that they need
    #[arg(long, value_name = "all|NAME,...", value_delimiter = ',', default_value = "all")]
    strategy: Vec<String>,
    /// The map that predicts round trips
    #[arg(long, default_value = Tier::Refined.name(), value_parser = one_of(Tier::ALL.iter().copied(), Tier::name))]
    tier: Tier,
    /// Leave ingredients out of the map to see the effect of each. The plain map has mesh, height,
    /// log, robust and prior; the refined map has height, robust and all the others
    #[arg(long, value_name = "INGREDIENT,...", value_delimiter = ',', value_parser = one_of(ingredients(), |name| name))]
    without: Vec<&'static str>,
    /// How landmarks are chosen
    #[arg(long, default_value = Election::Improved.name(), value_parser = one_of(Election::ALL.iter().copied(), Election::name))]
    election: Election,
    /// Number of agents that gnp-confirmed asks to measure a site once
    #[arg(long, default_value_t = 3, value_name = "K")]
    confirm: usize,
    /// Number of crawls of each site; each crawl uses what was learnt from the earlier ones
    #[arg(long, default_value_t = 1, value_name = "N")]
    crawls: usize,
    /// More data about the nodes: CSV whose header names some or all of name, latitude, longitude,
    /// country and address; one line per node, in the order of the matrix
    #[arg(long, value_name = "FILE")]
    nodes: Option<PathBuf>,
    /// Write a page with the table and plots to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    format: ShowFormatArgs<ContenderScore>,
    /// Write every evaluated pair to this file:
    /// seed,site,agent,is_landmark,measured_ms,predicted_ms,rank
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
}

/// The names of the ingredients of all maps (the parts that `--without` can switch off), without
/// duplicates.
fn ingredients() -> impl Iterator<Item = &'static str> + Clone {
    let plain = PlainSwitches::NAMES.iter().copied();
    plain.chain(RefinedSwitches::NAMES.iter().copied().filter(|name| !PlainSwitches::NAMES.contains(name)))
}

/// The report, as printed in JSON.
#[derive(Debug, Serialize)]
struct Answer<'a> {
    matrix: String,
    #[serde(flatten)]
    report: &'a Report,
}

impl SimulateArgs {
    pub(super) fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        connection.refuse("this command needs no scheduler")?;
        let nodes = self.nodes.as_deref().map_or(Ok(Vec::new()), read_nodes).map_err(untaken)?;
        let settings = self.settings(nodes)?;
        let matrix = Matrix::read(&self.matrix).map_err(untaken)?;
        settings.check(&matrix).map_err(|error| match error {
            SettingsError::Matrix(_) => usage(format!("{}: {error}", self.matrix.display())),
            SettingsError::Nodes(_) => {
                usage(format!("{}: {error}", self.nodes.as_deref().unwrap_or(&self.matrix).display()))
            }
            SettingsError::Nonsense(complaint) => usage(complaint),
        })?;
        for (flag, file) in [("--dump", &self.dump), ("--html", &self.html)] {
            // The files are checked before the simulation, so that an error is reported at once.
            file.as_deref().map(|file| beside(flag, file)).transpose()?;
        }
        let bar = Bar::counted(settings.sites_in_all(matrix.nodes()), "sites");
        let judged = judge(&matrix, &settings, &|| bar.inc(1));
        drop(bar);
        let judged = judged.map_err(refusal)?;
        let report = Report::of(matrix.nodes(), &settings, &judged);
        if let Some(file) = &self.dump {
            write("--dump", file, |beside| Ok(dump(&judged, beside)?))?;
        }
        let name = self.matrix.display().to_string();
        if let Some(file) = &self.html {
            let told = self.nodes.as_deref().map(|nodes| nodes.display().to_string());
            let distributions = &Distributions::of(&settings, &judged);
            let (matrix, nodes, settings, report) = (name.as_str(), told.as_deref(), &settings, &report);
            let text = page(&Page { matrix, nodes, settings, report, distributions });
            write("--html", file, |mut beside| Ok(beside.write_all(text.as_bytes())?))?;
        }
        self.format.print(&Answer { matrix: name, report: &report }, |answer, view| Ok(text(answer, view)))
    }

    fn settings(&self, nodes: Vec<Node>) -> anyhow::Result<Settings> {
        let strategies = match self.strategy.as_slice() {
            [all] if all == "all" => judged(&nodes).collect(),
            names => names
                .iter()
                .map(|name| name.parse::<Strategy>())
                .collect::<Result<Vec<_>, _>>()
                .map_err(|unknown| usage(format!("--strategy: {unknown}; all stands for all of them")))?,
        };
        Ok(Settings {
            agents: self.agents,
            landmarks: self.landmarks,
            dims: self.dims,
            first_seed: self.first_seed,
            seeds: self.seeds,
            sites: self.sites,
            strategies,
            tier: self.tier,
            without: self.without.clone(),
            election: self.election,
            confirm: self.confirm,
            crawls: self.crawls,
            nodes,
            threads: thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        })
    }
}

/// Reports an error in a file's content as a usage error.
fn untaken(error: FileError) -> anyhow::Error {
    match error {
        FileError::Read { .. } => anyhow::Error::new(error),
        FileError::Nonsense(complaint) => usage(complaint),
    }
}

/// Reports impossible settings and elections as usage errors.
fn refusal(error: SimulateError) -> anyhow::Error {
    match error {
        SimulateError::Settings(_) | SimulateError::Elect { .. } => usage(sentence(&anyhow::Error::new(error))),
        SimulateError::Fit { .. } => anyhow::Error::new(error),
    }
}

fn text(Answer { matrix, report }: &Answer<'_>, view: &View) -> String {
    let &Report { nodes, agents, landmarks, seeds, first_seed, election, .. } = *report;
    let last = report.last_seed();
    let drawn = if seeds == 1 { format!("seed {last}") } else { format!("seeds {first_seed} to {last}") };
    let each = report.sites / usize::try_from(seeds).unwrap_or(usize::MAX).max(1);
    let map = report.map();
    let head = format!(
        "{matrix}: {nodes} nodes, {drawn}\n\
         each seed: {agents} agents, {landmarks} of them landmarks ({election}), {each} sites that only landmarks measured\n\
         map: {map}\n\n"
    );
    let yardstick = |name: &str, mean_rtt_ms: Option<f64>| ContenderScore {
        name: name.to_owned(),
        mean_rtt_ms,
        stretch: mean_rtt_ms.zip(report.oracle_rtt_ms).map(|(mean, oracle)| mean / oracle),
        ..ContenderScore::default()
    };
    let mut rows =
        vec![yardstick("(nearest agent)", report.oracle_rtt_ms), yardstick("(any agent)", report.random_rtt_ms)];
    rows.extend_from_slice(&report.strategies);
    view.fold(
        &(head + &estimate_text(report) + "\n" + &output::table(&rows, view) + &left_out(report) + &learning(report)),
    )
}

/// Names the strategies that could not be judged, and the strategies that lacked data
/// for some sites.
fn left_out(report: &Report) -> String {
    let mut text = String::new();
    for left in &report.left_out {
        if let Some(lacks) = left.lacks {
            text += &format!("left out: {}, which needs {lacks}: give --nodes FILE\n", left.name);
        }
    }
    for ContenderScore { name, fallbacks, .. } in report.strategies.iter().filter(|standing| standing.fallbacks > 0) {
        text += &format!(
            "{name} had no data on {} and drew an agent at random\n",
            output::counted(*fallbacks as u64, "site")
        );
    }
    text
}

/// Describes how much longer the chosen agent's round trip is than the nearest agent's, in each
/// crawl of the same sites; empty if sites are crawled only once.
fn learning(report: &Report) -> String {
    let learned = || report.strategies.iter().filter(|standing| standing.excess_ms.len() > 1);
    if learned().next().is_none() {
        return String::new();
    }
    let mut text =
        "\n\nexcess over the nearest agent in each crawl of the same sites, ms (median of seeds), and its ratio to \
         the first crawl's\n"
            .to_owned();
    for ContenderScore { name, excess_ms, .. } in learned() {
        let first = excess_ms.first().copied().unwrap_or(0.0);
        let one = |excess: &f64| format!("{excess:>8.2} ({:>4.2})", excess / first);
        let cells: Vec<String> = excess_ms.iter().map(one).collect();
        text += &format!("{name:<16} {}\n", cells.join(" "));
    }
    text
}

fn estimate_text(report: &Report) -> String {
    let Estimate { re50, re90, acc70, acc80, top1_hit, top3_hit } = report.estimate;
    let mut text = format!(
        "relative error  median {}, 90 % below {}: {} pairs of a site and an agent that is no landmark\n\
         accuracy        {} over the best 70 %, {} over the best 80 %\n\
         nearest agent   ranked first for {} of the sites, among the first three for {}\n",
        figure(re50, 3),
        figure(re90, 3),
        report.pairs,
        figure(acc70, 3),
        figure(acc80, 3),
        figure(top1_hit, 3),
        figure(top3_hit, 3),
    );
    text += &format!("sites without an estimate: {}\n", report.sites_without_estimate);
    let oddities = [
        ("of them measured by no landmark, so that an agent was drawn", report.sites_unmeasured),
        ("sites left out, as the matrix has no round trip between them and any agent", report.sites_unknown),
        ("pairs without an estimate, left out of the relative error", report.pairs_without_estimate),
        ("seeds without a map, as their landmarks measured too little of each other", report.seeds_without_map),
    ];
    for (what, count) in oddities.into_iter().filter(|(_, count)| *count > 0) {
        text += &format!("{what}: {count}\n");
    }
    text
}

impl Row for ContenderScore {
    const COLUMNS: &'static [Column<Self>] = &[
        ("strategy", |row, _| row.name.clone()),
        (">mean rtt ms", |row, _| figure(row.mean_rtt_ms, 1)),
        (">stretch", |row, _| figure(row.stretch, 3)),
        (">probes a site", |row, _| figure(row.probes_per_site, 1)),
        (">load cv", |row, _| figure(row.load_cv, 2)),
    ];
}
