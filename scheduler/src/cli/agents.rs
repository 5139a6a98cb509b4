//! `landfall agents`: listing. Enrolling is `enrol`'s, tokens are `tokens`', showing one is `agent`'s, taking out of service `drain`'s.

use std::fmt::Write;

use clap::Subcommand;
use landfall_proto::v1::Agent;
use serde::Serialize;

use super::ConnectionArgs;
use super::agent::{self, LeaseRow};
use super::agent_list::ListArgs;
use super::drain::{self, DrainArgs, RemoveArgs};
use super::enrol::EnrolArgs;
use super::output::{self, Row, ShowFormatArgs, Time, View};
use super::reach::{self, WayRow};
use super::service::Service;
use super::tag::TagArgs;
use super::tokens::{self, TokensArgs};

#[derive(Debug, Subcommand)]
pub(super) enum AgentsCommand {
    /// Make a one-time token; prints the command to run on the remote machine
    #[command(
        visible_alias = "enroll",
        after_help = "\
Examples:
  landfall agents enrol --city Harbin --isp CERNET --country CN --latitude 45.8 --longitude 126.5
  landfall agents enrol --city 北京 --isp 电信                       called beijing-dianxin
  landfall agents enrol --city Harbin --isp CERNET --name harbin-cernet --replace    moves it to another machine
  landfall agents enrol --from agents.csv --format json            a token for each line, or none

The first line of a file names its columns: city and isp, and country, latitude, longitude, name and tags as needed."
    )]
    Enrol(EnrolArgs),
    /// List one-time tokens: those that are open, or all that are remembered
    Tokens(TokensArgs),
    /// Make an open token void; its name is free again
    #[command(after_help = "Example:\n  landfall agents revoke harbin-cernet")]
    Revoke {
        /// The agent the token was made for, or the token's id
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// List the agents
    #[command(after_help = "\
Examples:
  landfall agents list --isp CERNET --state ready
  landfall agents list --city Harbin --city Changchun --tag fast -o csv")]
    List(ListArgs),
    /// Show one agent: its session, what it crawls, what it was refused, and its last events
    Show {
        /// The agent
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        format: ShowFormatArgs<LeaseRow>,
    },
    /// Tell which agents reach an agent's beacon and whose it reaches; of two, why not, and what to do about it
    #[command(after_help = "Example:\n  landfall agents reach harbin-cernet tokyo-iij")]
    Reach {
        /// The agent
        #[arg(value_name = "NAME")]
        name: String,
        /// Another one: both directions between the two, in full
        #[arg(value_name = "OTHER")]
        other: Option<String>,
        #[command(flatten)]
        format: ShowFormatArgs<WayRow>,
    },
    /// Give an agent no more work; it finishes what it has begun, the rest goes to others
    #[command(after_help = "\
Example:
  landfall agents drain harbin-cernet --wait && ssh harbin systemctl stop landfall-agent")]
    Drain(DrainArgs),
    /// Take a draining agent back into service
    Resume {
        /// The agent
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Give an agent tags that batches may ask for, or take them from it
    #[command(after_help = "Example:\n  landfall agents tag harbin-cernet --add fast --add rack-2 --remove spare")]
    Tag(TagArgs),
    /// Remove an agent for good: its credential is refused, its history stays
    Remove(RemoveArgs),
}

impl AgentsCommand {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        match self {
            Self::Enrol(args) => args.run(connection).await,
            Self::Tokens(args) => args.run(connection).await,
            Self::Revoke { name } => tokens::revoke(name, connection).await,
            Self::Show { name, format: ShowFormatArgs { format, wide } } => {
                agent::show(name, format, &wide.view(), connection).await
            }
            Self::Reach { name, other, format: ShowFormatArgs { format, wide } } => {
                reach::show(name, other, format, &wide.view(), connection).await
            }
            Self::Drain(args) => args.run(connection).await,
            Self::Resume { name } => drain::resume(name, connection).await,
            Self::Tag(args) => args.run(connection).await,
            Self::Remove(args) => args.run(connection).await,
            Self::List(args) => args.run(connection).await,
        }
    }
}

/// The agents for people, and how many are still to come.
pub(super) fn text(rows: &[AgentRow], open: u64, view: &View) -> String {
    let table = if rows.is_empty() { String::new() } else { output::table(rows, view) };
    let is = if open == 1 { "is" } else { "are" };
    match (rows.is_empty(), open) {
        (true, 0) => "no agents yet: landfall agents enrol --city CITY --isp ISP\n".to_owned(),
        (false, 0) => table,
        (none, _) => {
            let none = if none { "no agents yet; " } else { "" };
            format!("{table}{none}{} {is} open: landfall agents tokens\n", output::counted(open, "enrolment token"))
        }
    }
}

/// One agent, as printed.
#[derive(Debug, Default, Serialize)]
pub(super) struct AgentRow {
    agent_id: i64,
    name: String,
    city: String,
    carrier: String,
    country: String,
    connected: bool,
    service: Service,
    landmark: bool,
    /// Known from its first session on.
    capacity: Option<u32>,
    leased: u32,
    waiting: u32,
    load_level: Option<i64>,
    free_slots: Option<u32>,
    crawls: Option<u32>,
    outcomes_waiting: Option<u32>,
    reached_by: u32,
    seen_at: Option<Time>,
    version: String,
    beacon_url: String,
    latitude: Option<f64>,
    longitude: Option<f64>,
    quarantined: String,
    draining_since: Option<Time>,
    removed_at: Option<Time>,
    paused: String,
    /// Separated by spaces.
    tags: String,
    /// When a second process with its credential was last turned away, if lately.
    twin_at: Option<Time>,
}

