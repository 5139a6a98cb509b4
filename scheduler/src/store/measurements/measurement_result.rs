//! A measurement's result summarises the samples, or says why the measurement failed.

use std::time::Duration;

use super::failures::Failure;
use crate::model::Rtt;
use crate::store::types::whole;

/// Summary of one prober's samples of one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    pub rtt: Rtt,
    pub min: Rtt,
    pub median: Rtt,
    /// The scaled median absolute deviation.
    pub spread: Duration,
    pub answered: u32,
    pub lost: u32,
}

/// A prober's measurement, or the reason why it failed.
pub type MeasurementResult = Result<Measured, Failure>;

/// A measurement's result as columns.
pub(super) struct ResultColumns {
    pub(super) rtt: Option<i64>,
    pub(super) min: Option<i64>,
    pub(super) median: Option<i64>,
    pub(super) spread: Option<i64>,
    pub(super) answered: i32,
    pub(super) lost: i32,
    pub(super) failure: Option<String>,
}

impl From<&MeasurementResult> for ResultColumns {
    fn from(result: &MeasurementResult) -> Self {
        match result {
            Ok(measured) => Self {
                rtt: Some(measured.rtt.as_micros()),
                min: Some(measured.min.as_micros()),
                median: Some(measured.median.as_micros()),
                spread: Some(whole(measured.spread.as_micros())),
                answered: whole(measured.answered),
                lost: whole(measured.lost),
                failure: None,
            },
            Err(failure) => {
                let failure = Some(failure.to_string());
                Self { rtt: None, min: None, median: None, spread: None, answered: 0, lost: 0, failure }
            }
        }
    }
}
