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
use landfall_proto::v1::{self, AgentsReportRequest};

use self::accuracy::AccuracyArgs;
use self::assignments::AssignmentRow;
use self::failures::FailuresArgs;
use self::hosts::HostsArgs;
use self::html::HtmlArgs;
use self::throughput::ThroughputArgs;
use super::ConnectionArgs;
use super::connection::Client;
use super::filters::PlaceArgs;
use super::output::{FormatArgs, View};
use super::sites::list::TasksArgs;
use super::watch_flag::WatchFlag;

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
    Agents {
        /// Only this batch
        #[arg(long, value_name = "NAME")]
        batch: Option<String>,
        /// Only this agent
        #[arg(long, value_name = "NAME")]
        agent: Option<String>,
        #[command(flatten)]
        places: PlaceArgs,
        /// Maximum number of agents; 0: all
        #[arg(long, value_name = "N", default_value_t = 0)]
        limit: u64,
        #[command(flatten)]
        format: FormatArgs<v1::AgentRow>,
        #[command(flatten)]
        watch: WatchFlag,
    },
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
            Self::Agents { batch, agent, places, limit, format, watch } => {
                let none = if places.are_any() { "" } else { "no agent matches\n" };
                let PlaceArgs { city: cities, carrier: carriers, country: countries } = places;
                let (batch, agent) = (batch.unwrap_or_default(), agent.unwrap_or_default());
                let request = AgentsReportRequest { batch, agent, limit, cities, carriers, countries };
                let ask = async |client: &Client| client.answer(client.reports().agents(request.clone()).await);
                let text = |report: &v1::AgentsReportResponse, view: &View| {
                    format.text(&report.agents, none, report.more, view)
                };
                watch.print(connection, &format, ask, text).await
            }
        }
    }
}
