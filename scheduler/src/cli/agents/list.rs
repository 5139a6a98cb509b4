//! `landfall agents list` prints a table of the agents.

use clap::Args;
use clap::builder::TypedValueParser;
use landfall_proto::json::Word;
use landfall_proto::v1::{Agent, ListAgentsRequest, ListAgentsResponse, ServiceState};

use super::service::{service, service_tone};
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::filters::{PlaceArgs, one_of};
use crate::cli::output::{self, Column, Format, FormatArgs, Row, Tone, View, level_cell, text_cell};
use crate::cli::watch_flag::WatchFlag;

/// Which agents are listed: those that meet every flag.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall agents list --carrier CERNET --state ready
  landfall agents list --city Harbin --city Changchun --tag fast -o csv")]
pub(in crate::cli) struct ListArgs {
    /// Include removed agents
    #[arg(long)]
    removed: bool,
    #[command(flatten)]
    places: PlaceArgs,
    /// Only agents with this tag; if repeated, agents with all of these tags
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Only agents in this service state; may be repeated
    #[arg(long, value_name = "STATE", value_parser = service_parser())]
    state: Vec<ServiceState>,
    /// Maximum number of agents, in order of name; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    limit: u64,
    #[command(flatten)]
    format: FormatArgs<Agent>,
    #[command(flatten)]
    watch: WatchFlag,
}

impl ListArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { removed, places, tag, state, limit, format, watch } = self;
        let request = ListAgentsRequest {
            removed: removed || state.contains(&ServiceState::Removed),
            cities: places.city,
            carriers: places.carrier,
            countries: places.country,
            tags: tag,
            services: state.into_iter().map(Into::into).collect(),
            limit,
        };
        let any = request == ListAgentsRequest { removed, limit, ..ListAgentsRequest::default() };
        let ask = async |client: &Client| client.answer(client.fleet().list_agents(request.clone()).await);
        let text = |listed: &ListAgentsResponse, view: &View| {
            let rows: Vec<Agent> = listed.agents.iter().cloned().map(known).collect();
            match format.format() {
                Format::Table if any => Ok(text(&rows, listed.open_enrolments, view) + &output::more(listed.more)),
                _ => format.text(&rows, "no agent matches\n", listed.more, view),
            }
        };
        watch.print(connection, &format, ask, text).await
    }
}

/// The table of agents, followed by the number of enrolment tokens that can still be used.
fn text(rows: &[Agent], open: u64, view: &View) -> String {
    let table = if rows.is_empty() { String::new() } else { output::list(rows, view) };
    let is = if open == 1 { "is" } else { "are" };
    match (rows.is_empty(), open) {
        (true, 0) => "no agents yet: landfall agents enrol --city CITY --carrier CARRIER\n".to_owned(),
        (false, 0) => table,
        (none, _) => {
            let none = if none { "no agents yet; " } else { "" };
            format!("{table}{none}{} {is} open: landfall agents tokens\n", output::counted(open, "enrolment token"))
        }
    }
}

/// Sets the number of slots to 0 until the agent's first session, because the number is unknown
/// until then.
pub(in crate::cli) fn known(agent: Agent) -> Agent {
    let capacity = if agent.seen_at.is_some() { agent.capacity } else { 0 };
    Agent { capacity, ..agent }
}

fn service_parser() -> impl TypedValueParser<Value = ServiceState> {
    one_of((1..).map_while(|number| ServiceState::try_from(number).ok()), Word::word)
}

impl Row for Agent {
    const COLUMNS: &'static [Column<Self>] = &[
        ("name", |row, _| row.name.clone()),
        ("city", |row, _| row.city.clone()),
        ("carrier", |row, _| row.carrier.clone()),
        ("~!service", |row, _| service(row)),
        (
            ">slots",
            |row, _| if row.capacity == 0 { "-".to_owned() } else { format!("{}/{}", row.leased, row.capacity) },
        ),
        (">load", |row, _| level_cell(row.load_level)),
        ("landmark", |row, _| output::yes_cell(row.landmark)),
        ("seen", |row, view| view.when(row.seen_at)),
        ("+country", |row, _| text_cell(&row.country)),
        ("+>reached by", |row, _| row.reached_by.to_string()),
        ("+version", |row, _| text_cell(&row.version)),
        ("+tags", |row, _| text_cell(&row.tags.join(" "))),
        ("+>id", |row, _| row.agent_id.to_string()),
        ("+quarantined", |row, _| text_cell(&row.quarantined)),
    ];

    fn tone(&self) -> Tone {
        service_tone(self.service())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_the_agents_stands_how_many_tokens_are_open() {
        let view = View::plain();
        assert!(text(&[], 0, &view).starts_with("no agents yet: landfall agents enrol"));
        assert_eq!(text(&[], 1, &view), "no agents yet; 1 enrolment token is open: landfall agents tokens\n");
        let rows = [Agent::default()];
        assert_eq!(text(&rows, 0, &view), output::table(&rows, &view));
        assert!(text(&rows, 2, &view).ends_with("\n2 enrolment tokens are open: landfall agents tokens\n"));
    }

    #[test]
    fn the_slots_of_an_agent_that_never_connected_are_unknown() {
        let printed = |agent: Agent| serde_json::to_value(known(agent)).unwrap()["capacity"].as_u64();
        assert_eq!(printed(Agent { capacity: 1, ..Agent::default() }), None);
        let seen_at = Some(prost_types::Timestamp::default());
        assert_eq!(printed(Agent { capacity: 4, seen_at, ..Agent::default() }), Some(4));
    }
}
