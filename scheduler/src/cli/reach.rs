//! `landfall agents reach`: which agents reach whose beacon, why others do not, and what to do about it.

use std::fmt::Write;

use landfall_proto::v1::measurement_failure::Reason;
use landfall_proto::v1::{MeasurementFailure, ShowReachRequest, Way, WayState};
use serde::{Serialize, Serializer};
use tonic::Status;

use super::ConnectionArgs;
use super::client::Client;
use super::output::{self, Row, ShowFormat, Time, View};
use crate::exit::print;

/// Ways that are shown with an agent.
const SHOWN: usize = 20;

/// Tells who reaches an agent and whom it reaches, or how it is between two.
pub(super) async fn show(
    agent: String,
    other: Option<String>,
    format: ShowFormat,
    view: &View,
    connection: &ConnectionArgs,
) -> anyhow::Result<()> {
    let client = Client::connect(connection).await?;
    let two = other.is_some();
    let asked = rows(&client, agent.clone(), other.unwrap_or_default()).await;
    let rows = asked.map_err(|status| client.refusal(&status))?;
    match format {
        ShowFormat::Json => output::print_json(&rows),
        ShowFormat::Table if two => print(&view.fold(&both(&rows, view)?)),
        ShowFormat::Table => print(&all(&agent, &rows, view)),
    }
}

/// Every way from and to an agent, or to and from the other.
pub(super) async fn rows(client: &Client, agent: String, other: String) -> Result<Vec<WayRow>, Status> {
    let ways = client.fleet().show_reach(ShowReachRequest { agent, other }).await?.into_inner().ways;
    Ok(ways.into_iter().map(WayRow::from).collect())
}

/// From one agent to the beacon of another, as printed.
#[derive(Debug, Default, Serialize)]
pub(super) struct WayRow {
    prober: String,
    target: String,
    beacon_url: String,
    #[serde(serialize_with = "state_word")]
    state: WayState,
    rtt_ms: Option<f64>,
    reached_at: Option<Time>,
    #[serde(serialize_with = "cause_word")]
    cause: Option<Reason>,
    failure: String,
    failed_at: Option<Time>,
    next_at: Option<Time>,
}

impl From<Way> for WayRow {
    fn from(way: Way) -> Self {
        Self {
            state: way.state(),
            prober: way.prober,
            target: way.target,
            beacon_url: way.beacon_url,
            rtt_ms: output::millis(way.rtt.as_ref()),
            reached_at: output::time(way.reached_at.as_ref()),
            cause: way.failure.as_ref().map(MeasurementFailure::reason),
            failure: way.failure.map(|failure| failure.message).unwrap_or_default(),
            failed_at: output::time(way.failed_at.as_ref()),
            next_at: output::time(way.next_at.as_ref()),
        }
    }
}

/// The word for programs, and for people.
const fn word(state: WayState) -> &'static str {
    match state {
        WayState::Unspecified => "unknown",
        WayState::Reached => "reached",
        WayState::Failed => "failed",
        WayState::Untried => "untried",
        WayState::NotAsked => "not-asked",
        WayState::NoBeacon => "no-beacon",
        WayState::Away => "away",
    }
}

fn state_word<S: Serializer>(state: &WayState, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(word(*state))
}

fn cause_word<S: Serializer>(cause: &Option<Reason>, serializer: S) -> Result<S::Ok, S::Error> {
    cause.map(self::cause).serialize(serializer)
}

/// The word for programs.
const fn cause(reason: Reason) -> &'static str {
    match reason {
        Reason::Unspecified => "unknown",
        Reason::Dns => "dns",
        Reason::Connect => "connect",
        Reason::Tls => "tls",
        Reason::Timeout => "timeout",
        Reason::Protocol => "protocol",
        Reason::Guard => "guard",
        Reason::NoContactUrl => "no-contact-url",
        Reason::Metric => "metric",
        Reason::Order => "order",
        Reason::Refused => "refused",
        Reason::ConnectTimeout => "connect-timeout",
        Reason::NoReport => "no-report",
    }
}

