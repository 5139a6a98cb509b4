//! `landfall agents reach`: shows which agents reach which beacons, why attempts fail, and what the
//! operator can do.

use std::fmt::Write;

use clap::Args;
use landfall_proto::json::Word as _;
use landfall_proto::v1::measurement_failure::Reason;
use landfall_proto::v1::{ShowReachRequest, Way, WayState};
use tonic::Status;

use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::output::{self, Column, Row, ShowFormatArgs, Tone, View};

/// Maximum number of failed directions (from an agent to a beacon) that `agents show` prints.
const SHOWN: usize = 20;

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  landfall agents reach harbin-cernet tokyo-iij")]
pub(in crate::cli) struct ReachArgs {
    /// The agent
    #[arg(value_name = "NAME")]
    name: String,
    /// Another agent: show both directions between the two in full
    #[arg(value_name = "OTHER")]
    other: Option<String>,
    #[command(flatten)]
    format: ShowFormatArgs<Way>,
}

impl ReachArgs {
    /// Prints which agents reach an agent's beacon, and which beacons the agent reaches. For two
    /// agents, prints all details of both directions between them.
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { name: agent, other, format } = self;
        let client = Client::connect(connection).await?;
        let two = other.is_some();
        let asked = rows(&client, agent.clone(), other.unwrap_or_default()).await;
        let rows = asked.map_err(|status| client.refusal(&status))?;
        format.print(
            &rows,
            |rows, view| if two { Ok(view.fold(&both(rows, view)?)) } else { Ok(all(&agent, rows, view)) },
        )
    }
}

/// Fetches the results of an agent's attempts to reach beacons, and of other agents' attempts to
/// reach the agent's beacon. If `other` is not empty, fetches only results between the two agents.
pub(in crate::cli) async fn rows(client: &Client, agent: String, other: String) -> Result<Vec<Way>, Status> {
    Ok(client.fleet().show_reach(ShowReachRequest { agent, other }).await?.into_inner().ways)
}

impl Row for Way {
    const COLUMNS: &'static [Column<Self>] = &[
        ("from", |row, _| row.prober.clone()),
        ("to", |row, _| row.target.clone()),
        ("!state", |row, _| row.state().word_or_unknown().to_owned()),
        (">rtt ms", |row, _| output::millis_cell(row.rtt)),
        ("next try", |row, view| view.when(row.next_at)),
        ("~last failure", |row, view| match &row.failure {
            Some(failure) if view.wide || !reached(row) => output::text_cell(&failure.message),
            _ => "-".to_owned(),
        }),
        ("+beacon", |row, _| output::text_cell(&row.beacon_url)),
    ];

    fn tone(&self) -> Tone {
        match self.state() {
            WayState::Reached => Tone::Good,
            WayState::Failed => Tone::Bad,
            _ => Tone::Plain,
        }
    }
}

fn reached(way: &Way) -> bool {
    way.state() == WayState::Reached
}

fn failed(way: &Way) -> bool {
    way.state() == WayState::Failed
}

/// Describes whether one agent reaches another agent's beacon, in several lines.
fn lines(way: &Way, view: &View) -> Result<String, std::fmt::Error> {
    let Way { prober, target, beacon_url, .. } = way;
    let mut text = format!("{prober} to {target}: {}\n", verdict(way.state()));
    writeln!(text, "  beacon     {}", if beacon_url.is_empty() { "none" } else { beacon_url })?;
    match way.reached_at {
        Some(_) => {
            writeln!(text, "  reached    {}, {} ms", view.when(way.reached_at), output::millis_cell(way.rtt))?;
        }
        None => writeln!(text, "  reached    never")?,
    }
    if let Some(failure) = &way.failure {
        let (at, cause) = (view.when(way.failed_at), failure.reason().word_or_unknown());
        writeln!(text, "  failed     {at}, {cause}: {}", failure.message)?;
    }
    if way.next_at.is_some() {
        let sooner = if failed(way) { ", or as soon as one of the two restarts" } else { "" };
        writeln!(text, "  next try   {}{sooner}", view.when(way.next_at))?;
    }
    if let Some(advice) = advice(way) {
        writeln!(text, "  advice     {advice}")?;
    }
    Ok(text)
}

const fn verdict(state: WayState) -> &'static str {
    match state {
        WayState::Reached => "reached",
        WayState::Failed => "NOT reached",
        WayState::Untried => "not tried yet",
        WayState::NotAsked => {
            "not tried: each agent measures the landmarks and at most measure.max_mesh_peers other agents"
        }
        WayState::NoBeacon => "not tried: it runs no beacon",
        WayState::Away => "not tried: one of the two is not connected",
        WayState::Unspecified => "unknown",
    }
}

