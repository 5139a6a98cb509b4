//! The distributions of round trips and errors, for plots.

use super::score::{nearest, relative_error};
use super::{JudgedSite, SeedResult, Settings};
use crate::model::stats::count;

/// Number of steps between the quantiles of a distribution. More steps would not be visible, and
/// would make the page larger.
const STEPS: usize = 200;

/// Distributions over the sites of all seeds. Each distribution is a list of quantiles in steps of
/// 0.5 %, from the smallest to the greatest value; empty if there are no data.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Distributions {
    /// The true round trips to the nearest agents, in milliseconds.
    pub nearest: Vec<f64>,
    /// For each compared strategy, in the order of the settings, the true round trips to the chosen
    /// agents, in milliseconds. If a strategy draws among several agents with equal probability,
    /// each of these agents has an equal share.
    pub taken: Vec<Vec<f64>>,
    /// The relative errors of predictions, over pairs of a site and a non-landmark agent.
    pub errors: Vec<f64>,
}

impl Distributions {
    pub fn of(settings: &Settings, judged: &[SeedResult]) -> Self {
        let sites = || judged.iter().flat_map(|seed| &seed.sites);
        let taken = |index: usize| {
            let each = |site: &JudgedSite| -> Vec<(f64, f64)> {
                let among = site.taken.get(index).map(|taken| taken.among.as_slice()).unwrap_or_default();
                among.iter().map(|truth| (*truth, 1.0 / count(among.len()))).collect()
            };
            quantiles(sites().flat_map(each).collect())
        };
        let pairs = sites().flat_map(|site| &site.agents).filter(|agent| !agent.landmark);
        Self {
            nearest: quantiles(sites().filter_map(nearest).map(|truth| (truth, 1.0)).collect()),
            taken: (0..settings.strategies.len()).map(taken).collect(),
            errors: quantiles(pairs.filter_map(relative_error).map(|error| (error, 1.0)).collect()),
        }
    }
}

/// Computes weighted quantiles from pairs of a value and its weight. Each quantile is one of the
/// values.
fn quantiles(mut weighted: Vec<(f64, f64)>) -> Vec<f64> {
    weighted.sort_by(|one, other| one.0.total_cmp(&other.0));
    let Some((greatest, _)) = weighted.last().copied() else { return Vec::new() };
    let whole: f64 = weighted.iter().map(|(_, weight)| weight).sum();
    let mut values = weighted.into_iter();
    let (mut value, mut so_far) = values.next().unwrap_or((greatest, whole));
    let mut quantiles = Vec::with_capacity(STEPS + 1);
    for step in 0..STEPS {
        let wanted = whole * count(step) / count(STEPS);
        while so_far < wanted {
            let Some((next, weight)) = values.next() else { break };
            (value, so_far) = (next, so_far + weight);
        }
        quantiles.push(value);
    }
    quantiles.push(greatest);
    quantiles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_are_there_by_their_weight() {
        let drawn = quantiles(vec![(30.0, 0.5), (10.0, 1.0), (20.0, 0.5)]);
        assert_eq!(
            (drawn.len(), drawn[0], drawn[100], drawn[101], drawn[150], drawn[151], drawn[200]),
            (201, 10.0, 10.0, 20.0, 20.0, 30.0, 30.0)
        );
        assert_eq!(quantiles(Vec::new()), Vec::<f64>::new());
        assert!(quantiles(vec![(4.0, 1.0)]).iter().all(|value| *value == 4.0));
    }
}
