//! `landfall agents`: enrolling and listing. Showing one is `agent`'s, taking out of service `drain`'s.

use std::fmt::Write;

use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use landfall_proto::v1::{Agent, CreateEnrolmentRequest, CreateEnrolmentResponse, ListAgentsRequest};
use serde::Serialize;

use super::ConnectionArgs;
use super::agent::{self, LeaseRow};
use super::client::Client;
use super::drain::{self, DrainArgs, RemoveArgs};
use super::output::{self, Format, FormatArgs, Row, ShowFormat, ShowFormatArgs, Time, View};
use super::service::Service;
use super::tag::TagArgs;
use super::view::relative;
use crate::constraints;
use crate::exit::{print, usage};
use crate::gnp::{Position, PositionError};
use crate::naming;
use crate::up::quoted;

#[derive(Debug, Subcommand)]
pub(super) enum AgentsCommand {
    /// Make a one-time token; prints the command to run on the remote machine
    #[command(
        visible_alias = "enroll",
        after_help = "\
Example:
  landfall agents enrol --city Harbin --isp CERNET --country CN --latitude 45.8 --longitude 126.5"
    )]
    Enrol(EnrolArgs),
    /// List the agents
    List {
        /// Those that were removed as well
        #[arg(long)]
        removed: bool,
        #[command(flatten)]
        format: FormatArgs<AgentRow>,
    },
    /// Show one agent: its session, what it crawls, what it was refused, and its last events
    Show {
        /// The agent
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        format: ShowFormatArgs<LeaseRow>,
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

#[derive(Debug, Args)]
pub(super) struct EnrolArgs {
    /// The city the agent stands in
    #[arg(long)]
    city: String,
    /// The carrier (ISP) it is connected to
    #[arg(long)]
    isp: String,
    /// Its name [default: formed from city and carrier]
    #[arg(long)]
    name: Option<String>,
    /// Its country, two letters (ISO 3166-1)
    #[arg(long, value_name = "CC")]
    country: Option<String>,
    /// Where it stands: degrees north, -90 to 90. With --longitude, round trips faster than light in fibre are told apart
    #[arg(long, value_name = "DEGREES", requires = "longitude", allow_negative_numbers = true)]
    latitude: Option<f64>,
    /// Where it stands: degrees east, -180 to 180
    #[arg(long, value_name = "DEGREES", requires = "latitude", allow_negative_numbers = true)]
    longitude: Option<f64>,
    /// A tag that batches may ask for: 1 to 32 characters of a-z, 0-9, '.', '_' and '-'; may be said again, 16 times at most
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    #[command(flatten)]
    format: ShowFormatArgs,
}

impl AgentsCommand {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        match self {
            Self::Enrol(args) => enrol(args, connection).await,
            Self::Show { name, format: ShowFormatArgs { format, wide } } => {
                agent::show(name, format, &wide.view(), connection).await
            }
            Self::Drain(args) => args.run(connection).await,
            Self::Resume { name } => drain::resume(name, connection).await,
            Self::Tag(args) => args.run(connection).await,
            Self::Remove(args) => args.run(connection).await,
            Self::List { removed, format: FormatArgs { format, wide } } => {
                let client = Client::connect(connection).await?;
                let listed = client.fleet().list_agents(ListAgentsRequest { removed }).await;
                let agents = listed.map_err(|status| client.refusal(&status))?.into_inner().agents;
                if agents.is_empty() && format == Format::Table {
                    return print("no agents yet: landfall agents enrol --city CITY --isp ISP\n");
                }
                let rows: Vec<AgentRow> = agents.into_iter().map(AgentRow::from).collect();
                output::print_rows(&rows, format, &wide.view())
            }
        }
    }
}

