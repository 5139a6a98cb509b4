//! Drift: how far agents move when a network that stayed the same is measured and fitted again.
//!
//! Each refit measures every pair anew: 20 samples, each with 5 % noise, summed up as an agent does; fits with the former
//! embedding as one start, and is aligned to it. An agent's move is that of its position plus the change of its height.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use landfall_agent::probe::weighted_mean::weighted_mean;
use landfall_scheduler::gnp::{self, Embedding, Mesh};
use landfall_scheduler::model::{AgentId, EmbeddingEpoch, Rtt};
use landfall_scheduler::simulate::{Draw, Matrix};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Line;

const MATRIX: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/planetlab490.matrix.csv.gz");
const AGENTS: usize = 30;
const LANDMARKS: usize = 9;
/// Drawings, and refits of each, one after another.
const SEEDS: std::ops::Range<u64> = 0..5;
const REFITS: u64 = 4;
const SAMPLES: usize = 20;
/// Standard deviation of a sample's noise, as a part of the round trip.
const NOISE: f64 = 0.05;
/// The median agent may move so far, milliseconds.
const TARGET_MS: f64 = 2.0;

pub(super) fn run() -> anyhow::Result<Vec<Line>> {
    let file = Path::new(MATRIX);
    if !file.exists() {
        return Ok(vec![Line::plain("skipped: the measured matrix is not there", file.display().to_string())]);
    }
    let matrix = Matrix::read(file)?;
    let mut refitted = Moves::default();
    let mut cold = Moves::default();
    for seed in SEEDS {
        judge(&matrix, seed, &mut refitted, &mut cold)?;
    }
    let count = refitted.medians.len();
    Ok(vec![
        Line::at_most(
            format!("PlanetLab, {AGENTS} agents, {count} refits: median agent, ms"),
            refitted.at(1, 2),
            TARGET_MS,
        ),
        Line::plain("  90th percentile of agents, ms", format!("{:.4}", refitted.at(9, 10))),
        Line::plain("  the refit that moved its median agent furthest, ms", format!("{:.4}", refitted.worst_median())),
        Line::plain(
            "  median agent without the former embedding as a start, aligned, ms",
            format!("{:.4}", cold.at(1, 2)),
        ),
        Line::plain(
            "  prediction of unchanged pairs: median |ln(refit/former)|",
            format!("{:.4}", middle(&mut refitted.changes)),
        ),
    ])
}

/// What refits did, milliseconds.
#[derive(Default)]
struct Moves {
    /// Of every agent in every refit.
    all: Vec<f64>,
    /// Of the median agent of each refit.
    medians: Vec<f64>,
    /// How predictions between agents changed, absolute logs.
    changes: Vec<f64>,
}

impl Moves {
    fn add(&mut self, former: &Embedding, next: &Embedding) -> anyhow::Result<()> {
        self.all.extend(next.moves_from(former).into_iter().map(|moved| moved.as_secs_f64() * 1e3));
        self.medians.push(next.median_move_from(former).context("no agent is in both")?.as_secs_f64() * 1e3);
        for (a, placed) in former.agents() {
            for (b, other) in former.agents().range(..a) {
                let (Some(p), Some(q)) = (next.placement(*a), next.placement(*b)) else { continue };
                let (was, is) = (former.predict(placed, other)?, next.predict(p, q)?);
                self.changes.push((is.as_millis_f64() / was.as_millis_f64()).ln().abs());
            }
        }
        Ok(())
    }

    /// The move that `part` of `whole` agents do not exceed.
    fn at(&self, part: usize, whole: usize) -> f64 {
        let mut sorted = self.all.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() * part / whole).copied().unwrap_or(f64::NAN)
    }

    fn worst_median(&self) -> f64 {
        self.medians.iter().copied().fold(0.0, f64::max)
    }
}

fn middle(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn judge(matrix: &Matrix, seed: u64, refitted: &mut Moves, cold: &mut Moves) -> anyhow::Result<()> {
    let draw = Draw::new(matrix, AGENTS, seed)?;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mesh = measured(&draw, &mut rng);
    let elected = gnp::elect(&mesh, &draw.nominees(), LANDMARKS, seed)?;
    let landmarks: Vec<AgentId> = elected.into_iter().map(|elected| elected.agent).collect();
    let dimensions = gnp::default_dimensions(LANDMARKS);
    let mut former = gnp::fit(EmbeddingEpoch::new(1), &mesh, &landmarks, dimensions, seed)?;
    for number in 2..2 + REFITS {
        let mesh = measured(&draw, &mut rng);
        let epoch = EmbeddingEpoch::new(i64::try_from(number)?);
        let next = gnp::refit(&former, epoch, &mesh, &landmarks, dimensions, seed + number)?;
        let anew = gnp::fit(epoch, &mesh, &landmarks, dimensions, seed + number)?.aligned_to(&former);
        refitted.add(&former, &next)?;
        cold.add(&former, &anew)?;
        former = next;
    }
    Ok(())
}

/// The drawing's mesh, each round trip the weighted mean of noisy samples.
fn measured(draw: &Draw<'_>, rng: &mut ChaCha8Rng) -> Mesh {
    let truth = draw.mesh();
    let mut mesh = Mesh::new();
    let agents: Vec<AgentId> = truth.agents().into_iter().collect();
    for &a in &agents {
        for &b in &agents {
            let Some(rtt) = truth.measured(a, b) else { continue };
            let samples: Vec<Duration> = (0..SAMPLES).map(|_| rtt.as_duration().mul_f64(noise(rng))).collect();
            if let Some(rtt) = weighted_mean(&samples).and_then(|summary| Rtt::try_new(summary.rtt).ok()) {
                mesh.insert(a, b, rtt);
            }
        }
    }
    mesh
}

/// One plus a normal deviate of [`NOISE`] (Box and Muller 1958), never below a tenth.
fn noise(rng: &mut ChaCha8Rng) -> f64 {
    let (radius, angle): (f64, f64) =
        (rng.random_range(f64::MIN_POSITIVE..1.0), rng.random_range(0.0..std::f64::consts::TAU));
    (1.0 + NOISE * (-2.0 * radius.ln()).sqrt() * angle.cos()).max(0.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "minutes in a debug build: `lab bench --only drift` prints the same from a release build"]
    fn the_median_agent_stays_where_it_was() {
        let lines = run().expect("figures");
        for line in &lines {
            println!("{:<72} {:>12} {:>12}", line.what, line.figure, line.target);
        }
        assert!(lines.iter().all(|line| line.met != Some(false)));
    }
}
