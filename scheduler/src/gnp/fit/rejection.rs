//! Accepts or rejects a new fit by comparing its error with the error of the last good fit.

use crate::gnp::Embedding;

/// A fit is rejected if its error is more than this many times the error of the last good fit.
const ERROR_GROWTH: f64 = 2.0;
/// A fit with at most this relative error is never rejected, however small the error of the last
/// good fit was.
const USUAL_ERROR: f64 = 0.5;

/// The error for a fit so bad that the last good fit must stay in use.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error(
    "the fit's relative error is {error:.3}, that of the last good fit was {good:.3}: the last good one stays in use"
)]
pub struct RejectedFit {
    error: f64,
    good: f64,
}

/// Accepts or rejects a fit.
///
/// # Errors
/// Fails if the fit is so bad that the last good fit must stay in use.
pub fn check(fitted: &Embedding, last_good: Option<f64>) -> Result<(), RejectedFit> {
    let error = fitted.fit_error();
    if is_untrustworthy(error, last_good) {
        return Err(RejectedFit { error, good: last_good.unwrap_or(0.0) });
    }
    Ok(())
}

/// Whether a fit is so much worse than the last good fit that it must not replace it.
fn is_untrustworthy(fit_error: f64, last_good: Option<f64>) -> bool {
    !fit_error.is_finite() || last_good.is_some_and(|good| fit_error > (ERROR_GROWTH * good).max(USUAL_ERROR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fit_that_is_much_worse_than_the_last_good_one_is_not_trusted() {
        assert!(!is_untrustworthy(0.4, Some(0.1)), "usual");
        assert!(is_untrustworthy(0.6, Some(0.1)));
        assert!(!is_untrustworthy(0.6, Some(0.4)));
        assert!(!is_untrustworthy(0.9, None), "there is nothing better");
        assert!(is_untrustworthy(f64::NAN, None));
    }
}
