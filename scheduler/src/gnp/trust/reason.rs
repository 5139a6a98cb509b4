//! Gives the reason for doubting an agent, as text for the operator.

use super::bias_and_spread::{ReportBias, TypicalSize};
use super::finding::Kind;

/// The reason for doubting an agent, as text for the operator.
pub(super) fn reason(kind: Kind, size: &ReportBias, believed: &TypicalSize, landmarks: usize) -> String {
    let rows = size.rows;
    let against = match kind {
        Kind::Light => "light".to_owned(),
        Kind::Collusion => "the others".to_owned(),
        Kind::Asymmetry => format!("what {rows} others measured of it"),
        Kind::Residual => format!("where {rows} others place it"),
        Kind::Sites => format!("where the other {} landmarks place {rows} sites", landmarks.saturating_sub(1)),
    };
    if believed.is_biased(size) {
        let way = if size.bias > 0.0 { "too long" } else { "too short" };
        let factor = size.bias.abs().exp();
        return format!("its reports are {way}: off by a factor of {factor:.2} in the median from {against}");
    }
    format!(
        "its reports are both too long and too short: off by a factor of {:.2} in the median from {against} (others: \
         {:.2})",
        size.spread.exp(),
        believed.spread.exp()
    )
}

/// The reason for doubting an agent's claims, as text for the operator.
pub(super) fn claims(size: &ReportBias, landmarks: usize) -> String {
    let (factor, rows) = ((-size.bias).exp(), size.rows);
    format!(
        "its claims are too short: off by a factor of {factor:.2} in the median from where {landmarks} landmarks place {rows} \
         sites it confirmed"
    )
}
