//! A line of the output: a figure, which is often a median, and its target.

use landfall_scheduler::model::stats;

/// A line of the output.
#[derive(Debug, Clone)]
pub struct Line {
    /// The name of the figure, with its unit.
    pub what: String,
    pub figure: String,
    /// The target; empty if there is none.
    pub target: String,
    pub met: Option<bool>,
}

impl Line {
    /// A line whose target, if any, is a maximum for the figure.
    pub fn at_most(what: impl Into<String>, figure: f64, target: impl Into<Option<f64>>) -> Self {
        let target = target.into();
        Self {
            what: what.into(),
            figure: format!("{figure:.4}"),
            target: target.map_or_else(String::new, |target| format!("<= {target}")),
            met: target.map(|target| figure <= target),
        }
    }

    /// A line whose target, if any, is a minimum for the figure.
    pub fn at_least(what: impl Into<String>, figure: f64, target: impl Into<Option<f64>>) -> Self {
        let target = target.into();
        Self {
            what: what.into(),
            figure: format!("{figure:.4}"),
            target: target.map_or_else(String::new, |target| format!(">= {target}")),
            met: target.map(|target| figure >= target),
        }
    }

    pub fn plain(what: impl Into<String>, figure: impl Into<String>) -> Self {
        Self { what: what.into(), figure: figure.into(), target: String::new(), met: None }
    }

    /// The line of a section whose matrix is absent.
    pub(super) fn skipped(matrix: &str) -> Self {
        Self::plain(format!("skipped: the measured matrix {matrix} is absent"), "")
    }
}

/// The median; NaN if there are no values. For an even number of values, the median is the greater
/// of the two middle values.
pub(super) fn median(values: Vec<f64>) -> f64 {
    stats::median(values).unwrap_or(f64::NAN)
}
