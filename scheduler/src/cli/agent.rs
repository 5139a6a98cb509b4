//! `landfall agents show`: all that is known of one agent.

use std::fmt::Write;

use landfall_proto::v1::{AgentLease, AgentRefusal, AgentSession, ShowAgentRequest, ShowAgentResponse};
use serde::Serialize;
use tonic::Code;

use super::ConnectionArgs;
use super::agents::AgentRow;
use super::client::Client;
use super::events::{self, EventRow};
use super::output::{self, Row, ShowFormat, Time, View};
use super::reach::{self, WayRow};
use crate::exit::print;

/// Shows one agent.
pub(super) async fn show(
    name: String,
    format: ShowFormat,
    view: &View,
    connection: &ConnectionArgs,
) -> anyhow::Result<()> {
    let client = Client::connect(connection).await?;
    let asked = client.fleet().show_agent(ShowAgentRequest { name: name.clone() }).await;
    let shown = asked.map_err(|status| client.refusal(&status))?.into_inner();
    let ways = match reach::rows(&client, name, String::new()).await {
        // One that was removed reaches nobody; and a scheduler may be older than the question.
        Err(status) if matches!(status.code(), Code::NotFound | Code::Unimplemented) => Vec::new(),
        asked => asked.map_err(|status| client.refusal(&status))?,
    };
    match format {
        ShowFormat::Table => print(&text(shown, ways, view)?),
        ShowFormat::Json => output::print_json(&Shown { ways, ..Shown::from(shown) }),
    }
}

/// An agent, as printed for programs.
#[derive(Debug, Serialize)]
pub(super) struct Shown {
    #[serde(flatten)]
    agent: AgentRow,
    session: Option<Session>,
    leases: Vec<LeaseRow>,
    refusals: Vec<RefusalRow>,
    ways: Vec<WayRow>,
    events: Vec<EventRow>,
}

#[derive(Debug, Serialize)]
struct Session {
    session_id: i64,
    incarnation: i64,
    state: String,
    end_cause: Option<String>,
    opened_at: Option<Time>,
    renewed_at: Option<Time>,
    expires_at: Option<Time>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct LeaseRow {
    site: String,
    batch: String,
    token: i64,
    granted_at: Option<Time>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct RefusalRow {
    kind: String,
    times: u64,
    first_at: Option<Time>,
    last_at: Option<Time>,
    detail: String,
}

impl From<ShowAgentResponse> for Shown {
    fn from(shown: ShowAgentResponse) -> Self {
        Self {
            agent: shown.agent.unwrap_or_default().into(),
            session: shown.session.map(Session::from),
            leases: shown.leases.into_iter().map(LeaseRow::from).collect(),
            refusals: shown.refusals.into_iter().map(RefusalRow::from).collect(),
            ways: Vec::new(),
            events: shown.events.into_iter().map(EventRow::from).collect(),
        }
    }
}

impl From<AgentSession> for Session {
    fn from(session: AgentSession) -> Self {
        Self {
            session_id: session.session_id,
            incarnation: session.incarnation,
            state: session.state,
            end_cause: Some(session.end_cause).filter(|cause| !cause.is_empty()),
            opened_at: output::time(session.opened_at.as_ref()),
            renewed_at: output::time(session.renewed_at.as_ref()),
            expires_at: output::time(session.expires_at.as_ref()),
        }
    }
}

impl From<AgentLease> for LeaseRow {
    fn from(lease: AgentLease) -> Self {
        Self {
            site: lease.site,
            batch: lease.batch,
            token: lease.token,
            granted_at: output::time(lease.granted_at.as_ref()),
        }
    }
}

impl From<AgentRefusal> for RefusalRow {
    fn from(refusal: AgentRefusal) -> Self {
        Self {
            kind: refusal.kind,
            times: refusal.times,
            first_at: output::time(refusal.first_at.as_ref()),
            last_at: output::time(refusal.last_at.as_ref()),
            detail: refusal.detail,
        }
    }
}

impl Row for LeaseRow {
    const COLUMNS: &'static [&'static str] = &["crawls", "batch", "granted", "+>token"];

    fn cells(&self, view: &View) -> Vec<String> {
        vec![self.site.clone(), self.batch.clone(), view.when(self.granted_at), self.token.to_string()]
    }
}

impl Row for RefusalRow {
    const COLUMNS: &'static [&'static str] = &["refused", ">times", "last", "~detail"];

    fn cells(&self, view: &View) -> Vec<String> {
        vec![self.kind.clone(), output::number(self.times), view.when(self.last_at), self.detail.clone()]
    }
}

pub(super) fn text(shown: ShowAgentResponse, ways: Vec<WayRow>, view: &View) -> anyhow::Result<String> {
    let history: Vec<String> = shown.events.iter().map(|event| events::line(event, view)).collect();
    let Shown { agent, session, leases, refusals, .. } = Shown::from(shown);
    let mut text = agent.lines()?;
    match &session {
        Some(session) => {
            let ended = session.end_cause.as_ref().map(|cause| format!(" ({cause})")).unwrap_or_default();
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
        let (counts, unreached) = reach::section(agent.name(), ways, view);
        writeln!(text, "  beacon     {counts}")?;
        unreached
    };
    if !leases.is_empty() {
        write!(text, "\n{}", output::table(&leases, view))?;
    }
    if !unreached.is_empty() {
        write!(text, "\n{unreached}")?;
    }
    if !refusals.is_empty() {
        write!(text, "\n{}", output::table(&refusals, view))?;
    }
    if !history.is_empty() {
        writeln!(text, "\n{}", history.join("\n"))?;
    }
    Ok(view.fold(&text))
}

#[cfg(test)]
mod tests {
    use landfall_proto::v1::Agent;

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
        let text = text(shown, Vec::new(), &View::plain()).unwrap();
        assert!(text.starts_with("a (agent 0)\n  stands in  Harbin, CERNET\n"), "{text}");
        assert!(text.contains("  session    closed (superseded), incarnation 3, "), "{text}");
        assert!(text.contains("old-token"), "{text}");
        assert!(text.contains("; a second process uses its credential, "), "{text}");
    }
}
