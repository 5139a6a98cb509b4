//! The round trips of the layouts as matrices, for `landfall simulate`.

use anyhow::ensure;
use landfall_scheduler::simulate::{self, Draw, Matrix, Report, SeedResult, play_drawing};

use crate::experiments::sweep::settings::{LayoutData, Settings};
use crate::world::scenario::Scenario;

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

    use super::*;

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