async fn enrol(args: EnrolArgs, connection: &ConnectionArgs) -> anyhow::Result<()> {
    for (flag, text) in [("--city", &args.city), ("--isp", &args.isp)] {
        naming::one_line(text).map_err(|problem| usage(format!("{flag}: {problem}")))?;
    }
    let country = args.country.unwrap_or_default().to_ascii_uppercase();
    if !(country.is_empty() || country.len() == 2 && country.bytes().all(|byte| byte.is_ascii_uppercase())) {
        return Err(usage(format!("--country must be two letters, is '{country}'")));
    }
    Position::from_parts(args.latitude, args.longitude).map_err(|problem| match problem {
        PositionError::Latitude => usage(format!("--latitude: {problem}")),
        PositionError::Longitude => usage(format!("--longitude: {problem}")),
        PositionError::Half => usage(format!("--latitude, --longitude: {problem}")),
    })?;
    let tags = constraints::tags(&args.tag).map_err(|error| usage(format!("--tag: {}", error.problem)))?;
    let client = Client::connect(connection).await?;
    let request = CreateEnrolmentRequest {
        name: args.name.unwrap_or_default(),
        city: args.city,
        carrier: args.isp,
        country,
        valid_for: None,
        latitude: args.latitude,
        longitude: args.longitude,
        tags,
    };
    let made = client.fleet().create_enrolment(request).await.map_err(|status| client.refusal(&status))?.into_inner();
    if made.contact_url.is_empty() {
        eprintln!(
            "warning: no contact URL is set, and agents send no request to a site without one: landfall contact set URL"
        );
    }
    let enrolment = Enrolment::new(made, client.url());
    match args.format.format {
        ShowFormat::Table => print(&enrolment.text(Utc::now())),
        ShowFormat::Json => output::print_json(&enrolment),
    }
}

/// What `agents enrol` prints.
#[derive(Debug, Serialize)]
struct Enrolment {
    name: String,
    token: String,
    expires_at: Option<Time>,
    scheduler_url: String,
    other_scheduler_urls: Vec<String>,
    ca_fingerprint: Option<String>,
    contact_url: Option<String>,
    command: String,
}

impl Enrolment {
    fn new(made: CreateEnrolmentResponse, reached_at: &str) -> Self {
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        let scheduler_url = some(made.scheduler_url).unwrap_or_else(|| reached_at.to_owned());
        let ca_fingerprint = some(made.ca_fingerprint);
        let schedulers: Vec<&str> =
            std::iter::once(&scheduler_url).chain(&made.other_scheduler_urls).map(String::as_str).collect();
        let schedulers = schedulers.join(",");
        let mut command =
            format!("landfall-agent enrol --scheduler {} --token {}", quoted(&schedulers), quoted(&made.token));
        if let Some(fingerprint) = &ca_fingerprint {
            command = format!("{command} --ca-fingerprint {}", quoted(fingerprint));
        }
        Self {
            name: made.name,
            token: made.token,
            expires_at: output::time(made.expires_at.as_ref()),
            scheduler_url,
            other_scheduler_urls: made.other_scheduler_urls,
            ca_fingerprint,
            contact_url: some(made.contact_url),
            command,
        }
    }

    fn text(&self, now: DateTime<Utc>) -> String {
        let mut text = format!("{}\n", self.command);
        let until = self.expires_at.map(|at| format!(" (the token ends {})", relative(at.0, now))).unwrap_or_default();
        // Writing to a String cannot fail.
        writeln!(text, "# run it once, where {} stands{until}; then: landfall-agent run", self.name)
            .expect("a String takes every write");
        text
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
    capacity: u32,
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
            capacity: agent.capacity,
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
        }
    }
}

impl AgentRow {
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
        writeln!(
            text,
            "  service    {}, {} of {} slots taken{landmark}, version {version}",
            self.service(),
            self.leased,
            self.capacity
        )?;
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
        self.service.words(&self.paused)
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
            // Its capacity is known only from its first session on.
            self.seen_at.map_or_else(|| "-".to_owned(), |_| format!("{}/{}", self.leased, self.capacity)),
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
    fn enrolling_prints_one_command_and_what_comes_after() {
        let made = CreateEnrolmentResponse {
            name: "harbin-cernet".to_owned(),
            token: "abc".to_owned(),
            scheduler_url: "https://s.example.org:7171".to_owned(),
            ca_fingerprint: "00ff".to_owned(),
            ..CreateEnrolmentResponse::default()
        };
        let text = Enrolment::new(made, "https://127.0.0.1:7171").text(Utc::now());
        let mut lines = text.lines();
        assert_eq!(
            lines.next(),
            Some("landfall-agent enrol --scheduler https://s.example.org:7171 --token abc --ca-fingerprint 00ff")
        );
        assert!(lines.next().is_some_and(|line| line.starts_with('#') && line.contains("landfall-agent run")));
        assert_eq!(lines.next(), None);
        let made = CreateEnrolmentResponse {
            token: "abc".to_owned(),
            scheduler_url: "http://127.0.0.1:1".to_owned(),
            other_scheduler_urls: vec!["http://127.0.0.1:2".to_owned()],
            ..CreateEnrolmentResponse::default()
        };
        let command = Enrolment::new(made, "http://127.0.0.1:1").command;
        assert_eq!(command, "landfall-agent enrol --scheduler http://127.0.0.1:1,http://127.0.0.1:2 --token abc");
    }
}
