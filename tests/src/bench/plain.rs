//! How well the plain tier predicts, by the simplex and by the bulk path, and how far the two are apart.
//!
//! 30 agents, nine landmarks elected among them from their mesh alone, every other node a site that only the landmarks
//! measured; errors over pairs of a site and an agent that is no landmark, ten seeds.

use std::path::Path;

use anyhow::Context;
use landfall_scheduler::gnp::{self, Solver};
use landfall_scheduler::model::{AgentId, EmbeddingEpoch};
use landfall_scheduler::simulate::{Draw, Matrix};

use super::Line;

const AGENTS: usize = 30;
const LANDMARKS: usize = 9;
const DIMENSIONS: usize = 8;
const SEEDS: std::ops::Range<u64> = 0..10;
const SOLVERS: [Solver; 2] = [Solver::Simplex, Solver::LevenbergMarquardt];
/// How far the solvers may be apart, in parts of either.
const APART: f64 = 0.01;

/// Runs the section.
pub(super) fn run() -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    // Only PlanetLab has a target; Seattle shows whether the two agree elsewhere too.
    let matrices = [("PlanetLab", "planetlab490", Some((0.085, 0.32))), ("Seattle", "seattle99", None)];
    for (name, file, targets) in matrices {
        let file = format!("{}/../../shared/data/{file}.matrix.csv.gz", env!("CARGO_MANIFEST_DIR"));
        if !Path::new(&file).exists() {
            lines.push(Line::plain(format!("skipped: the measured matrix of {name} is not there"), ""));
            continue;
        }
        let [simplex, bulk] = errors(&Matrix::read(Path::new(&file))?)?;
        for (solver, figures) in [("simplex", simplex), ("bulk path", bulk)] {
            let (first, second) = (format!("{name}, {solver}: RE50"), format!("{name}, {solver}: RE90"));
            match targets {
                Some((median, ninetieth)) => {
                    lines.push(Line::at_most(first, figures.0, median));
                    lines.push(Line::at_most(second, figures.1, ninetieth));
                }
                None => {
                    lines.push(Line::plain(first, format!("{:.4}", figures.0)));
                    lines.push(Line::plain(second, format!("{:.4}", figures.1)));
                }
            }
        }
        let apart = |a: f64, b: f64| (a - b).abs() / a.min(b);
        lines.push(Line::at_most(format!("{name}: the solvers' RE50 are apart by"), apart(simplex.0, bulk.0), APART));
        lines.push(Line::at_most(format!("{name}: the solvers' RE90 are apart by"), apart(simplex.1, bulk.1), APART));
    }
    Ok(lines)
}

/// RE50 and RE90 by each solver.
fn errors(matrix: &Matrix) -> anyhow::Result<[(f64, f64); 2]> {
    let mut errors = [Vec::new(), Vec::new()];
    for seed in SEEDS {
        let draw = Draw::new(matrix, AGENTS, seed)?;
        let elected = gnp::elect(&draw.mesh(), &draw.nominees(), LANDMARKS, seed)?;
        let landmarks: Vec<AgentId> = elected.into_iter().map(|elected| elected.agent).collect();
        let map = gnp::fit(EmbeddingEpoch::new(1), &draw.mesh(), &landmarks, DIMENSIONS, seed)?;
        let locator = map.locator()?;
        for site in 0..draw.sites() {
            let measured = draw.measured(site, &landmarks);
            if measured.is_empty() {
                continue;
            }
            for (solver, errors) in SOLVERS.into_iter().zip(&mut errors) {
                let placed = locator.locate(&measured, solver)?;
                for agent in (0..AGENTS).filter(|&agent| !landmarks.contains(&draw.agent_id(agent))) {
                    let Some(truth) = draw.truth(site, agent) else { continue };
                    let other = map.placement(draw.agent_id(agent)).context("an agent of the mesh is placed")?;
                    errors.push((map.predict(&placed, other)?.as_millis_f64() - truth).abs() / truth);
                }
            }
        }
    }
    Ok(errors.map(|mut errors| {
        errors.sort_by(f64::total_cmp);
        let at = |index: usize| errors.get(index).copied().unwrap_or(f64::NAN);
        (at(errors.len() / 2), at(errors.len() * 9 / 10))
    }))
}
