//! The struct `MapData` holds the agents and sites of one map, ready to be drawn or sent as JSON.

use chrono::{DateTime, Utc};
use serde::Serialize;

/// The data from which the map is drawn.
#[derive(Debug, Clone, Default, Serialize)]
pub(in crate::web) struct MapData {
    /// The epoch of the embedding; null before the first embedding.
    pub(super) epoch: Option<i64>,
    /// The epochs that can be shown, in order.
    pub(super) epochs: Vec<i64>,
    pub(super) fitted_at: Option<DateTime<Utc>>,
    pub(super) dimensions: usize,
    /// The share of the coordinates' variance that remains visible in the plane, 0 to 1.
    pub(super) explained: f64,
    pub(super) agents: Vec<MapAgent>,
    pub(super) sites: Vec<MapSite>,
    /// The approximate number of placed sites, over all epochs.
    pub(super) placed_sites: u64,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct MapAgent {
    pub(super) name: String,
    pub(super) city: String,
    pub(super) carrier: String,
    pub(super) landmark: bool,
    /// The coordinates in the plane and the height (the delay of the agent's own access), in
    /// milliseconds.
    pub(super) x_ms: f64,
    pub(super) y_ms: f64,
    pub(super) height_ms: f64,
    /// The median of |ln(predicted / measured)| over the agent's pairs; null without measurements.
    pub(super) median_error: Option<f64>,
    /// The agent's pairs with the largest errors.
    pub(super) worst: Vec<MapResidual>,
    pub(super) latitude: Option<f64>,
    pub(super) longitude: Option<f64>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct MapResidual {
    pub(super) agent: String,
    pub(super) measured_ms: f64,
    pub(super) predicted_ms: f64,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct MapSite {
    pub(super) name: String,
    pub(super) agent: Option<String>,
    pub(super) x_ms: f64,
    pub(super) y_ms: f64,
    pub(super) latitude: Option<f64>,
    pub(super) longitude: Option<f64>,
}