impl Row for WayRow {
    const COLUMNS: &'static [&'static str] =
        &["from", "to", "state", ">rtt ms", "next try", "~last failure", "+beacon"];

    fn cells(&self, view: &View) -> Vec<String> {
        let failure = if self.reached() && !view.wide { "" } else { &self.failure };
        vec![
            self.prober.clone(),
            self.target.clone(),
            word(self.state).to_owned(),
            output::millis_cell(self.rtt_ms),
            view.when(self.next_at),
            output::text_cell(failure),
            output::text_cell(&self.beacon_url),
        ]
    }
}

impl WayRow {
    fn reached(&self) -> bool {
        self.state == WayState::Reached
    }

    fn failed(&self) -> bool {
        self.state == WayState::Failed
    }

    /// One direction between two agents, in lines.
    fn lines(&self, view: &View) -> Result<String, std::fmt::Error> {
        let Self { prober, target, .. } = self;
        let mut text = format!("{prober} to {target}: {}\n", self.verdict());
        writeln!(text, "  beacon     {}", if self.beacon_url.is_empty() { "none" } else { &self.beacon_url })?;
        match self.reached_at {
            Some(_) => {
                writeln!(text, "  reached    {}, {} ms", view.when(self.reached_at), output::millis_cell(self.rtt_ms))?;
            }
            None => writeln!(text, "  reached    never")?,
        }
        if let Some(reason) = self.cause {
            writeln!(text, "  failed     {}, {}: {}", view.when(self.failed_at), cause(reason), self.failure)?;
        }
        if self.next_at.is_some() {
            let sooner = if self.failed() { ", or at once when one of the two has started again" } else { "" };
            writeln!(text, "  next try   {}{sooner}", view.when(self.next_at))?;
        }
        if let Some(advice) = self.advice() {
            writeln!(text, "  do         {advice}")?;
        }
        Ok(text)
    }

    const fn verdict(&self) -> &'static str {
        match self.state {
            WayState::Reached => "reached",
            WayState::Failed => "NOT reached",
            WayState::Untried => "not tried yet",
            WayState::NotAsked => {
                "not tried: each agent measures the landmarks, and of the others measure.max_mesh_peers"
            }
            WayState::NoBeacon => "not tried: it runs no beacon",
            WayState::Away => "not tried: one of the two is not connected",
            WayState::Unspecified => "unknown",
        }
    }

    /// What the operator can do about it.
    fn advice(&self) -> Option<String> {
        let Self { prober, target, beacon_url, .. } = self;
        let reason = match self.state {
            WayState::Failed => self.cause?,
            WayState::NoBeacon => {
                return Some(format!("set beacon.enabled = true in agent.toml of {target}, if it is to have one"));
            }
            WayState::Away => return Some("`landfall agents list` shows which of the two is away".to_owned()),
            _ => return None,
        };
        Some(match reason {
            Reason::Guard => format!(
                "allow the network in agent.toml of {prober}, as said; or set beacon.advertise of {target} to a public address"
            ),
            Reason::Refused => format!(
                "nothing listens at {beacon_url}: look at beacon.listen and beacon.advertise in agent.toml of {target}, and at its firewall"
            ),
            Reason::ConnectTimeout | Reason::Connect => format!(
                "open the port of {beacon_url} at {target}, in its firewall and at its router; \
                 behind address translation set beacon.advertise to what leads there"
            ),
            Reason::Dns => {
                format!("look at the name in beacon.advertise of {target}, and at the name server of {prober} (dns)")
            }
            Reason::Protocol | Reason::Tls => format!(
                "something that is no beacon answers at {beacon_url}: look at beacon.advertise of {target}, and for a proxy on the way"
            ),
            Reason::Timeout => {
                format!("it connects and gets no answer: look at the load of {target}, and for a proxy on the way")
            }
            Reason::NoContactUrl => "landfall contact set URL".to_owned(),
            Reason::NoReport => format!("{prober} did not carry the order out in time: look at its load and its log"),
            Reason::Metric | Reason::Order | Reason::Unspecified => format!("look at the log of {prober}"),
        })
    }
}

