//! Runs every seed, several at once, and sums up.

use std::sync::atomic::{AtomicBool, Ordering};

use super::judged::play;
use super::{Matrix, Report, SeedResult, Settings, SettingsError};
use crate::gnp::{ElectError, FitError};
use crate::model::parallel::in_order_while;

/// Why a simulation failed.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A seed's agents could not elect landmarks.
    #[error("seed {seed}: elect the landmarks")]
    Elect {
        seed: u64,
        #[source]
        source: ElectError,
    },
    /// A seed's map could not be fitted.
    #[error("seed {seed}: fit the map")]
    Fit {
        seed: u64,
        #[source]
        source: FitError,
    },
}

/// Simulates and sums up. `site_done` is called after each of [`Settings::sites_in_all`] sites.
pub fn run(matrix: &Matrix, settings: &Settings, site_done: &(dyn Fn() + Sync)) -> Result<Report, SimulateError> {
    Ok(Report::of(matrix.nodes(), settings, &judge(matrix, settings, site_done)?))
}

/// Simulates and returns every seed, in order: what [`Report::of`] sums up and a dump writes out.
pub fn judge(
    matrix: &Matrix,
    settings: &Settings,
    site_done: &(dyn Fn() + Sync),
) -> Result<Vec<SeedResult>, SimulateError> {
    settings.check(matrix)?;
    let failed = AtomicBool::new(false);
    // Seeds begin in order, so that when one fails every lower one runs to its end, and the error
    // is that of the lowest failed seed.
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
