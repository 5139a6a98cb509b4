//! `landfall report`: declares the commands, whose modules run them.

pub(super) mod accuracy_and_failures;
pub(super) mod assignments_and_hosts;
pub(super) mod events;
mod html;
pub(super) mod plan;
pub(super) mod throughput_and_agents;

use clap::Subcommand;

use self::accuracy_and_failures::{AccuracyArgs, FailuresArgs};
use self::assignments_and_hosts::{AssignmentsArgs, HostsArgs};
use self::html::HtmlArgs;
use self::throughput_and_agents::{AgentsArgs, ThroughputArgs};
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
