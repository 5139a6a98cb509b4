//! Changes the paper's map step by step into Landfall's map. The map of each step is evaluated on
//! the paper's layout and on matrices of measured round trips.
//!
//! No row has a target, because the table only shows the contribution of each step. Further rows
//! are about parts of Landfall that do not belong to the map: confirmation, balance, planning and
//! learning. Each of these rows gives the growth and the makespan of a simulated batch, relative to
//! Top-3 on the refined map.

use std::num::NonZeroUsize;
use std::path::Path;
use std::thread;

use landfall_scheduler::gnp::Tier;
use landfall_scheduler::model::Strategy;
use landfall_scheduler::simulate::{Report, Settings};

use super::{Line, median};
use crate::experiments::paper::matrices::MatrixSource;
use crate::experiments::sweep::batch::BatchResult;
use crate::experiments::sweep::settings::{LayoutData, Settings as SweepSettings};
use crate::experiments::sweep::{DATA, LayoutSimulation};

/// Number of sites per seed, as in the paper.
const SITES: usize = 203;

/// A map. `without` lists the parts of Landfall's method that the map lacks.
struct Step {
    name: &'static str,
    tier: Tier,
    without: &'static [&'static str],
}

const fn step(name: &'static str, tier: Tier, without: &'static [&'static str]) -> Step {
    Step { name, tier, without }
}

/// Each map has one more part of Landfall's method than the map before it.
const STEPS: [Step; 8] = [
    step("gnp, as published", Tier::Gnp, &[]),
    step("+ mesh", Tier::Plain, &["height", "log", "robust", "prior"]),
    step("+ height", Tier::Plain, &["log", "robust", "prior"]),
    step("+ log error", Tier::Plain, &["robust", "prior"]),
    step("+ Huber's loss", Tier::Plain, &["prior"]),
    step("+ prior: plain", Tier::Plain, &[]),
    step("refined cloud without penalty", Tier::Refined, &["penalty"]),
    step("+ penalty: refined", Tier::Refined, &[]),
];

/// Ways to choose agents on the refined map.
const CHOICES: [(&str, Strategy); 3] = [
    ("confirmation: gnp-confirmed", Strategy::GnpConfirmed),
    ("balance: gnp-balanced", Strategy::GnpBalanced),
    ("planning: earliest-finish", Strategy::EarliestFinish),
];
const LEARNING: &str = "learning: earliest-finish, second crawl";

const STRATEGIES: [Strategy; 3] = [Strategy::GNP_TOP1, Strategy::GNP_TOP3, Strategy::GnpConfirmed];

pub(super) fn run() -> anyhow::Result<Vec<Line>> {
    let settings = SweepSettings::committed()?;
    let (layouts, missing) = settings.available_layouts(Path::new(DATA))?;
    let mut lines: Vec<Line> = missing.into_iter().map(|reason| Line::plain(reason, "")).collect();
    for layout in &layouts {
        let source = MatrixSource::of(&settings, layout, settings.table_seeds)?;
        for step in &STEPS {
            let asked = Settings {
                tier: step.tier,
                without: step.without.to_vec(),
                sites: Some(SITES),
                strategies: STRATEGIES.to_vec(),
                threads: thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
                ..Settings::default()
            };
            let report = source.simulate(&asked)?;
            lines.push(Line::plain(format!("{}, {}", layout.name, step.name), figures(&report)));
        }
        lines.extend(choices(&settings, layout)?);
    }
    Ok(lines)
}

/// The growth and the makespan at the base point with each way to choose agents, relative to Top-3:
/// medians over the seeds.
fn choices(settings: &SweepSettings, layout: &LayoutData) -> anyhow::Result<Vec<Line>> {
    let mut ratios: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
    for seed in &settings.seeds {
        let mut simulation = LayoutSimulation::new(settings, layout, *seed)?;
        let figures =
            |result: &BatchResult| (result.growth(settings.growth_share).mb_per_min, result.makespan.as_secs_f64());
        let (growth, makespan) = figures(&simulation.simulate(settings.base, Strategy::GNP_TOP3, 0)?);
        let mut add = |name, result: &BatchResult| {
            let (grown, took) = figures(result);
            let ratio = (grown / growth, took / makespan);
            match ratios.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) => known.push(ratio),
                None => ratios.push((name, vec![ratio])),
            }
        };
        for (name, strategy) in CHOICES {
            add(name, &simulation.simulate(settings.base, strategy, 0)?);
        }
        add(LEARNING, &simulation.again(settings.base, Strategy::EarliestFinish)?);
    }
    let line = |(name, ratios): (&str, Vec<(f64, f64)>)| {
        let growth = median(ratios.iter().map(|(growth, _)| *growth).collect());
        let makespan = median(ratios.iter().map(|(_, makespan)| *makespan).collect());
        Line::plain(format!("{}, {name}", layout.name), format!("growth {growth:.3}, makespan {makespan:.3}"))
    };
    Ok(ratios.into_iter().map(line).collect())
}

/// The prediction errors, and the stretch of each strategy: the mean round trip to the agents that
/// the strategy chose, divided by the mean round trip to the nearest agents.
fn figures(report: &Report) -> String {
    let number = |figure: Option<f64>| figure.map_or("none".to_owned(), |figure| format!("{figure:.3}"));
    let errors = [("RE50", report.estimate.re50), ("RE90", report.estimate.re90)]
        .map(|(name, figure)| (name.to_owned(), figure));
    let stretches = report.strategies.iter().map(|score| (score.name.clone(), score.stretch));
    let all = errors.into_iter().chain(stretches).map(|(name, figure)| format!("{name} {}", number(figure)));
    all.collect::<Vec<_>>().join(", ")
}
