//! The scheduler's configuration: a typed tree that is read from TOML and validated once.
//!
//! Unknown keys are rejected. Durations are written as `10s` or `250ms`.

mod landfall_toml;
mod sections;

pub use landfall_toml::{Config, DEFAULT_LISTEN, parsed};
pub use sections::{
    ConfigError, ConfirmConfig, DashboardConfig, Draws, KeepConfig, LandmarksConfig, LeaseConfig, MeasureConfig,
    Metric, PolitenessConfig, PortConfig, TermConfig,
};
