//! `landfall agents list`: which agents are asked for.

use clap::Args;
use landfall_proto::v1::{Agent, ListAgentsRequest, ListAgentsResponse, ServiceState};

use super::ConnectionArgs;
use super::agents;
use super::client::Client;
use super::output::{self, Format, FormatArgs};
use super::service;
use crate::exit::print;

/// Which agents are listed: those that meet every flag.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Those that were removed as well
    #[arg(long)]
    removed: bool,
    /// Only in this city; may be said again
    #[arg(long, value_name = "CITY")]
    city: Vec<String>,
    /// Only on this carrier; may be said again
    #[arg(long, value_name = "ISP")]
    isp: Vec<String>,
    /// Only in this country; may be said again
    #[arg(long, value_name = "CC")]
    country: Vec<String>,
    /// Only with this tag; said again, with each of them
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Only those whose service stands like this; may be said again
    #[arg(long, value_name = "STATE", value_parser = service::parser())]
    state: Vec<ServiceState>,
    /// Agents at most, by name; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    limit: u64,
    #[command(flatten)]
    format: FormatArgs<Agent>,
}

impl ListArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { removed, city, isp, country, tag, state, limit, format: FormatArgs { format, wide } } = self;
        let request = ListAgentsRequest {
            removed: removed || state.contains(&ServiceState::Removed),
            cities: city,
            carriers: isp,
            countries: country,
            tags: tag,
            services: state.into_iter().map(Into::into).collect(),
            limit,
        };
        let any = request == ListAgentsRequest { removed, limit, ..ListAgentsRequest::default() };
        let client = Client::connect(connection).await?;
        let ListAgentsResponse { agents, open_enrolments, more } =
            client.answer(client.fleet().list_agents(request).await)?;
        let rows: Vec<Agent> = agents.into_iter().map(agents::known).collect();
        let view = wide.view();
        match format {
            Format::Table if any => print(&(agents::text(&rows, open_enrolments, &view) + &output::more(more))),
            Format::Table if rows.is_empty() => print("no agent is like that\n"),
            Format::Table => print(&(output::table(&rows, &view) + &output::more(more))),
            Format::Json | Format::Csv => output::print_rows(&rows, format, &view),
        }
    }
}