/// Both directions between two agents.
pub(super) fn both(rows: &[WayRow], view: &View) -> anyhow::Result<String> {
    let parts = rows.iter().map(|row| row.lines(view)).collect::<Result<Vec<String>, _>>()?;
    Ok(parts.join("\n"))
}

/// How many reach it, and how many it reaches.
fn counts(agent: &str, rows: &[WayRow]) -> String {
    let of = |ours: &dyn Fn(&&WayRow) -> bool| {
        let tried = rows.iter().filter(ours).filter(|way| way.reached() || way.failed());
        (tried.clone().filter(|way| way.reached()).count(), tried.count())
    };
    let (reached, tried) = of(&|way| way.target == agent);
    let (reaches, tries) = of(&|way| way.prober == agent);
    format!("reached by {reached} of {tried} that tried, reaches {reaches} of {tries} that it tried")
}

/// All ways of one agent.
fn all(agent: &str, rows: &[WayRow], view: &View) -> String {
    let mut text = view.fold(&format!("{agent}: {}", counts(agent, rows)));
    if !rows.is_empty() {
        text = text + "\n" + &output::table(rows, view);
    }
    text
}

/// What is shown with an agent: how many ways there are, and a table of those that are wrong.
pub(super) fn section(agent: &str, rows: Vec<WayRow>, view: &View) -> (String, String) {
    let counts = counts(agent, &rows);
    let mut wrong: Vec<WayRow> = rows.into_iter().filter(WayRow::failed).collect();
    if wrong.is_empty() {
        return (counts, String::new());
    }
    let most = if view.wide { usize::MAX } else { SHOWN };
    let more = match wrong.len().saturating_sub(most) {
        0 => String::new(),
        more => format!("and {more} more: landfall agents reach {agent}\n"),
    };
    wrong.truncate(most);
    (counts, output::table(&wrong, view) + &more)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(prober: &str, target: &str, state: WayState) -> WayRow {
        WayRow {
            prober: prober.into(),
            target: target.into(),
            beacon_url: "http://198.18.0.5:7180/".into(),
            state,
            ..WayRow::default()
        }
    }

    fn refused(prober: &str, target: &str) -> WayRow {
        let failure =
            "the guard refuses 198.18.0.5: benchmarking; add allow_net = [\"198.18.0.0/15\"] to agent.toml".into();
        WayRow { cause: Some(Reason::Guard), failure, ..way(prober, target, WayState::Failed) }
    }

    #[test]
    fn of_two_agents_each_direction_says_how_it_stands_why_and_what_to_do() {
        let there = WayRow {
            rtt_ms: Some(42.0),
            reached_at: Some(Time(View::plain().now)),
            ..way("a", "b", WayState::Reached)
        };
        let text = both(&[there, refused("b", "a")], &View::plain()).unwrap();
        let parts: Vec<&str> = text.split("\n\n").collect();
        assert_eq!(parts[0], "a to b: reached\n  beacon     http://198.18.0.5:7180/\n  reached    now, 42.0 ms");
        for said in [
            "b to a: NOT reached",
            "reached    never",
            "guard: the guard refuses 198.18.0.5",
            "agent.toml of b, as said",
        ] {
            assert!(parts[1].contains(said), "{said} in {text}");
        }
    }

    #[test]
    fn with_an_agent_are_shown_its_counts_and_twenty_failures_and_the_rest_is_counted() {
        let mut rows: Vec<WayRow> = (0..23).map(|number| refused("a", &format!("b{number}"))).collect();
        rows.extend([way("b1", "a", WayState::Reached), way("b2", "a", WayState::Untried)]);
        let (counts, table) = section("a", rows, &View::plain());
        assert_eq!(counts, "reached by 1 of 1 that tried, reaches 0 of 23 that it tried");
        assert!(table.lines().count() == 22 && table.ends_with("and 3 more: landfall agents reach a\n"), "{table}");
    }
}
