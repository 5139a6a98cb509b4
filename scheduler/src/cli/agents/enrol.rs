//! `landfall agents enrol`: makes one-time tokens and prints the commands that use them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use chrono::{DateTime, Utc};
use clap::Args;
use humantime::parse_duration;
use landfall_proto::json;
use landfall_proto::v1::{CreateEnrolmentRequest, CreateEnrolmentResponse, CreateEnrolmentsRequest};
use prost_types::Timestamp;
use serde::Serialize;

use super::enrol_csv::{self, Rejected};
use crate::app::exit::{print, usage};
use crate::app::shell_words::quoted;
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::contact_url::NO_CONTACT;
use crate::cli::files::{read_bytes, shown};
use crate::cli::output::{self, Column, Format, FormatArgs, Row, View, relative};
use crate::machine::clock::now;
use crate::model::geo::{Position, PositionError};
use crate::model::{constraints, naming};

/// Maximum number of invalid lines that are reported one by one.
const MOST_SAID: usize = 20;
/// Minimum and maximum validity of a token.
const SHORTEST: Duration = Duration::from_secs(600);
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

#[derive(Debug, Args)]
pub(in crate::cli) struct EnrolArgs {
    /// The agent's city
    #[arg(long, required_unless_present = "from")]
    city: Option<String>,
    /// Its carrier (ISP)
    #[arg(long, required_unless_present = "from")]
    carrier: Option<String>,
    /// Its name [default: formed from city and carrier]
    #[arg(long)]
    name: Option<String>,
    /// Its country, two letters (ISO 3166-1)
    #[arg(long, value_name = "CC")]
    country: Option<String>,
    /// Its latitude in degrees, -90 to 90; requires --longitude. A position makes it possible to
    /// detect round trips that are too short for light in fibre
    #[arg(long, value_name = "DEGREES", requires = "longitude", allow_negative_numbers = true)]
    latitude: Option<f64>,
    /// Its longitude in degrees, -180 to 180; requires --latitude
    #[arg(long, value_name = "DEGREES", requires = "latitude", allow_negative_numbers = true)]
    longitude: Option<f64>,
    /// A tag that batches may require: 1 to 32 characters of a-z, 0-9, '.', '_' and '-'; may be
    /// repeated, up to 16 times
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Enrol every agent in this CSV list; - for standard input
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["city", "carrier", "name", "country", "latitude", "longitude", "tag"]
    )]
    from: Option<PathBuf>,
    /// How long a token is valid, 10m to 30d [default: 24h]
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    ttl: Option<Duration>,
    /// If an agent with this name exists, move it to another machine when the token is used
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    format: FormatArgs<EnrolmentRow>,
}

fn ttl(text: &str) -> Result<Duration, String> {
    let parsed = parse_duration(text).map_err(|error| error.to_string())?;
    if (SHORTEST..=LONGEST).contains(&parsed) { Ok(parsed) } else { Err("must be 10m to 30d".to_owned()) }
}

