//! Runs every seed, several at once, and sums up.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::judged::play;
use super::{Judged, Matrix, Report, Settings, SettingsError};
use crate::gnp::{ElectError, FitError};

/// Why a simulation did not run to its end.
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
///
/// # Errors
/// When the settings make no sense for this matrix, or a seed's agents cannot elect landmarks.
pub fn run(matrix: &Matrix, settings: &Settings, site_done: &(dyn Fn() + Sync)) -> Result<Report, SimulateError> {
    Ok(Report::of(matrix.nodes(), settings, &judge(matrix, settings, site_done)?))
}

/// Simulates and returns every seed, in order: what [`Report::of`] sums up and a dump writes out.
///
/// # Errors
/// As [`run`]; of several seeds that fail, the lowest is named.
pub fn judge(
    matrix: &Matrix,
    settings: &Settings,
    site_done: &(dyn Fn() + Sync),
) -> Result<Vec<Judged>, SimulateError> {
    settings.check(matrix)?;
    let next = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    // Seeds start in order, so that when one fails every lower one runs to its end and the lowest failure is known.
    let work = || {
        let mut done = Vec::new();
        while !failed.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= settings.seeds {
                break;
            }
            let judged = play(matrix, settings, settings.first_seed + index, site_done);
            if judged.is_err() {
                failed.store(true, Ordering::Relaxed);
            }
            done.push((index, judged));
        }
        done
    };
    let mut done = thread::scope(|scope| {
        let workers: Vec<_> = (0..settings.threads.get()).map(|_| scope.spawn(work)).collect();
        let joined = workers.into_iter().map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)));
        joined.flatten().collect::<Vec<_>>()
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, judged)| judged).collect()
}
