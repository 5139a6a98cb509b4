//! `landfall report`: declares the commands, whose modules run them.

pub(super) mod accuracy;
mod agents;
pub(super) mod assignments;
mod crawl_filter;
pub(super) mod events;
pub(super) mod failures;
mod hosts;
mod html;
pub(super) mod plan;
pub(super) mod throughput;

use clap::Subcommand;

use self::accuracy::AccuracyArgs;
use self::agents::AgentsArgs;
use self::assignments::AssignmentsArgs;
use self::failures::FailuresArgs;
use self::hosts::HostsArgs;
use self::html::HtmlArgs;
use self::throughput::ThroughputArgs;
use super::ConnectionArgs;

#[derive(Debug, Subcommand)]
pub(super) enum ReportCommand {
    /// Which agent crawled each site of a batch, and why
    Assignments(AssignmentsArgs),
    /// What each agent did
    Agents(AgentsArgs),
    /// A batch's progress by agent and by strategy, and its remaining time
    Throughput(ThroughputArgs),
    /// How well predicted round trips agreed with measured ones, by city, carrier, agent or day
    Accuracy(AccuracyArgs),
    /// How many sites failed, by reason, agent, city, carrier, day or batch
    Failures(FailuresArgs),
    /// The other sites to which a batch's sites link
    Hosts(HostsArgs),
    /// Write a page with plots of progress, throughput, failures, accuracy and the agents' shares
    Html(HtmlArgs),
}

impl ReportCommand {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        match self {
            Self::Throughput(args) => args.run(connection).await,
            Self::Accuracy(args) => args.run(connection).await,
            Self::Failures(args) => args.run(connection).await,
            Self::Hosts(args) => args.run(connection).await,
            Self::Html(args) => args.run(connection).await,
            Self::Assignments(args) => args.run(connection).await,
            Self::Agents(args) => args.run(connection).await,
        }
    }
}
