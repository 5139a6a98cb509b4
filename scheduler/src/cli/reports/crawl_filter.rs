//! The flags that select the crawls of a report, and the conversion of the properties by which the
//! report's rows are grouped.

use clap::Args;
use landfall_proto::v1;

use crate::cli::filters::{PlaceArgs, TimeArgs, timestamp};
use crate::model::ReportGroup;

/// Selects crawls by their agent, or failed sites by the agent that was chosen last for them.
#[derive(Debug, Args)]
pub(super) struct CrawlArgs {
    /// Only this batch
    #[arg(long, value_name = "NAME")]
    batch: Option<String>,
    /// Only this agent
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    #[command(flatten)]
    places: PlaceArgs,
    #[command(flatten)]
    time: TimeArgs,
}

impl CrawlArgs {
    pub(super) fn filter(self) -> v1::CrawlFilter {
        v1::CrawlFilter {
            batch: self.batch.unwrap_or_default(),
            agent: self.agent.unwrap_or_default(),
            cities: self.places.city,
            carriers: self.places.carrier,
            countries: self.places.country,
            since: self.time.since.map(timestamp),
            until: self.time.until.map(timestamp),
        }
    }
}

/// Converts the properties by which rows are grouped to the protocol's type; `usual` applies if the
/// user gave none.
pub(super) fn groups(asked: &[ReportGroup], usual: &[ReportGroup]) -> Vec<i32> {
    let groups = if asked.is_empty() { usual } else { asked };
    groups.iter().map(|group| v1::ReportGroup::from(*group).into()).collect()
}
