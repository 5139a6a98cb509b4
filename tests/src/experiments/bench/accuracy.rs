//! Evaluates predictions and choices on matrices of measured round trips, with 30 agents, 9 or 15
//! landmarks, and ten seeds. This module also reads the matrices.
//!
//! Seeds 0 to 9 serve only for evaluation. The method's constants were chosen with other seeds.

use std::num::NonZeroUsize;
use std::path::Path;
use std::thread;

use landfall_scheduler::gnp::Tier;
use landfall_scheduler::model::Strategy;
use landfall_scheduler::simulate::{Matrix, Report, Settings, run as simulate};

use super::line::Line;
use crate::experiments::sweep::run::DATA;

/// The targets for a matrix and a number of landmarks. In the pairs `re50`, `re90` and `confirmed`,
/// the first value is the target, and the second a stricter goal, which the output calls `reach`.
struct MatrixTargets {
    matrix: &'static str,
    tier: Tier,
    landmarks: usize,
    re50: (f64, f64),
    re90: (f64, f64),
    /// Two targets: the accuracy of the best 70 % and of the best 80 % of predictions.
    accuracy: Option<(f64, f64)>,
    top1: Option<f64>,
    top1_reach: Option<f64>,
    confirmed: Option<(f64, f64)>,
}

const TARGETS: [MatrixTargets; 5] = [
    MatrixTargets {
        matrix: PLANETLAB,
        tier: Tier::Plain,
        landmarks: 9,
        re50: (0.085, 0.085),
        re90: (0.32, 0.32),
        accuracy: None,
        top1: None,
        top1_reach: None,
        confirmed: None,
    },
    MatrixTargets {
        top1: Some(1.26),
        ..refined(PLANETLAB, 9, [(0.058, 0.049), (0.26, 0.23), (0.958, 0.948), (1.10, 1.055)], 1.20)
    },
    MatrixTargets {
        top1: Some(1.12),
        ..refined(PLANETLAB, 15, [(0.050, 0.041), (0.215, 0.185), (0.964, 0.955), (1.035, 1.02)], 1.08)
    },
    refined(SEATTLE, 9, [(0.145, 0.130), (0.63, 0.58), (0.895, 0.868), (1.30, 1.20)], 1.5),
    refined(SEATTLE, 15, [(0.135, 0.120), (0.60, 0.55), (0.905, 0.878), (1.22, 1.10)], 1.35),
];

/// The targets of the refined tier. The caller sets `top1` if there is a target for Top-1.
const fn refined(
    matrix: &'static str,
    landmarks: usize,
    [re50, re90, accuracy, confirmed]: [(f64, f64); 4],
    top1_reach: f64,
) -> MatrixTargets {
    MatrixTargets {
        matrix,
        tier: Tier::Refined,
        landmarks,
        re50,
        re90,
        accuracy: Some(accuracy),
        top1: None,
        top1_reach: Some(top1_reach),
        confirmed: Some(confirmed),
    }
}

pub(super) fn run() -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for target in &TARGETS {
        let Some(matrix) = matrix(target.matrix)? else {
            lines.push(Line::skipped(target.matrix));
            continue;
        };
        let settings = Settings {
            landmarks: target.landmarks,
            tier: target.tier,
            threads: thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            ..Settings::default()
        };
        lines.extend(compare(target, &simulate(&matrix, &settings, &|| ())?));
    }
    Ok(lines)
}

fn compare(target: &MatrixTargets, report: &Report) -> Vec<Line> {
    let name = target.matrix;
    let what = |figure: &str, reach: Option<f64>| {
        let reach = reach.map(|reach| format!(" (reach {reach})")).unwrap_or_default();
        format!("{name}, {}, {} landmarks: {figure}{reach}", target.tier.name(), target.landmarks)
    };
    // A missing figure becomes NaN, because NaN meets no target.
    let number = |figure: Option<f64>| figure.unwrap_or(f64::NAN);
    let estimate = &report.estimate;
    let refined = target.tier == Tier::Refined;
    let reach = |(_, reach): (f64, f64)| refined.then_some(reach);
    let mut lines = vec![
        Line::at_most(what("RE50", reach(target.re50)), number(estimate.re50), target.re50.0),
        Line::at_most(what("RE90", reach(target.re90)), number(estimate.re90), target.re90.0),
    ];
    let (best70, best80) = target.accuracy.unzip();
    lines.push(Line::at_least(what("acc70", None), number(estimate.acc70), best70));
    lines.push(Line::at_least(what("acc80", None), number(estimate.acc80), best80));
    let stretch = |strategy: Strategy| {
        number(
            report
                .strategies
                .iter()
                .find(|standing| standing.name == strategy.to_string())
                .and_then(|standing| standing.stretch),
        )
    };
    let top1 = stretch(Strategy::GNP_TOP1);
    lines.push(Line::at_most(what("Top-1 stretch", target.top1_reach), top1, target.top1));
    let confirmed = stretch(Strategy::GnpConfirmed);
    let (must, reach) = target.confirmed.unzip();
    lines.push(Line::at_most(what("confirmed k=3 stretch", reach), confirmed, must));
    lines
}

/// The names of the matrices of measured round trips. The repository does not contain the matrices.
pub(super) const PLANETLAB: &str = "planetlab490";
pub(super) const SEATTLE: &str = "seattle99";

/// Reads a matrix; `None` if the file is missing.
pub(super) fn matrix(name: &str) -> anyhow::Result<Option<Matrix>> {
    let file = Path::new(DATA).join(format!("{name}.matrix.csv.gz"));
    Ok(if file.exists() { Some(Matrix::read(&file)?) } else { None })
}
