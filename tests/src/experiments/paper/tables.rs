//! Tables 1 and 2: the accuracy of predicted round trips, for several numbers of dimensions and
//! landmarks, on the round trips of the layouts as matrices.
//!
//! The accuracy is one minus the mean relative error, over pairs of a site and an agent that is not
//! a landmark. The worst 30 % or 20 % of the predictions are left out. The paper does not define
//! its accuracy, so this definition is an assumption. The code of `landfall simulate` computes the
//! accuracy.

use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, ensure};
use landfall_scheduler::gnp::Tier;
use landfall_scheduler::simulate::{self, Draw, Matrix, Report, SeedResult, play_drawing};
use serde::Serialize;

use crate::evidence::figures::text_table;
use crate::experiments::sweep::run::in_threads;
use crate::experiments::sweep::settings::{LayoutData, Settings};
use crate::world::scenario::Scenario;

/// A row of a table in the paper: dimensions, landmarks, accuracy without the worst 30 %, and
/// accuracy without the worst 20 %.
type PaperRow = (usize, usize, f64, f64);

/// The paper's Table 1.
const TABLE_1: [PaperRow; 7] = [
    (2, 9, 0.684_679, 0.493_873),
    (3, 9, 0.737_595, 0.599_625),
    (4, 9, 0.740_472, 0.602_797),
    (5, 9, 0.741_811, 0.604_769),
    (6, 9, 0.742_344, 0.605_146),
    (7, 9, 0.743_145, 0.605_081),
    (8, 9, 0.744_649, 0.607_787),
];
/// The paper's Table 2.
const TABLE_2: [PaperRow; 4] = [
    (6, 9, 0.742_344, 0.605_146),
    (6, 7, 0.505_910, 0.299_740),
    (4, 7, 0.505_902, 0.299_708),
    (4, 5, 0.420_972, 0.076_933),
];

/// Number of rows that are computed at once.
const THREADS: u16 = 2;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct AccuracyRow {
    pub(super) layout: String,
    pub(super) tier: Tier,
    /// Number of dimensions of the map; `None` for the refined tier, which averages over maps with
    /// different numbers of dimensions.
    dims: Option<usize>,
    pub(super) landmarks: usize,
    /// Accuracy without the worst 30 % of predictions; null if there are no predictions.
    pub(super) without_worst_30: Option<f64>,
    /// Accuracy without the worst 20 % of predictions.
    pub(super) without_worst_20: Option<f64>,
    pub(super) paper_without_worst_30: f64,
    pub(super) paper_without_worst_20: f64,
}

impl AccuracyRow {
    pub(super) fn dims_shown(&self) -> String {
        self.dims.map_or("–".to_owned(), |dims| dims.to_string())
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tables {
    pub(super) table1: Vec<AccuracyRow>,
    pub(super) table2: Vec<AccuracyRow>,
}

/// A row to compute.
struct WantedRow<'a> {
    layout: &'a str,
    source: &'a MatrixSource<'a>,
    tier: Tier,
    paper: &'static PaperRow,
    /// Whether the row belongs to Table 1.
    first: bool,
}

impl WantedRow<'_> {
    fn compute(&self, settings: &Settings, seeds: u64) -> anyhow::Result<AccuracyRow> {
        let &(dims, landmarks, paper_without_worst_30, paper_without_worst_20) = self.paper;
        let dims = (self.tier != Tier::Refined).then_some(dims);
        let report = report(settings, self.source, self.tier, (dims, landmarks), seeds)
            .with_context(|| format!("{}, {}: {landmarks} landmarks", self.layout, self.tier.name()))?;
        Ok(AccuracyRow {
            layout: self.layout.to_owned(),
            tier: self.tier,
            dims,
            landmarks,
            without_worst_30: report.estimate.acc70,
            without_worst_20: report.estimate.acc80,
            paper_without_worst_30,
            paper_without_worst_20,
        })
    }
}

