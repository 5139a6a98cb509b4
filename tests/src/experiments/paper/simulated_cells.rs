//! Simulates finished cells with the same survey and the same random choices as in the lab, and
//! compares the results with the lab's results. This module does no I/O.

use std::collections::BTreeMap;

use anyhow::Context;
use landfall_scheduler::model::Strategy;

use super::lab_cells::{FinishedCell, LabResult};
use crate::evidence::figures::float;
use crate::experiments::sweep::batch::BatchResult;
use crate::experiments::sweep::results;
use crate::experiments::sweep::run::LayoutSimulation;
use crate::experiments::sweep::settings::{Cell, LayoutData, Settings};
use crate::experiments::sweep::survey::LayoutMeasurements;

/// Number of simulations per cell. A cell is simulated several times, because random packet losses
/// change the result by a few per cent.
const DRAWS: u64 = 9;
/// Maximum relative difference between the throughputs of a simulation and the lab.
const AGREEMENT: f64 = 0.10;

/// The results of the simulation divided by the results of the lab.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SimulationRatios {
    pub(super) growth: f64,
    pub(super) makespan: f64,
}

/// The medians over all simulations of a cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SimulatedMedians {
    pub(super) mb_per_min: f64,
    pub(super) makespan_s: f64,
    /// Number of agents that crawled at least one site, and maximum number of sites per agent.
    pub(super) busy: f64,
    pub(super) most: f64,
}

impl SimulationRatios {
    pub(super) fn of(simulated: SimulatedMedians, result: &LabResult) -> Self {
        Self {
            growth: simulated.mb_per_min / result.growth.mb_per_min,
            makespan: simulated.makespan_s / result.makespan_s,
        }
    }

    fn agrees(self) -> bool {
        (self.growth - 1.0).abs() <= AGREEMENT
    }
}

/// Simulates cells, with surveys from the lab.
pub(super) struct Simulator<'a> {
    settings: &'a Settings,
    /// The newest survey, the task number of its first site, and the simulation prepared from both.
    /// Most cells of a layout share one survey.
    newest: Option<(LayoutMeasurements, u64, LayoutSimulation<'a>)>,
}

impl<'a> Simulator<'a> {
    pub(super) fn new(settings: &'a Settings) -> Self {
        Self { settings, newest: None }
    }

    /// Simulates a cell [`DRAWS`] times.
    pub(super) fn simulate(
        &mut self,
        layout: &'a LayoutData,
        cell: &Cell,
        strategy: Strategy,
        result: &LabResult,
    ) -> anyhow::Result<SimulatedMedians> {
        let known = |(measurements, first, _): &mut (LayoutMeasurements, u64, LayoutSimulation<'a>)| {
            *measurements == result.measurements && *first == result.first_task
        };
        if !self.newest.as_mut().is_some_and(known) {
            let first = result.first_task;
            let simulation = LayoutSimulation::surveyed(self.settings, layout, cell.seed, &result.measurements, first)?;
            self.newest = Some((result.measurements.clone(), first, simulation));
        }
        let (_, _, simulation) = self.newest.as_mut().context("a survey was just taken")?;
        let share = self.settings.growth_share;
        // If there is no epoch, there was an alarm, during which the scheduler chose agents at
        // random.
        let strategy = if result.measurements.epoch.is_some() { strategy } else { Strategy::Random };
        let run = |draw| simulation.simulate(cell.point, strategy, draw);
        let result: Vec<BatchResult> = (0..DRAWS).map(run).collect::<anyhow::Result<_>>()?;
        let middle = |of: &dyn Fn(&BatchResult) -> f64| {
            results::median(result.iter().map(of).collect()).context("a cell is simulated at least once")
        };
        Ok(SimulatedMedians {
            mb_per_min: middle(&|result| result.growth(share).mb_per_min)?,
            makespan_s: middle(&|result| result.makespan.as_secs_f64())?,
            busy: middle(&|result| busy(&result.per_agent).0)?,
            most: middle(&|result| busy(&result.per_agent).1)?,
        })
    }
}

