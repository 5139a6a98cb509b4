//! `landfall agents enrol`: makes one-time tokens for one agent, or for every agent in a CSV list
//! whose first line names the columns.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use chrono::{DateTime, Utc};
use clap::Args;
use csv::{ReaderBuilder, StringRecord, Trim};
use humantime::parse_duration;
use landfall_proto::v1::{CreateEnrolmentRequest, CreateEnrolmentsRequest};

use super::tokens::{Enrolment, EnrolmentRow, warn_without_contact};
use crate::app::exit::{print, usage};
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::files::{read_bytes, shown};
use crate::cli::output::{self, Format, FormatArgs};
use crate::machine::clock::now;
use crate::model::geo::{Position, PositionError};
use crate::model::{constraints, naming};
use crate::simulate::line_of;

/// Minimum and maximum validity of a token.
const SHORTEST: Duration = Duration::from_secs(600);
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall agents enrol --city Harbin --carrier CERNET --country CN --latitude 45.8 --longitude 126.5
  landfall agents enrol --city 北京 --carrier 电信                       named beijing-dianxin
  landfall agents enrol --city Harbin --carrier CERNET --name harbin-cernet --replace    moves it to another machine
  landfall agents enrol --from agents.csv --format json                a token for each line; none if any line is invalid

The first line of a list names its columns: city and carrier, and optionally country, latitude, longitude, name and tags.")]
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
            Some(file) => enrol(file, self.valid_for()?, self.replace, &self.format, connection).await,
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
}

/// Maximum number of invalid lines that are reported one by one.
const MOST_SAID: usize = 20;
/// The known columns, as error messages list them.
const KNOWN: &str = "city, carrier, country, latitude, longitude, name and tags";

/// Enrols the agents of a list. No token is made before this program and the scheduler have checked
/// all lines.
pub(super) async fn enrol(
    file: &Path,
    valid_for: Option<prost_types::Duration>,
    replaces: bool,
    format: &FormatArgs<EnrolmentRow>,
    connection: &ConnectionArgs,
) -> anyhow::Result<()> {
    let path = file.to_owned();
    // Reading standard input may block forever, so it is done on its own thread.
    let bytes = tokio::task::spawn_blocking(move || read_bytes(&path)).await.context("read the list")??;
    let list = read(&bytes).map_err(|error| usage(format!("{}: {error}", shown(file))))?;
    let request = |agent| CreateEnrolmentRequest { valid_for, replaces, ..agent };
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
    let made: Vec<Enrolment> = answer.enrolments.into_iter().map(|made| Enrolment::new(made, client.url())).collect();
    match format.format() {
        Format::Table => print(&commands(&made, now())),
        Format::Json => output::print_json(&made),
        Format::Jsonl | Format::Csv | Format::Names => {
            format.print(&made.into_iter().map(EnrolmentRow).collect::<Vec<_>>(), "", 0)
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

#[derive(Debug, Default)]
struct List {
    /// The agents, each with its line number.
    agents: Vec<(u64, CreateEnrolmentRequest)>,
    rejected: Vec<Rejected>,
}

/// An invalid line, with the reason.
#[derive(Debug, PartialEq, Eq)]
struct Rejected {
    /// Line number, counted from 1.
    line: u64,
    reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Column {
    City,
    Carrier,
    Country,
    Latitude,
    Longitude,
    Name,
    Tags,
}

impl Column {
    fn parse(name: &str) -> Result<Self, String> {
        match name.to_lowercase().as_str() {
            "city" => Ok(Self::City),
            "carrier" => Ok(Self::Carrier),
            "country" => Ok(Self::Country),
            "latitude" => Ok(Self::Latitude),
            "longitude" => Ok(Self::Longitude),
            "name" => Ok(Self::Name),
            "tags" => Ok(Self::Tags),
            _ => Err(format!("line 1: unknown column '{}': the columns are {KNOWN}", name.escape_debug())),
        }
    }
}

/// Parses a list. Cities and names are checked later, by the scheduler.
///
/// # Errors
/// If the list is not UTF-8, or its first line does not name the columns.
fn read(bytes: &[u8]) -> Result<List, String> {
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("line {line}: the file is not UTF-8: save it as UTF-8")
    })?;
    let mut reader = ReaderBuilder::new().flexible(true).trim(Trim::All).from_reader(text.as_bytes());
    let columns = columns(reader.headers().map_err(|error| error.to_string())?)?;
    let mut list = List::default();
    let mut named: HashMap<String, u64> = HashMap::new();
    for record in reader.records() {
        let record = record.map_err(|error| error.to_string())?;
        let line = record.position().map_or(0, |position| line_of(position, bytes));
        match agent(&columns, &record) {
            Err(reason) => list.rejected.push(Rejected { line, reason }),
            Ok(agent) => match named.get(&agent.name) {
                Some(first) if !agent.name.is_empty() => {
                    let reason = format!("the name '{}' is already used in line {first}", agent.name.escape_debug());
                    list.rejected.push(Rejected { line, reason });
                }
                _ => {
                    named.insert(agent.name.clone(), line);
                    list.agents.push((line, agent));
                }
            },
        }
    }
    Ok(list)
}

fn columns(header: &StringRecord) -> Result<Vec<Column>, String> {
    let columns = header.iter().map(Column::parse).collect::<Result<Vec<_>, _>>()?;
    for (needed, name) in [(Column::City, "city"), (Column::Carrier, "carrier")] {
        if !columns.contains(&needed) {
            return Err(format!("line 1: the column {name} is missing: the first line must name the columns, {KNOWN}"));
        }
    }
    let twice = columns.iter().enumerate().find(|(at, column)| columns[..*at].contains(column));
    match twice.and_then(|(at, _)| header.get(at)) {
        Some(name) => Err(format!("line 1: the column {name} appears twice")),
        None => Ok(columns),
    }
}

fn agent(columns: &[Column], record: &StringRecord) -> Result<CreateEnrolmentRequest, String> {
    if record.len() != columns.len() {
        return Err(format!("{} fields, but the first line names {}", record.len(), columns.len()));
    }
    let mut agent = CreateEnrolmentRequest::default();
    for (column, text) in columns.iter().zip(record) {
        match column {
            Column::City => agent.city = text.to_owned(),
            Column::Carrier => agent.carrier = text.to_owned(),
            Column::Country => agent.country = text.to_owned(),
            Column::Latitude => agent.latitude = degrees("latitude", text)?,
            Column::Longitude => agent.longitude = degrees("longitude", text)?,
            Column::Name => agent.name = text.to_owned(),
            Column::Tags => agent.tags = text.split_whitespace().map(str::to_owned).collect(),
        }
    }
    Ok(agent)
}

fn degrees(column: &str, text: &str) -> Result<Option<f64>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| format!("{column}: '{}' is not a number of degrees", text.escape_debug()))
}

