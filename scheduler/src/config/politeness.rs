//! The section `[politeness]`: how many crawls one address gets at once.

use serde::Deserialize;

use super::error::ConfigError;
use super::section::{Setting, section, within};

section! {
    /// Limits per address, over all agents together.
    PolitenessConfig "politeness" {
        /// Maximum number of sites at one address that are crawled at once, over all agents, 1 to
        /// 1000. The limit is lower for an address with few known sites: the square root of their
        /// number. Eight crawls at one request a second load a server as much as one busy person.
        crawls_at_address: u32 = 8, 1..=1000;
    }
}