/// Number of agents that crawled at least one site, and maximum number of sites per agent.
pub(super) fn busy(per_agent: &[usize]) -> (f64, f64) {
    let count = per_agent.iter().filter(|sites| **sites > 0).count();
    (float(count), float(per_agent.iter().copied().max().unwrap_or(0)))
}

/// Compares the results of the simulation with those of the lab, over the valid cells.
pub(super) fn agreement(finished: &[FinishedCell], ratios: &[SimulationRatios]) -> Vec<String> {
    let sound = finished.iter().zip(ratios).filter(|(one, _)| one.result.void.is_none());
    let mut by_strategy: BTreeMap<&str, Vec<SimulationRatios>> = BTreeMap::new();
    sound.for_each(|(one, ratios)| by_strategy.entry(&one.cell.strategy).or_default().push(*ratios));
    let line = |(strategy, all): (&&str, &Vec<SimulationRatios>)| {
        let agree = all.iter().filter(|one| one.agrees()).count();
        let median = |of: fn(&SimulationRatios) -> f64| results::median(all.iter().map(of).collect()).unwrap_or(0.0);
        format!(
            "{strategy}: simulated / lab, medians of {} cells: throughput {:.3}, makespan {:.3}; throughput within {:.0} % in {agree}",
            all.len(),
            median(|one| one.growth),
            median(|one| one.makespan),
            AGREEMENT * 100.0
        )
    };
    by_strategy.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::experiments::paper::lab_cells::tests::finished;
    use crate::experiments::sweep::settings::EXPERIMENTS;

    #[test]
    fn void_cells_do_not_count_in_the_comparison() {
        let cells = [finished("random", 1, 100.0, None), finished("random", 2, 100.0, Some("late"))];
        let simulated = SimulatedMedians { mb_per_min: 112.0, makespan_s: 60.0, busy: 30.0, most: 8.0 };
        let ratios: Vec<SimulationRatios> =
            cells.iter().map(|one| SimulationRatios::of(simulated, &one.result)).collect();
        let said = agreement(&cells, &ratios);
        assert_eq!(
            said,
            [
                "random: simulated / lab, medians of 1 cells: throughput 1.120, makespan 1.000; throughput within 10 % in 0"
            ]
        );
    }

    #[test]
    fn without_a_trusted_map_every_strategy_is_simulated_as_random() {
        let fewer = [("agents = 30", "agents = 10"), ("sites = 203", "sites = 30"), ("landmarks = 9", "landmarks = 5")];
        let text = fewer.iter().fold(EXPERIMENTS.to_owned(), |text, (from, to)| text.replacen(from, to, 1));
        let settings = Settings::parse(&text).unwrap();
        assert_eq!((settings.agents, settings.sites, settings.landmarks), (10, 30, 5));
        let (layouts, _) = settings.available_layouts(Path::new("/nowhere")).unwrap();
        let (layout, seed) = (&layouts[0], settings.seeds[0]);
        let scenario = settings.scenario(layout, seed, settings.base).unwrap();
        let mapped = LayoutMeasurements::emulated(&scenario, settings.landmarks).unwrap();
        let mut simulator = Simulator::new(&settings);
        let mut simulated = |strategy: Strategy, epoch: Option<u64>| {
            let FinishedCell { cell, mut result } = finished(&strategy.to_string(), seed, 100.0, None);
            result.measurements = LayoutMeasurements { epoch, ..mapped.clone() };
            simulator.simulate(layout, &cell, strategy, &result).unwrap()
        };
        let random = simulated(Strategy::Random, None);
        assert_eq!(simulated(Strategy::GNP_TOP1, None), random);
        assert_eq!(simulated(Strategy::EarliestFinish, None), random);
        assert_ne!(simulated(Strategy::GNP_TOP1, mapped.epoch), random);
    }
}