/// Advises the operator what to do if one agent does not reach another agent's beacon.
fn advice(way: &Way) -> Option<String> {
    let Way { prober, target, beacon_url, .. } = way;
    let reason = match way.state() {
        WayState::Failed => way.failure.as_ref()?.reason(),
        WayState::NoBeacon => {
            return Some(format!("if {target} is to have a beacon, set beacon.enabled = true in its agent.toml"));
        }
        WayState::Away => return Some("`landfall agents list` shows which of the two is disconnected".to_owned()),
        _ => return None,
    };
    Some(match reason {
        Reason::Guard => format!(
            "allow the network named in the failure in agent.toml of {prober}, or set beacon.advertise of {target} to \
             a public address"
        ),
        Reason::Refused => format!(
            "nothing listens at {beacon_url}: check beacon.listen and beacon.advertise in agent.toml of {target}, and \
             its firewall"
        ),
        Reason::ConnectTimeout | Reason::Connect => format!(
            "open the port of {beacon_url} in the firewall and router of {target}; behind address translation set \
             beacon.advertise to the public address and port"
        ),
        Reason::Dns => {
            format!(
                "check the name in beacon.advertise of {target}, and the name server of {prober} (dns in its \
                 agent.toml)"
            )
        }
        Reason::Protocol | Reason::Tls => format!(
            "the server at {beacon_url} is not a beacon: check beacon.advertise of {target}, and whether a proxy is \
             on the path"
        ),
        Reason::Timeout => {
            format!("it connects but gets no answer: check the load of {target}, and whether a proxy is on the path")
        }
        Reason::NoContactUrl => "landfall contact set URL".to_owned(),
        Reason::NoReport => format!("{prober} did not measure in time: check its load and read its log"),
        Reason::Metric | Reason::Order | Reason::Unspecified => format!("read the log of {prober}"),
    })
}

/// Describes whether each of two agents reaches the other agent's beacon.
pub(in crate::cli) fn both(rows: &[Way], view: &View) -> anyhow::Result<String> {
    let parts = rows.iter().map(|row| lines(row, view)).collect::<Result<Vec<String>, _>>()?;
    Ok(parts.join("\n"))
}

/// Describes how many agents reach this agent's beacon, and how many beacons this agent reaches.
fn counts(agent: &str, rows: &[Way]) -> String {
    let of = |ours: &dyn Fn(&&Way) -> bool| {
        let tried = rows.iter().filter(ours).filter(|way| reached(way) || failed(way));
        (tried.clone().filter(|way| reached(way)).count(), tried.count())
    };
    let (reached, tried) = of(&|way| way.target == agent);
    let (reaches, tries) = of(&|way| way.prober == agent);
    format!(
        "reached by {reached} of the {tried} agents that measured it; reaches {reaches} of the {tries} agents that it \
         measured"
    )
}

fn all(agent: &str, rows: &[Way], view: &View) -> String {
    let mut text = view.fold(&format!("{agent}: {}", counts(agent, rows)));
    if !rows.is_empty() {
        text = text + "\n" + &output::table(rows, view);
    }
    text
}

/// The part of `agents show` about beacons: how many agents reach this agent's beacon, how many
/// beacons it reaches, and a table of the failed attempts.
pub(in crate::cli) fn section(agent: &str, rows: &[Way], view: &View) -> (String, String) {
    let counts = counts(agent, rows);
    let mut wrong: Vec<Way> = rows.iter().filter(|way| failed(way)).cloned().collect();
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
    use landfall_proto::v1::MeasurementFailure;

    use super::*;

    fn way(prober: &str, target: &str, state: WayState) -> Way {
        Way {
            prober: prober.into(),
            target: target.into(),
            beacon_url: "http://198.18.0.5:7180/".into(),
            state: state.into(),
            ..Way::default()
        }
    }

    fn refused(prober: &str, target: &str) -> Way {
        let message =
            "the guard refuses 198.18.0.5: benchmarking; add allow_net = [\"198.18.0.0/15\"] to agent.toml".into();
        let failure = Some(MeasurementFailure { reason: Reason::Guard.into(), message });
        Way { failure, ..way(prober, target, WayState::Failed) }
    }

    #[test]
    fn of_two_agents_each_direction_says_how_it_stands_why_and_what_to_do() {
        let there = Way {
            rtt: Some(prost_types::Duration { seconds: 0, nanos: 42_000_000 }),
            reached_at: Some(prost_types::Timestamp::default()),
            ..way("a", "b", WayState::Reached)
        };
        let text = both(&[there, refused("b", "a")], &View::plain()).unwrap();
        let parts: Vec<&str> = text.split("\n\n").collect();
        assert_eq!(parts[0], "a to b: reached\n  beacon     http://198.18.0.5:7180/\n  reached    now, 42.0 ms");
        for said in [
            "b to a: NOT reached",
            "reached    never",
            "guard: the guard refuses 198.18.0.5",
            "allow the network named in the failure in agent.toml of b",
        ] {
            assert!(parts[1].contains(said), "{said} in {text}");
        }
    }

    #[test]
    fn with_an_agent_are_shown_its_counts_and_twenty_failures_and_the_rest_is_counted() {
        let mut rows: Vec<Way> = (0..23).map(|number| refused("a", &format!("b{number}"))).collect();
        rows.extend([way("b1", "a", WayState::Reached), way("b2", "a", WayState::Untried)]);
        let (counts, table) = section("a", &rows, &View::plain());
        assert_eq!(
            counts,
            "reached by 1 of the 1 agents that measured it; reaches 0 of the 23 agents that it measured"
        );
        assert!(table.lines().count() == 22 && table.ends_with("and 3 more: landfall agents reach a\n"), "{table}");
    }
}
