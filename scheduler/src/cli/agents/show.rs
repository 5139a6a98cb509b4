//! `landfall agents show`: shows everything known about one agent.

use std::fmt::Write;

use clap::Args;
use landfall_proto::v1::{
    Agent, AgentLease, AgentRefusal, AgentSession, Event, ShowAgentRequest, ShowAgentResponse, Way,
};
use serde::Serialize;
use tonic::Code;

use super::list::known;
use super::reach;
use super::service::service;
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::output::{self, Column, Row, ShowFormatArgs, View};
use crate::cli::reports::events;
use crate::cli::watch_flag::WatchFlag;

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

#[cfg(test)]
mod tests {
    use super::*;

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
