//! `landfall agents enrol`: makes one-time tokens and prints the commands that use them.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use humantime::parse_duration;
use landfall_proto::v1::CreateEnrolmentRequest;

use super::enrol_csv;
use super::enrolment::{Enrolment, EnrolmentRow, warn_without_contact};
use crate::app::exit::{print, usage};
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::output::{self, Format, FormatArgs};
use crate::machine::clock::now;
use crate::model::geo::{Position, PositionError};
use crate::model::{constraints, naming};

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
            Some(file) => enrol_csv::enrol(file, self.valid_for()?, self.replace, &self.format, connection).await,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_lives_ten_minutes_to_thirty_days() {
        assert_eq!(ttl("10m"), Ok(SHORTEST));
        assert_eq!(ttl("30d"), Ok(LONGEST));
        assert!(ttl("9m").is_err() && ttl("31d").is_err() && ttl("soon").is_err());
    }
}