impl From<Agent> for AgentRow {
    fn from(agent: Agent) -> Self {
        Self {
            service: agent.service().into(),
            agent_id: agent.agent_id,
            name: agent.name,
            city: agent.city,
            carrier: agent.carrier,
            country: agent.country,
            connected: agent.connected,
            landmark: agent.landmark,
            capacity: agent.seen_at.map(|_| agent.capacity),
            leased: agent.leased,
            waiting: agent.waiting,
            load_level: agent.load_level,
            free_slots: agent.free_slots,
            crawls: agent.crawls,
            outcomes_waiting: agent.outcomes_waiting,
            reached_by: agent.reached_by,
            seen_at: output::time(agent.seen_at.as_ref()),
            version: agent.version,
            beacon_url: agent.beacon_url,
            latitude: agent.latitude,
            longitude: agent.longitude,
            quarantined: agent.quarantined,
            draining_since: output::time(agent.draining_since.as_ref()),
            removed_at: output::time(agent.removed_at.as_ref()),
            paused: agent.paused,
            tags: agent.tags.join(" "),
            twin_at: output::time(agent.twin_at.as_ref()),
        }
    }
}

impl AgentRow {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// How it stands, a line each.
    pub(super) fn lines(&self) -> anyhow::Result<String> {
        let mut text = String::new();
        writeln!(text, "{} (agent {})", self.name, self.agent_id)?;
        let country = if self.country.is_empty() { String::new() } else { format!(", {}", self.country) };
        writeln!(text, "  stands in  {}, {}{country}", self.city, self.carrier)?;
        if !self.tags.is_empty() {
            writeln!(text, "  tags       {}", self.tags)?;
        }
        let landmark = if self.landmark { ", landmark" } else { "" };
        let version = if self.version.is_empty() { "unknown" } else { &self.version };
        let slots = self.capacity.map(|capacity| format!(", {} of {capacity} slots taken", self.leased));
        let slots = slots.unwrap_or_default();
        writeln!(text, "  service    {}{slots}{landmark}, version {version}", self.service())?;
        if let Some(level) = self.load_level {
            writeln!(text, "  load       level {level:+}: {}{}", self.in_words(level), self.said())?;
        }
        if !self.quarantined.is_empty() {
            writeln!(text, "  quarantined  {}", self.quarantined)?;
        }
        Ok(text)
    }

    fn in_words(&self, level: i64) -> String {
        let waiting = if self.waiting == 0 {
            String::new()
        } else {
            format!(", {} assigned and not begun", output::number(self.waiting.into()))
        };
        match level {
            0.. => format!("full{waiting}"),
            _ => format!("room for {}{waiting}", -level),
        }
    }

    /// What it said itself, which may differ from what is known here by what is under way.
    fn said(&self) -> String {
        match (self.crawls, self.free_slots, self.outcomes_waiting) {
            (Some(crawls), Some(free), Some(outcomes)) => {
                let parts = [(crawls, "crawled"), (free, "free"), (outcomes, "outcomes not acknowledged")];
                let parts: Vec<String> = parts
                    .iter()
                    .filter(|(count, _)| *count > 0)
                    .map(|(count, what)| format!("{count} {what}"))
                    .collect();
                if parts.is_empty() { String::new() } else { format!(" (it said: {})", parts.join(", ")) }
            }
            _ => String::new(),
        }
    }

    /// Whether it takes work, in plain words.
    fn service(&self) -> String {
        let words = self.service.words(&self.paused);
        match self.twin_at {
            Some(_) => format!("{words}; a second process uses its credential"),
            None => words,
        }
    }
}

impl Row for AgentRow {
    const COLUMNS: &'static [&'static str] = &[
        "name",
        "city",
        "carrier",
        "~service",
        ">slots",
        ">load",
        "landmark",
        "seen",
        "+country",
        "+>reached by",
        "+version",
        "+tags",
        "+>id",
        "+quarantined",
    ];

    fn cells(&self, view: &View) -> Vec<String> {
        vec![
            self.name.clone(),
            self.city.clone(),
            self.carrier.clone(),
            self.service(),
            self.capacity.map_or_else(|| "-".to_owned(), |capacity| format!("{}/{capacity}", self.leased)),
            level_cell(self.load_level),
            output::yes_cell(self.landmark),
            view.when(self.seen_at),
            output::text_cell(&self.country),
            self.reached_by.to_string(),
            output::text_cell(&self.version),
            output::text_cell(&self.tags),
            self.agent_id.to_string(),
            output::text_cell(&self.quarantined),
        ]
    }
}

/// A load level, with its sign.
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
        let rows = [AgentRow::default()];
        assert_eq!(text(&rows, 0, &view), output::table(&rows, &view));
        assert!(text(&rows, 2, &view).ends_with("\n2 enrolment tokens are open: landfall agents tokens\n"));
    }

    #[test]
    fn the_slots_of_an_agent_that_never_connected_are_unknown() {
        let printed = |agent: Agent| serde_json::to_value(AgentRow::from(agent)).unwrap()["capacity"].as_u64();
        assert_eq!(printed(Agent { capacity: 1, ..Agent::default() }), None);
        let seen_at = Some(prost_types::Timestamp::default());
        assert_eq!(printed(Agent { capacity: 4, seen_at, ..Agent::default() }), Some(4));
    }
}
