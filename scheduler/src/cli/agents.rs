//! `landfall agents`: lists agents, and changes tags. The module `enrol` makes tokens, `tokens`
//! lists and revokes them, `show` shows one agent, `reach` shows which beacons agents reach,
//! `drain` takes agents out of service, and `remove` removes them.

pub(super) mod drain;
pub(super) mod enrol;
pub(super) mod enrol_csv;
pub(super) mod reach;
mod remove;
pub(super) mod show;
mod tokens;

use clap::builder::TypedValueParser;
use clap::{Args, Subcommand};
use landfall_proto::json::Word;
use landfall_proto::v1::{
    Agent, AgentLease, ListAgentsRequest, ListAgentsResponse, ServiceState, TagAgentRequest, Way,
};

use self::drain::DrainArgs;
use self::enrol::EnrolArgs;
use self::remove::RemoveArgs;
use self::tokens::TokensArgs;
use super::ConnectionArgs;
use super::connection::Client;
use super::filters::PlaceArgs;
use super::flag_values::one_of;
use super::output::{self, Column, Format, FormatArgs, Row, ShowFormatArgs, Tone, View, text_cell};
use super::watch_flag::WatchFlag;
use crate::app::exit::{print, usage};

#[derive(Debug, Subcommand)]
pub(super) enum AgentsCommand {
    /// Make a one-time token, and print the command to run on the remote machine
    #[command(
        visible_alias = "enroll",
        after_help = "\
Examples:
  landfall agents enrol --city Harbin --carrier CERNET --country CN --latitude 45.8 --longitude 126.5
  landfall agents enrol --city 北京 --carrier 电信                       named beijing-dianxin
  landfall agents enrol --city Harbin --carrier CERNET --name harbin-cernet --replace    moves it to another machine
  landfall agents enrol --from agents.csv --format json                a token for each line; none if any line is invalid

The first line of a list names its columns: city and carrier, and optionally country, latitude, longitude, name and tags."
    )]
    Enrol(EnrolArgs),
    /// List the open one-time tokens, or all that are still kept
    Tokens(TokensArgs),
    /// Revoke an open token; its agent's name becomes free again
    #[command(after_help = "Example:\n  landfall agents revoke harbin-cernet")]
    Revoke {
        /// The agent the token was made for, or the token's id
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// List the agents
    #[command(after_help = "\
Examples:
  landfall agents list --carrier CERNET --state ready
  landfall agents list --city Harbin --city Changchun --tag fast -o csv")]
    List(ListArgs),
    /// Show one agent: its session, its crawls, its refused messages, and its latest events
    Show {
        /// The agent
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        format: ShowFormatArgs<AgentLease>,
        #[command(flatten)]
        watch: WatchFlag,
    },
    /// Show which agents reach an agent's beacon, and which beacons it reaches; for two agents, why
    /// one cannot reach the other and what to do
    #[command(after_help = "Example:\n  landfall agents reach harbin-cernet tokyo-iij")]
    Reach {
        /// The agent
        #[arg(value_name = "NAME")]
        name: String,
        /// Another agent: show both directions between the two in full
        #[arg(value_name = "OTHER")]
        other: Option<String>,
        #[command(flatten)]
        format: ShowFormatArgs<Way>,
    },
    /// Drain an agent: it finishes the crawls that it has begun, and other agents get its waiting
    /// tasks
    #[command(after_help = "\
Example:
  landfall agents drain harbin-cernet --wait && ssh harbin systemctl stop landfall-agent")]
    Drain(DrainArgs),
    /// Return a draining agent to service
    Resume {
        /// The agent
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Add or remove an agent's tags, which batches may require
    #[command(after_help = "Example:\n  landfall agents tag harbin-cernet --add fast --add rack-2 --remove spare")]
    Tag(TagArgs),
    /// Remove an agent permanently: its credential is refused, but its history is kept
    Remove(RemoveArgs),
}

impl AgentsCommand {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        match self {
            Self::Enrol(args) => args.run(connection).await,
            Self::Tokens(args) => args.run(connection).await,
            Self::Revoke { name } => tokens::revoke(name, connection).await,
            Self::Show { name, format, watch } => show::show(&name, &format, watch, connection).await,
            Self::Reach { name, other, format } => reach::show(name, other, &format, connection).await,
            Self::Drain(args) => args.run(connection).await,
            Self::Resume { name } => drain::resume(name, connection).await,
            Self::Tag(args) => args.run(connection).await,
            Self::Remove(args) => args.run(connection).await,
            Self::List(args) => args.run(connection).await,
        }
    }
}

/// Which agents are listed: those that meet every flag.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
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

#[derive(Debug, Args)]
pub(super) struct TagArgs {
    /// The agent
    #[arg(value_name = "NAME")]
    name: String,
    /// A tag to add: 1 to 32 characters of a-z, 0-9, '.', '_' and '-'; may be repeated, up to 16
    /// tags in all
    #[arg(long, value_name = "TAG")]
    add: Vec<String>,
    /// A tag to remove; waiting tasks that require it go to other agents. May be repeated
    #[arg(long, value_name = "TAG", allow_hyphen_values = true)]
    remove: Vec<String>,
}

impl TagArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { name, add, remove } = self;
        if add.is_empty() && remove.is_empty() {
            return Err(usage("nothing to do: give --add TAG or --remove TAG"));
        }
        let client = Client::connect(connection).await?;
        let tags =
            client.answer(client.fleet().tag_agent(TagAgentRequest { name: name.clone(), add, remove }).await)?.tags;
        let tags = if tags.is_empty() { "no tags".to_owned() } else { tags.join(" ") };
        print(&format!("{name}: {tags}\n"))
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
pub(super) fn known(agent: Agent) -> Agent {
    let capacity = if agent.seen_at.is_some() { agent.capacity } else { 0 };
    Agent { capacity, ..agent }
}

fn service_parser() -> impl TypedValueParser<Value = ServiceState> {
    one_of((1..).map_while(|number| ServiceState::try_from(number).ok()), Word::word)
}

/// Describes an agent's service state in words, with the reason for a pause.
pub(super) fn service_words(state: ServiceState, paused: &str) -> String {
    match state {
        ServiceState::Paused => format!("paused: {paused}"),
        ServiceState::NeverConnected => "never connected".to_owned(),
        _ => state.word_or_unknown().to_owned(),
    }
}

/// Describes an agent's service state, with a warning if a second process uses its credential.
pub(crate) fn service(agent: &Agent) -> String {
    let words = service_words(agent.service(), &agent.paused);
    match agent.twin_at {
        Some(_) => format!("{words}; a second process uses its credential"),
        None => words,
    }
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

pub(super) const fn service_tone(service: ServiceState) -> Tone {
    match service {
        ServiceState::Ready => Tone::Good,
        ServiceState::Draining | ServiceState::Drained | ServiceState::Paused | ServiceState::Away => Tone::Pausing,
        ServiceState::Quarantined => Tone::Bad,
        ServiceState::Unspecified | ServiceState::Removed | ServiceState::NeverConnected => Tone::Plain,
    }
}

pub(super) fn level_cell(level: Option<i64>) -> String {
    level.map_or_else(|| "-".to_owned(), |level| format!("{level:+}"))
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
