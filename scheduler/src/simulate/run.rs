//! Runs all seeds, several at the same time, and summarises the results.

use std::sync::atomic::{AtomicBool, Ordering};

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;

use super::choices::{DrawContext, crawl_again};
use super::map_and_landmarks::{Map, landmarks};
use super::{Draw, JudgedSite, Matrix, Report, SeedResult, Settings, SettingsError};
use crate::gnp::{ElectError, FitError};
use crate::model::parallel::in_order_while;

#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("seed {seed}: elect the landmarks")]
    Elect {
        seed: u64,
        #[source]
        source: ElectError,
    },
    #[error("seed {seed}: fit the map")]
    Fit {
        seed: u64,
        #[source]
        source: FitError,
    },
}

/// Runs a simulation and summarises it. `site_done` is called after each of the
/// [`Settings::sites_in_all`] sites.
pub fn run(matrix: &Matrix, settings: &Settings, site_done: &(dyn Fn() + Sync)) -> Result<Report, SimulateError> {
    Ok(Report::of(matrix.nodes(), settings, &judge(matrix, settings, site_done)?))
}

/// Runs a simulation and returns the results of all seeds, in order.
pub fn judge(
    matrix: &Matrix,
    settings: &Settings,
    site_done: &(dyn Fn() + Sync),
) -> Result<Vec<SeedResult>, SimulateError> {
    settings.check(matrix)?;
    let failed = AtomicBool::new(false);
    // The simulations of the seeds begin in order. After a simulation fails, no further simulation
    // begins, but the simulations of all lower seeds have begun and run to completion. This order
    // ensures that the returned error is always the error of the lowest seed that fails.
    let play_seed = |index: usize| {
        if failed.load(Ordering::Relaxed) {
            return None;
        }
        let seed = settings.first_seed + u64::try_from(index).unwrap_or(u64::MAX);
        let judged = play(matrix, settings, seed, site_done);
        failed.fetch_or(judged.is_err(), Ordering::Relaxed);
        Some(judged)
    };
    let seeds = usize::try_from(settings.seeds).unwrap_or(usize::MAX);
    in_order_while(seeds, settings.threads, play_seed).into_iter().collect()
}

/// Simulates one seed.
fn play(
    matrix: &Matrix,
    settings: &Settings,
    seed: u64,
    site_done: &(dyn Fn() + Sync),
) -> Result<SeedResult, SimulateError> {
    let draw = Draw::new(matrix, settings.agents, seed)?;
    play_drawing(draw, settings, seed, site_done)
}

/// Simulates one seed with a given draw.
pub fn play_drawing(
    draw: Draw<'_>,
    settings: &Settings,
    seed: u64,
    site_done: &(dyn Fn() + Sync),
) -> Result<SeedResult, SimulateError> {
    let mesh = draw.mesh();
    let landmarks = landmarks(&draw, &mesh, settings.election, settings.landmarks, seed)
        .map_err(|source| SimulateError::Elect { seed, source })?;
    let map = Map::fit(&mesh, &landmarks, settings, seed).map_err(|source| SimulateError::Fit { seed, source })?;
    let mut sites: Vec<usize> = (0..draw.sites()).collect();
    if let Some(most) = settings.sites {
        sites.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        sites.truncate(most);
        sites.sort_unstable();
    }
    let context = DrawContext { draw, landmarks, map, settings, seed };
    let judge = |site| {
        let judged = context.judge(site);
        site_done();
        judged
    };
    let mut judged: Vec<JudgedSite> = sites.iter().copied().map(judge).collect();
    if settings.crawls > 1 {
        crawl_again(&context, &sites, &mut judged);
    }
    Ok(SeedResult { seed, mapped: context.map.is_some(), sites: judged })
}
