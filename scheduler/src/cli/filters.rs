//! Flags that several list commands have.

use chrono::{DateTime, Utc};
use clap::Args;

use super::flag_values::time;

/// The places of agents.
#[derive(Debug, Args)]
pub(super) struct PlaceArgs {
    /// Consider only agents in this city; may be repeated
    #[arg(long, value_name = "CITY")]
    pub(super) city: Vec<String>,
    /// Consider only agents on this carrier; may be repeated
    #[arg(long, value_name = "CARRIER")]
    pub(super) carrier: Vec<String>,
    /// Consider only agents in this country; may be repeated
    #[arg(long, value_name = "CC")]
    pub(super) country: Vec<String>,
}

impl PlaceArgs {
    pub(super) fn are_unset(&self) -> bool {
        self.city.is_empty() && self.carrier.is_empty() && self.country.is_empty()
    }
}

/// A range of time: when a site entered its state, a batch was first submitted, a circuit opened.
#[derive(Debug, Args)]
pub(super) struct TimeArgs {
    /// Only what happened since this time: how long ago (2h, '30min ago'), a day (2026-11-24, today,
    /// yesterday) or a time (2026-11-24T10:00Z; without Z, in this machine's time zone)
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(super) since: Option<DateTime<Utc>>,
    /// Only what happened before this time, written as for --since
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(super) until: Option<DateTime<Utc>>,
}

impl TimeArgs {
    pub(super) const fn are_unset(&self) -> bool {
        self.since.is_none() && self.until.is_none()
    }
}
