//! The section `[confirm]`: how many agents confirm a site, with how many samples.

use serde::Deserialize;

use super::error::ConfigError;
use super::section::{Setting, section, within};

section! {
    /// The confirmations of the strategy `gnp-confirmed`.
    ConfirmConfig "confirm" {
        /// Maximum number of agents that measure a site, one after another, 1 to 16. A third agent
        /// still shortens the mean distance by several per cent, and a fifth agent by one or two.
        /// Sixteen agents delay a site by more than a minute.
        agents: u32 = 3, 1..=16;
        /// Samples per agent, 1 to 100. The median of three tolerates one bad sample.
        samples: u32 = 3, 1..=100;
    }
}