impl EnrolArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        match &self.from {
            Some(file) => self.enrol_list(file, connection).await,
            None => self.enrol_one(connection).await,
        }
    }

    async fn enrol_one(&self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let request = self.request()?;
        let client = Client::connect(connection).await?;
        let made = client.answer(client.fleet().create_enrolment(request).await)?;
        warn_without_contact(&made);
        let enrolment = Enrolment::new(made, client.url());
        match self.format.format() {
            Format::Table => print(&enrolment.text(now())),
            Format::Json => output::print_json(&enrolment),
            Format::Jsonl | Format::Csv | Format::Names => self.format.print(&[EnrolmentRow(enrolment)], "", 0),
        }
    }

    fn request(&self) -> anyhow::Result<CreateEnrolmentRequest> {
        let (city, carrier) = (self.city.clone().unwrap_or_default(), self.carrier.clone().unwrap_or_default());
        for (flag, text) in [("--city", &city), ("--carrier", &carrier)] {
            naming::one_line(text).map_err(|problem| usage(format!("{flag}: {problem}")))?;
        }
        if self.replace && self.name.is_none() {
            return Err(usage("--replace needs --name, the agent to move to another machine"));
        }
        let country = self.country.clone().unwrap_or_default().to_ascii_uppercase();
        if !(country.is_empty() || country.len() == 2 && country.bytes().all(|byte| byte.is_ascii_uppercase())) {
            return Err(usage(format!("--country must be two letters, not '{country}'")));
        }
        Position::from_parts(self.latitude, self.longitude).map_err(|problem| match problem {
            PositionError::Latitude => usage(format!("--latitude: {problem}")),
            PositionError::Longitude => usage(format!("--longitude: {problem}")),
            PositionError::Half => usage(format!("--latitude, --longitude: {problem}")),
        })?;
        let tags = constraints::tags(&self.tag).map_err(|error| usage(format!("--tag: {}", error.problem)))?;
        Ok(CreateEnrolmentRequest {
            name: self.name.clone().unwrap_or_default(),
            city,
            carrier,
            country,
            valid_for: self.valid_for()?,
            latitude: self.latitude,
            longitude: self.longitude,
            tags,
            replaces: self.replace,
        })
    }

    fn valid_for(&self) -> anyhow::Result<Option<prost_types::Duration>> {
        self.ttl.map(prost_types::Duration::try_from).transpose().context("--ttl")
    }

    /// Enrols the agents of a list. No token is made before this program and the scheduler have
    /// checked all lines.
    async fn enrol_list(&self, file: &Path, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let path = file.to_owned();
        // Reading standard input may block forever, so it is done on its own thread.
        let bytes = tokio::task::spawn_blocking(move || read_bytes(&path)).await.context("read the list")??;
        let list = enrol_csv::read(&bytes).map_err(|error| usage(format!("{}: {error}", shown(file))))?;
        let valid_for = self.valid_for()?;
        let request = |agent| CreateEnrolmentRequest { valid_for, replaces: self.replace, ..agent };
        let (lines, agents): (Vec<u64>, Vec<CreateEnrolmentRequest>) =
            list.agents.into_iter().map(|(line, agent)| (line, request(agent))).unzip();
        let mut rejected = list.rejected;
        if agents.is_empty() && rejected.is_empty() {
            return Err(usage(format!("{}: the list contains no agents; no token was made", shown(file))));
        }
        let client = Client::connect(connection).await?;
        let dry_run = !rejected.is_empty();
        let asked = CreateEnrolmentsRequest { enrolments: agents, dry_run };
        let answer = client.answer(client.fleet().create_enrolments(asked).await)?;
        rejected.extend(answer.problems.into_iter().map(|problem| {
            let place = usize::try_from(problem.index).unwrap_or(usize::MAX);
            Rejected { line: lines.get(place).copied().unwrap_or_default(), reason: problem.problem }
        }));
        if !rejected.is_empty() {
            return Err(complain(file, rejected));
        }
        if let Some(first) = answer.enrolments.first() {
            warn_without_contact(first);
        }
        let made: Vec<Enrolment> =
            answer.enrolments.into_iter().map(|made| Enrolment::new(made, client.url())).collect();
        match self.format.format() {
            Format::Table => print(&commands(&made, now())),
            Format::Json => output::print_json(&made),
            Format::Jsonl | Format::Csv | Format::Names => {
                self.format.print(&made.into_iter().map(EnrolmentRow).collect::<Vec<_>>(), "", 0)
            }
        }
    }
}

/// Prints the problems of the first [`MOST_SAID`] invalid lines, in order, and returns the error
/// that ends the command.
fn complain(file: &Path, mut rejected: Vec<Rejected>) -> anyhow::Error {
    rejected.sort_by_key(|one| one.line);
    for Rejected { line, reason } in rejected.iter().take(MOST_SAID) {
        eprintln!("{}:{line}: {reason}", shown(file));
    }
    if rejected.len() > MOST_SAID {
        eprintln!("{}: and {} more such lines", shown(file), rejected.len() - MOST_SAID);
    }
    let (count, s) = (rejected.len(), if rejected.len() == 1 { "" } else { "s" });
    usage(format!("{}: {count} line{s} cannot be enrolled; no token was made: correct the list", shown(file)))
}

fn warn_without_contact(made: &CreateEnrolmentResponse) {
    if made.contact_url.is_empty() {
        eprintln!("warning: {NO_CONTACT}");
    }
}

/// An enrolment with its token and the command that uses the token, as printed in JSON.
#[derive(Debug, Clone, Default, Serialize)]
pub(in crate::cli) struct Enrolment {
    name: String,
    enrolment_id: String,
    token: String,
    #[serde(serialize_with = "json::time")]
    expires_at: Option<Timestamp>,
    scheduler_url: String,
    other_scheduler_urls: Vec<String>,
    ca_fingerprint: Option<String>,
    #[serde(serialize_with = "json::some")]
    contact_url: String,
    replaces: bool,
    in_use: bool,
    command: String,
}

impl Enrolment {
    pub(in crate::cli) fn new(made: CreateEnrolmentResponse, reached_at: &str) -> Self {
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
            enrolment_id: made.enrolment_id,
            token: made.token,
            expires_at: made.expires_at,
            scheduler_url,
            other_scheduler_urls: made.other_scheduler_urls,
            ca_fingerprint,
            contact_url: made.contact_url,
            replaces: made.replaces,
            in_use: made.in_use,
            command,
        }
    }

    fn text(&self, now: DateTime<Utc>) -> String {
        let Self { name, command, .. } = self;
        let moved = match self.replaces && self.in_use {
            true => format!(
                "# {name} is in use. Using the token moves {name} to the new machine: the credential of the former \
                 one becomes void,\n# its session ends, and other agents get its crawls. Until then nothing changes.\n"
            ),
            false => String::new(),
        };
        format!(
            "{command}\n# run this once on the machine of {name}{}; then: landfall-agent run\n{moved}",
            self.until(now)
        )
    }

    fn until(&self, now: DateTime<Utc>) -> String {
        json::moment(self.expires_at)
            .map(|at| format!(" (the token expires {})", relative(at, now)))
            .unwrap_or_default()
    }
}

