//! `landfall report`: shows results by task and by agent. The module `throughput` shows
//! results over time.

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
use self::assignments::AssignmentRow;
use self::failures::FailuresArgs;
use self::hosts::HostsArgs;
use self::html::HtmlArgs;
use self::throughput::ThroughputArgs;
use super::ConnectionArgs;
use super::output::FormatArgs;
use super::sites::list::TasksArgs;

#[derive(Debug, Subcommand)]
pub(super) enum ReportCommand {
    /// Which agent crawled each site of a batch, and why
    #[command(after_help = "\
Examples:
  landfall report assignments --batch autumn --format csv > autumn.csv
  landfall report assignments --batch autumn --state failed --reason timed-out")]
    Assignments {
        #[command(flatten)]
        tasks: TasksArgs,
        /// Maximum number of rows; 0: all
        #[arg(long, value_name = "N", default_value_t = 0)]
        limit: u64,
        #[command(flatten)]
        format: FormatArgs<AssignmentRow>,
    },
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
            Self::Assignments { tasks, limit, format } => tasks.print(AssignmentRow, limit, &format, connection).await,
            Self::Agents(args) => args.run(connection).await,
        }
    }
}
