//! `landfall agents list|show`: prints a table of the agents, and everything known about one agent,
//! with its service state in words.

use std::fmt::Write;

use clap::Args;
use clap::builder::TypedValueParser;
use landfall_proto::json::Word;
use landfall_proto::v1::{
    Agent, AgentLease, AgentRefusal, AgentSession, Event, ListAgentsRequest, ListAgentsResponse, ServiceState,
    ShowAgentRequest, ShowAgentResponse, Way,
};
use serde::Serialize;
use tonic::Code;

use super::reach;
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::filters::{PlaceArgs, one_of};
use crate::cli::output::{self, Column, Format, FormatArgs, Row, ShowFormatArgs, Tone, View, level_cell, text_cell};
use crate::cli::pages::pages;
use crate::cli::reports::events;
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
            ..ListAgentsRequest::default()
        };
        let any = request == ListAgentsRequest { removed, ..ListAgentsRequest::default() };
        let ask = async |client: &Client| agents(client, &request, limit).await;
        let list_text = |listed: &ListAgentsResponse, view: &View| {
            let rows: Vec<Agent> = listed.agents.iter().cloned().map(known).collect();
            match format.format() {
                Format::Table if any => Ok(list_text(&rows, listed.open_enrolments, view) + &output::more(listed.more)),
                _ => format.text(&rows, "no agent matches\n", listed.more, view),
            }
        };
        watch.print(connection, &format, ask, list_text).await
    }
}

/// At most `limit` agents; 0 means all.
pub(in crate::cli) async fn agents(
    client: &Client,
    request: &ListAgentsRequest,
    limit: u64,
) -> anyhow::Result<ListAgentsResponse> {
    pages(limit, async |limit, page_token| {
        let request = ListAgentsRequest { limit, page_token, ..request.clone() };
        client.answer(client.fleet().list_agents(request).await)
    })
    .await
}

/// The table of agents, followed by the number of enrolment tokens that can still be used.
fn list_text(rows: &[Agent], open: u64, view: &View) -> String {
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

#[derive(Debug, Args)]
pub(in crate::cli) struct ShowArgs {
    /// The agent
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    format: ShowFormatArgs<AgentLease>,
    #[command(flatten)]
    watch: WatchFlag,
}

impl ShowArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { name, format, watch } = self;
        let ask = async |client: &Client| {
            let shown = client.answer(client.fleet().show_agent(ShowAgentRequest { name: name.clone() }).await)?;
            let ways = match reach::rows(client, name.clone(), String::new()).await {
                // These two errors are ignored: the agent may have been removed, or an older
                // scheduler does not implement `show_reach`.
                Err(status) if matches!(status.code(), Code::NotFound | Code::Unimplemented) => Vec::new(),
                asked => asked.map_err(|status| client.refusal(&status))?,
            };
            Ok(Shown::new(shown, ways))
        };
        watch.print(connection, &format, ask, |shown, view| format.text(shown, text, view)).await
    }
}

/// An agent, as printed in JSON.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct Shown {
    #[serde(flatten)]
    agent: Agent,
    session: Option<AgentSession>,
    leases: Vec<AgentLease>,
    refusals: Vec<AgentRefusal>,
    ways: Vec<Way>,
    events: Vec<Event>,
}

impl Shown {
    pub(in crate::cli) fn new(shown: ShowAgentResponse, ways: Vec<Way>) -> Self {
        let ShowAgentResponse { agent, session, leases, refusals, events } = shown;
        Self { agent: known(agent.unwrap_or_default()), session, leases, refusals, ways, events }
    }
}

impl Row for AgentLease {
    const COLUMNS: &'static [Column<Self>] = &[
        ("crawls", |row, _| row.site.clone()),
        ("batch", |row, _| row.batch.clone()),
        ("granted", |row, view| view.when(row.granted_at)),
        ("+>token", |row, _| row.token.to_string()),
    ];
}

impl Row for AgentRefusal {
    const COLUMNS: &'static [Column<Self>] = &[
        ("refused", |row, _| row.kind.clone()),
        (">times", |row, _| output::number(row.times)),
        ("last", |row, view| view.when(row.last_at)),
        ("~detail", |row, _| row.detail.clone()),
    ];
}

pub(in crate::cli) fn text(shown: &Shown, view: &View) -> anyhow::Result<String> {
    let Shown { agent, session, leases, refusals, ways, events } = shown;
    let mut text = lines(agent)?;
    match session {
        Some(session) => {
            let ended = match session.end_cause.as_str() {
                "" => String::new(),
                cause => format!(" ({cause})"),
            };
            writeln!(
                text,
                "  session    {}{ended}, incarnation {}, opened {}, last heard {}",
                session.state,
                session.incarnation,
                view.when(session.opened_at),
                view.when(session.renewed_at)
            )?;
        }
        None => writeln!(text, "  session    none yet")?,
    }
    let unreached = if ways.is_empty() {
        String::new()
    } else {
        let (counts, unreached) = reach::section(&agent.name, ways, view);
        writeln!(text, "  beacon     {counts}")?;
        unreached
    };
    if !leases.is_empty() {
        write!(text, "\n{}", output::table(leases, view))?;
    }
    if !unreached.is_empty() {
        write!(text, "\n{unreached}")?;
    }
    if !refusals.is_empty() {
        write!(text, "\n{}", output::table(refusals, view))?;
    }
    if !events.is_empty() {
        let history: Vec<String> = events.iter().map(|event| events::line(event, view)).collect();
        writeln!(text, "\n{}", history.join("\n"))?;
    }
    Ok(view.fold(&text))
}