impl Tables {
    /// Computes both tables for every layout, each figure from `seeds` seeds.
    pub(super) fn of(settings: &Settings, layouts: &[LayoutData], seeds: u64) -> anyhow::Result<Self> {
        let sources = layouts.iter().map(|layout| MatrixSource::of(settings, layout, seeds));
        let sources: Vec<MatrixSource<'_>> = sources.collect::<anyhow::Result<_>>()?;
        let mut wanted = Vec::new();
        for (layout, source) in layouts.iter().zip(&sources) {
            let row = |tier, first| move |paper| WantedRow { layout: &layout.name, source, tier, paper, first };
            for tier in [Tier::Gnp, Tier::Plain] {
                wanted.extend(TABLE_1.iter().map(row(tier, true)));
                wanted.extend(TABLE_2.iter().map(row(tier, false)));
            }
            // The refined tier has no number of dimensions, so only one of the two rows with seven
            // landmarks is computed for it.
            let other = TABLE_2.iter().filter(|(dims, landmarks, ..)| (*dims, *landmarks) != (6, 7));
            wanted.extend(other.map(row(Tier::Refined, false)));
        }
        let computed = Mutex::new(vec![None; wanted.len()]);
        let numbered: Vec<(usize, WantedRow<'_>)> = wanted.into_iter().enumerate().collect();
        in_threads(THREADS, &numbered, |(number, wanted)| {
            let row = wanted.compute(settings, seeds)?;
            computed.lock().unwrap_or_else(PoisonError::into_inner)[*number] = Some(row);
            Ok(())
        })?;
        let computed = computed.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (mut table1, mut table2) = (Vec::new(), Vec::new());
        for (row, (_, wanted)) in computed.into_iter().zip(&numbered) {
            if wanted.first { table1.extend(row) } else { table2.extend(row) }
        }
        Ok(Self { table1, table2 })
    }

    pub(super) fn lines(&self) -> String {
        let mut text = String::new();
        let tables = [("Table 1: dimensions", &self.table1), ("Table 2: dimensions and landmarks", &self.table2)];
        for (title, rows) in tables {
            let header =
                ["layout", "tier", "dims", "landmarks", "without worst 30 %", "paper", "without worst 20 %", "paper"];
            let shown = |value: Option<f64>| value.map_or("none".to_owned(), |value| format!("{value:.3}"));
            let cells = |row: &AccuracyRow| {
                vec![
                    row.layout.clone(),
                    row.tier.name().to_owned(),
                    row.dims_shown(),
                    row.landmarks.to_string(),
                    shown(row.without_worst_30),
                    shown(Some(row.paper_without_worst_30)),
                    shown(row.without_worst_20),
                    shown(Some(row.paper_without_worst_20)),
                ]
            };
            let table = text_table(&header, &rows.iter().map(cells).collect::<Vec<_>>());
            // Writing to a string never fails.
            let _ = writeln!(text, "{title}: accuracy of estimated distances\n{table}");
        }
        self.laws().iter().for_each(|law| text.push_str(&format!("{law}\n")));
        text
    }

    /// Sentences that state how much the accuracy increases with more dimensions and with more
    /// landmarks. Each sentence also states the increase in the paper.
    fn laws(&self) -> Vec<String> {
        let rise = |rows: &[AccuracyRow], of: &AccuracyRow, to: (usize, usize)| {
            let same = |row: &&AccuracyRow| {
                (row.layout == of.layout && row.tier == of.tier) && (row.dims, row.landmarks) == (Some(to.0), to.1)
            };
            let to = rows.iter().find(same)?;
            let paper = to.paper_without_worst_30 - of.paper_without_worst_30;
            Some(format!("{:+.3} (paper {paper:+.3})", to.without_worst_30? - of.without_worst_30?))
        };
        let mut laws = Vec::new();
        for (rows, from, to) in
            [(&self.table1, (2, 9), (8, 9)), (&self.table2, (6, 7), (6, 9)), (&self.table2, (4, 5), (4, 7))]
        {
            for row in rows.iter().filter(|row| (row.dims, row.landmarks) == (Some(from.0), from.1)) {
                if let Some(rise) = rise(rows, row, to) {
                    laws.push(format!(
                        "{}, {}: from {} dimensions and {} landmarks to {} and {}: {rise}",
                        row.layout,
                        row.tier.name(),
                        from.0,
                        from.1,
                        to.0,
                        to.1
                    ));
                }
            }
        }
        laws
    }
}

fn report(
    settings: &Settings,
    source: &MatrixSource<'_>,
    tier: Tier,
    (dims, landmarks): (Option<usize>, usize),
    seeds: u64,
) -> anyhow::Result<Report> {
    let asked = simulate::Settings {
        agents: settings.agents,
        landmarks,
        dims,
        first_seed: 1,
        seeds,
        strategies: Vec::new(),
        tier,
        threads: NonZeroUsize::MIN,
        ..simulate::Settings::default()
    };
    source.simulate(&asked)
}

/// The round trips of a layout: one matrix for all seeds, or one matrix per seed.
pub enum MatrixSource<'a> {
    Matrix(&'a Matrix),
    Layout(Vec<Matrix>),
}

impl<'a> MatrixSource<'a> {
    pub fn of(settings: &Settings, layout: &'a LayoutData, seeds: u64) -> anyhow::Result<Self> {
        if let Some(matrix) = layout.matrix() {
            return Ok(Self::Matrix(matrix));
        }
        let drawn = (1..=seeds).map(|seed| matrix_of(&settings.scenario(layout, seed, settings.base)?));
        Ok(Self::Layout(drawn.collect::<anyhow::Result<_>>()?))
    }

