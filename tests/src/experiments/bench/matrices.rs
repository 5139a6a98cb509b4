//! Reads the matrices of measured round trips that several sections use.

use std::path::Path;

use landfall_scheduler::simulate::Matrix;

use crate::experiments::sweep::DATA;

/// The names of the matrices of measured round trips. The repository does not contain the matrices.
pub(super) const PLANETLAB: &str = "planetlab490";
pub(super) const SEATTLE: &str = "seattle99";

/// Reads a matrix; `None` if the file is missing.
pub(super) fn matrix(name: &str) -> anyhow::Result<Option<Matrix>> {
    let file = Path::new(DATA).join(format!("{name}.matrix.csv.gz"));
    Ok(if file.exists() { Some(Matrix::read(&file)?) } else { None })
}