/// The table of names and commands. Commands are never truncated, because people copy them.
fn commands(rows: &[Enrolment], now: DateTime<Utc>) -> String {
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or_default().max("name".len());
    let line = |text: String, row: &Enrolment| format!("{text}{:<width$}  {}\n", row.name, row.command);
    let table = rows.iter().fold(format!("{:<width$}  command\n", "name"), line);
    let until = rows.first().map(|row| row.until(now)).unwrap_or_default();
    let moved: Vec<&str> = rows.iter().filter(|row| row.replaces && row.in_use).map(|row| row.name.as_str()).collect();
    let moved = match moved.as_slice() {
        [] => String::new(),
        names => format!("# in use, and moved to another machine when the token is used: {}\n", names.join(", ")),
    };
    format!("{table}# run each once on the machine of its agent{until}; then: landfall-agent run\n{moved}")
}

/// An enrolment as a row of CSV.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(in crate::cli) struct EnrolmentRow(#[serde(with = "EnrolmentFields")] pub(in crate::cli) Enrolment);

#[derive(Serialize)]
#[serde(remote = "Enrolment")]
struct EnrolmentFields {
    name: String,
    enrolment_id: String,
    token: String,
    #[serde(serialize_with = "json::time")]
    expires_at: Option<Timestamp>,
    command: String,
}

impl Row for EnrolmentRow {
    const COLUMNS: &'static [Column<Self>] =
        &[("name", |row, _| row.0.name.clone()), ("command", |row, _| row.0.command.clone())];
    // `--quiet` prints the tokens instead of the names, because a token cannot be printed again
    // later.
    const NAMES: &'static str = "the tokens";

    fn name(&self, _: &View) -> String {
        self.0.token.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(made: CreateEnrolmentResponse) -> Enrolment {
        Enrolment::new(CreateEnrolmentResponse { token: "abc".to_owned(), ..made }, "http://127.0.0.1:1")
    }

    #[test]
    fn enrolling_prints_one_command_and_what_comes_after() {
        let made = CreateEnrolmentResponse {
            name: "harbin-cernet".to_owned(),
            scheduler_url: "https://s.example.org:7171".to_owned(),
            ca_fingerprint: "00ff".to_owned(),
            ..CreateEnrolmentResponse::default()
        };
        let text = row(made.clone()).text(DateTime::UNIX_EPOCH);
        let mut lines = text.lines();
        assert_eq!(
            lines.next(),
            Some("landfall-agent enrol --scheduler https://s.example.org:7171 --token abc --ca-fingerprint 00ff")
        );
        assert!(lines.next().is_some_and(|line| line.starts_with('#') && line.contains("landfall-agent run")));
        assert_eq!(lines.next(), None);
        let replaces = row(CreateEnrolmentResponse { replaces: true, in_use: true, ..made }).text(DateTime::UNIX_EPOCH);
        assert!(replaces.contains("# harbin-cernet is in use. Using the token moves"), "{replaces}");
        let made = CreateEnrolmentResponse {
            other_scheduler_urls: vec!["http://127.0.0.1:2".to_owned()],
            ..CreateEnrolmentResponse::default()
        };
        let command = row(made).command;
        assert_eq!(command, "landfall-agent enrol --scheduler http://127.0.0.1:1,http://127.0.0.1:2 --token abc");
    }

    #[test]
    fn several_commands_stand_under_each_other_whole() {
        let rows =
            ["a", "long-name"].map(|name| row(CreateEnrolmentResponse { name: name.into(), ..Default::default() }));
        let text = commands(&rows, DateTime::UNIX_EPOCH);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "name       command");
        assert_eq!(lines[1], format!("a          {}", rows[0].command));
        assert!(lines[3].starts_with("# run each once") && lines.len() == 4);
        let csv = output::csv::csv_text(&rows.map(EnrolmentRow), true).unwrap();
        assert!(csv.starts_with("name,enrolment_id,token,expires_at,command\n"), "{csv}");
        assert_eq!(csv.lines().count(), 3);
    }

    #[test]
    fn a_token_lives_ten_minutes_to_thirty_days() {
        assert_eq!(ttl("10m"), Ok(SHORTEST));
        assert_eq!(ttl("30d"), Ok(LONGEST));
        assert!(ttl("9m").is_err() && ttl("31d").is_err() && ttl("soon").is_err());
    }
}