/// Describes the state of an agent, in several lines.
fn lines(agent: &Agent) -> anyhow::Result<String> {
    let mut text = String::new();
    writeln!(text, "{} (agent {})", agent.name, agent.agent_id)?;
    let country = if agent.country.is_empty() { String::new() } else { format!(", {}", agent.country) };
    writeln!(text, "  location   {}, {}{country}", agent.city, agent.carrier)?;
    if !agent.tags.is_empty() {
        writeln!(text, "  tags       {}", agent.tags.join(" "))?;
    }
    let landmark = if agent.landmark { ", landmark" } else { "" };
    let version = if agent.version.is_empty() { "unknown" } else { &agent.version };
    let slots = match agent.capacity {
        0 => String::new(),
        capacity => format!(", {} of {capacity} slots taken", agent.leased),
    };
    writeln!(text, "  service    {}{slots}{landmark}, version {version}", service(agent))?;
    if let Some(level) = agent.load_level {
        writeln!(text, "  load       level {level:+}: {}{}", room(agent, level), said(agent))?;
    }
    if !agent.quarantined.is_empty() {
        writeln!(text, "  quarantined  {}", agent.quarantined)?;
    }
    Ok(text)
}

/// Describes a load level in words, such as "room for 3".
fn room(agent: &Agent, level: i64) -> String {
    let waiting = match agent.waiting {
        0 => String::new(),
        waiting => format!(", {} assigned but not begun", output::number(waiting.into())),
    };
    match level {
        0.. => format!("full{waiting}"),
        _ => format!("room for {}{waiting}", -level),
    }
}

/// The numbers of crawls, free slots and waiting outcomes that the agent itself reports. The
/// agent's numbers differ from the scheduler's numbers while messages are in transit.
fn said(agent: &Agent) -> String {
    let (Some(crawls), Some(free), Some(outcomes)) = (agent.crawls, agent.free_slots, agent.outcomes_waiting) else {
        return String::new();
    };
    let parts = [(crawls, "crawled"), (free, "free"), (outcomes, "outcomes not acknowledged")];
    let parts: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    if parts.is_empty() { String::new() } else { format!(" (it reports: {})", parts.join(", ")) }
}

/// Describes an agent's service state in words, with the reason for a pause.
pub(in crate::cli) fn service_words(state: ServiceState, paused: &str) -> String {
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

pub(in crate::cli) const fn service_tone(service: ServiceState) -> Tone {
    match service {
        ServiceState::Ready => Tone::Good,
        ServiceState::Draining | ServiceState::Drained | ServiceState::Paused | ServiceState::Away => Tone::Pausing,
        ServiceState::Quarantined => Tone::Bad,
        ServiceState::Unspecified | ServiceState::Removed | ServiceState::NeverConnected => Tone::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_the_agents_stands_how_many_tokens_are_open() {
        let view = View::plain();
        assert!(list_text(&[], 0, &view).starts_with("no agents yet: landfall agents enrol"));
        assert_eq!(list_text(&[], 1, &view), "no agents yet; 1 enrolment token is open: landfall agents tokens\n");
        let rows = [Agent::default()];
        assert_eq!(list_text(&rows, 0, &view), output::table(&rows, &view));
        assert!(list_text(&rows, 2, &view).ends_with("\n2 enrolment tokens are open: landfall agents tokens\n"));
    }

    #[test]
    fn the_slots_of_an_agent_that_never_connected_are_unknown() {
        let printed = |agent: Agent| serde_json::to_value(known(agent)).unwrap()["capacity"].as_u64();
        assert_eq!(printed(Agent { capacity: 1, ..Agent::default() }), None);
        let seen_at = Some(prost_types::Timestamp::default());
        assert_eq!(printed(Agent { capacity: 4, seen_at, ..Agent::default() }), Some(4));
    }

    #[test]
    fn an_agent_says_how_it_stands_and_what_it_was_refused() {
        let shown = ShowAgentResponse {
            agent: Some(Agent {
                name: "a".into(),
                city: "Harbin".into(),
                carrier: "CERNET".into(),
                twin_at: Some(prost_types::Timestamp::default()),
                ..Agent::default()
            }),
            session: Some(AgentSession {
                incarnation: 3,
                state: "closed".into(),
                end_cause: "superseded".into(),
                ..AgentSession::default()
            }),
            refusals: vec![AgentRefusal { kind: "old-token".into(), times: 2, ..AgentRefusal::default() }],
            ..ShowAgentResponse::default()
        };
        let text = text(&Shown::new(shown, Vec::new()), &View::plain()).unwrap();
        assert!(text.starts_with("a (agent 0)\n  location   Harbin, CERNET\n"), "{text}");
        assert!(text.contains("  session    closed (superseded), incarnation 3, "), "{text}");
        assert!(text.contains("old-token"), "{text}");
        assert!(text.contains("; a second process uses its credential, "), "{text}");
    }
}