    /// Simulates all seeds. A matrix made from a layout already has its agents first, so the
    /// simulation does not draw which nodes are agents.
    pub fn simulate(&self, asked: &simulate::Settings) -> anyhow::Result<Report> {
        match self {
            Self::Matrix(matrix) => Ok(simulate::run(matrix, asked, &|| ())?),
            Self::Layout(matrices) => {
                let judged = matrices.iter().zip(asked.first_seed..).map(|(matrix, seed)| {
                    let draw =
                        Draw::given(matrix, (0..asked.agents).collect(), (asked.agents..matrix.nodes()).collect());
                    play_drawing(draw, asked, seed, &|| ())
                });
                let judged: Vec<SeedResult> = judged.collect::<Result<_, _>>()?;
                Ok(Report::of(matrices.first().map_or(0, Matrix::nodes), asked, &judged))
            }
        }
    }
}

/// Converts a scenario to a matrix, in which the agents come first. The values between sites are
/// missing.
fn matrix_of(scenario: &Scenario) -> anyhow::Result<Matrix> {
    let (agents, sites) = (scenario.agents.len(), scenario.sites.len());
    ensure!(agents > 0 && sites > 0, "a scenario without agents or sites");
    let link = |from: usize, to: usize| match (from.checked_sub(agents), to.checked_sub(agents)) {
        (None, None) => Some(scenario.mesh[from][to]),
        (None, Some(site)) => Some(scenario.paths[from][site]),
        (Some(site), None) => Some(scenario.paths[to][site]),
        (Some(_), Some(_)) => None,
    };
    Ok(Matrix::of(agents + sites, |from, to| link(from, to).map(|link| link.rtt_ms)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use landfall_scheduler::model::{Strategy, stats};
    use landfall_scheduler::simulate::Election;

    use super::*;

    #[test]
    fn on_the_papers_layout_predictions_are_accurate_enough_to_find_the_nearest_agent() {
        // This test uses fewer agents, sites and dimensions than the paper, because tests are slow:
        // they are compiled without optimisation.
        let settings = Settings { agents: 15, sites: 30, ..Settings::committed().unwrap() };
        let (layouts, _) = settings.available_layouts(Path::new("/nowhere")).unwrap();
        let source = MatrixSource::of(&settings, &layouts[0], 1).unwrap();
        let estimate = report(&settings, &source, Tier::Plain, (Some(4), 9), 1).unwrap().estimate;
        assert!(estimate.re50.unwrap() < 0.15 && estimate.top3_hit.unwrap() > 0.9, "{estimate:?}");
    }

    #[test]
    fn on_the_papers_layout_the_three_nearest_by_the_map_are_as_near_as_the_true_ones() {
        let settings = Settings::committed().unwrap();
        let (layouts, _) = settings.available_layouts(Path::new("/nowhere")).unwrap();
        let source = MatrixSource::of(&settings, &layouts[0], 2).unwrap();
        let MatrixSource::Layout(matrices) = &source else { panic!("the paper's layout has no matrix") };
        let asked = simulate::Settings {
            agents: settings.agents,
            first_seed: 1,
            seeds: 2,
            strategies: vec![Strategy::GNP_TOP3],
            tier: Tier::Plain,
            // The default election takes a minute without the compiler's optimisations.
            election: Election::KMedoids,
            ..simulate::Settings::default()
        };
        let top3 = source.simulate(&asked).unwrap().strategies[0].mean_rtt_ms.unwrap();
        // The result is compared with the three truly nearest agents, not with a random agent,
        // because the distance to a random agent depends on the layout, not on the map.
        let mut three = Vec::new();
        for matrix in matrices {
            for site in asked.agents..matrix.nodes() {
                let mut truths: Vec<f64> = (0..asked.agents).filter_map(|agent| matrix.millis(agent, site)).collect();
                truths.sort_by(f64::total_cmp);
                three.extend(stats::mean(&truths[..3]));
            }
        }
        let ratio = top3 / stats::mean(&three).unwrap();
        println!("{ratio:.4} of the three truly nearest");
        assert!(ratio <= 1.02, "{ratio}");
    }

    #[test]
    fn rows_show_the_papers_values_too() {
        let row = AccuracyRow {
            layout: "paper".to_owned(),
            tier: Tier::Gnp,
            dims: Some(8),
            landmarks: 9,
            without_worst_30: Some(0.9),
            without_worst_20: None,
            paper_without_worst_30: 0.744_649,
            paper_without_worst_20: 0.607_787,
        };
        let flat = AccuracyRow {
            dims: Some(2),
            without_worst_30: Some(0.85),
            paper_without_worst_30: 0.684_679,
            ..row.clone()
        };
        let text = Tables { table1: vec![row, flat], table2: Vec::new() }.lines();
        assert!(text.contains("0.900") && text.contains("0.745") && text.contains("none"), "{text}");
        assert!(
            text.contains("paper, gnp: from 2 dimensions and 9 landmarks to 8 and 9: +0.050 (paper +0.060)"),
            "{text}"
        );
    }

    #[test]
    fn a_layouts_matrix_has_only_values_that_agents_can_measure() {
        let settings = Settings::committed().unwrap();
        let (layouts, _) = settings.available_layouts(Path::new("/nowhere")).unwrap();
        let scenario = settings.scenario(&layouts[0], 1, settings.base).unwrap();
        let matrix = matrix_of(&scenario).unwrap();
        assert_eq!(matrix.nodes(), 233);
        assert_eq!(matrix.millis(3, 30 + 77), Some(scenario.paths[3][77].rtt_ms));
        assert_eq!(matrix.millis(30 + 77, 3), Some(scenario.paths[3][77].rtt_ms));
        assert_eq!(matrix.millis(3, 5), Some(scenario.mesh[3][5].rtt_ms));
        assert_eq!(matrix.millis(40, 41), None);
    }
}