#[cfg(test)]
mod tests {
    use landfall_proto::v1::CreateEnrolmentResponse;

    use super::*;

    #[test]
    fn a_token_lives_ten_minutes_to_thirty_days() {
        assert_eq!(ttl("10m"), Ok(SHORTEST));
        assert_eq!(ttl("30d"), Ok(LONGEST));
        assert!(ttl("9m").is_err() && ttl("31d").is_err() && ttl("soon").is_err());
    }

    fn enrolment(made: CreateEnrolmentResponse) -> Enrolment {
        Enrolment::new(CreateEnrolmentResponse { token: "abc".to_owned(), ..made }, "http://127.0.0.1:1")
    }

    #[test]
    fn a_list_is_read_by_its_first_line() {
        let text = "\u{feff}City,Carrier,latitude,longitude,name,tags\r\n\r\n 北京 ,电信,39.9,116.4,,fast  spare\r\n\"Paris, Nord\",Free,,,paris,\r\n";
        let list = read(text.as_bytes()).unwrap();
        assert_eq!(list.rejected, []);
        let [(3, beijing), (4, paris)] = list.agents.as_slice() else { panic!("{list:?}") };
        assert_eq!((beijing.city.as_str(), beijing.carrier.as_str(), beijing.latitude), ("北京", "电信", Some(39.9)));
        assert_eq!(beijing.tags, ["fast", "spare"]);
        assert_eq!((paris.city.as_str(), paris.name.as_str(), paris.longitude), ("Paris, Nord", "paris", None));
    }

    #[test]
    fn every_bad_line_is_told_with_its_number() {
        let list = read(b"name,city,carrier,latitude\na,A,x,north\nb,B\nb,B,x,1\nb,C,y,2\n").unwrap();
        let told: Vec<(u64, &str)> = list.rejected.iter().map(|one| (one.line, one.reason.as_str())).collect();
        assert_eq!(
            told,
            [
                (2, "latitude: 'north' is not a number of degrees"),
                (3, "2 fields, but the first line names 4"),
                (5, "the name 'b' is already used in line 4"),
            ]
        );
        for (text, problem) in [
            (&b"town,isp\n"[..], "line 1: unknown column 'town'"),
            (b"city\nHarbin\n", "line 1: the column carrier is missing"),
            (b"city,carrier,carrier\n", "line 1: the column carrier appears twice"),
            (b"city,carrier\nA,B\n\xff\xfe,C\n", "line 3: the file is not UTF-8"),
            (b"", "line 1: "),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.starts_with(problem), "{error}");
        }
    }

    #[test]
    fn several_commands_stand_under_each_other_whole() {
        let rows = ["a", "long-name"]
            .map(|name| enrolment(CreateEnrolmentResponse { name: name.into(), ..Default::default() }));
        let text = commands(&rows, DateTime::UNIX_EPOCH);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "name       command");
        assert_eq!(lines[1], format!("a          {}", rows[0].command));
        assert!(lines[3].starts_with("# run each once") && lines.len() == 4);
        let csv = output::formats::csv_text(&rows.map(EnrolmentRow), true).unwrap();
        assert!(csv.starts_with("name,enrolment_id,token,expires_at,command\n"), "{csv}");
        assert_eq!(csv.lines().count(), 3);
    }
}
