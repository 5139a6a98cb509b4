//! The scheduler's configuration: a typed tree that is read from TOML and validated once. Each
//! section of the file has a file here.
//!
//! Unknown keys are rejected. Durations are written as `10s` or `250ms`.

mod confirm;
mod crawl;
mod dashboard;
mod draws;
mod error;
mod keep;
mod landfall_toml;
mod landmarks;
mod lease;
mod measure;
mod politeness;
mod section;
mod term;

pub use confirm::ConfirmConfig;
pub use dashboard::DashboardConfig;
pub use draws::Draws;
pub use error::ConfigError;
pub use keep::KeepConfig;
pub use landfall_toml::{Config, DEFAULT_LISTEN, parsed};
pub use landmarks::LandmarksConfig;
pub use lease::LeaseConfig;
pub use measure::{MeasureConfig, Metric};
pub use politeness::PolitenessConfig;
pub use term::TermConfig;
