//! `landfall sites`: what may be asked, and `sites show`.

use std::fmt::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use landfall_proto::json;
use landfall_proto::v1::{
    Alarm, GlobePosition, ShowSiteRequest, ShowSiteResponse, SiteMeasurement, SiteOrder, SitePlacement, SiteSighting,
    SiteVerdict,
};
use prost_types::Timestamp;
use serde::Serialize;

use super::ConnectionArgs;
use super::alarms::{self, ReopenArgs};
use super::batch_changes::{CancelArgs, RetryArgs};
use super::client::Client;
use super::output::{self, Column, FormatArgs, Row, ShowFormat, ShowFormatArgs, View};
use super::policy::PolicyArgs;
use super::site_tasks::TaskRow;
use super::tasks::ListArgs;
use super::{sightings, submit, watch};
use crate::constraints::ConstraintsRequest;
use crate::exit::print;
use crate::model::Strategy;

#[derive(Debug, Subcommand)]
pub(super) enum SitesCommand {
    /// Submit a site list to a batch
    #[command(after_help = "\
A list has one site a line: a host, or a URL whose path is dropped; where it is may follow: HOST,LATITUDE,LONGITUDE. A first line
site,latitude,longitude says which column is which. Blank lines and # comments are skipped.

Examples:
  landfall sites submit list.txt --batch autumn --watch
  grep '\\.cn$' list.txt | landfall sites submit - --batch china --strategy gnp-top1
  landfall sites submit list.txt --batch news --policy policy.toml --include /news/ --exclude '/*.pdf$'
  landfall sites submit list.txt --batch inland --country CN --tag fast --bytes-per-day 2000000000")]
    Submit(Box<SubmitArgs>),
    /// List sites of a batch, in the order in which they became known; those of one list come by name
    #[command(after_help = "\
Examples:
  landfall sites list --batch autumn --state failed
  landfall sites list --batch autumn --reason name-not-found --reason timed-out -o csv
  landfall sites list --batch autumn --state leased --agent harbin-cernet")]
    List(ListArgs),
    /// Follow a batch until every site has ended
    Watch {
        /// The batch
        #[arg(long, value_name = "NAME")]
        batch: String,
    },
    /// Cancel sites of a batch that have not ended; a crawl under way is stopped
    #[command(after_help = "Example:\n  landfall sites cancel www.example.cn example.org --batch autumn")]
    Cancel(CancelArgs),
    /// Make sites of a batch go again that failed or were cancelled, as a new round
    #[command(after_help = "\
Examples:
  landfall sites retry www.example.cn --batch autumn
  landfall sites retry --failed --batch autumn")]
    Retry(RetryArgs),
    /// List sites that were broken off, because requests to them failed without end
    Alarms {
        /// Sites at most, the newest first; never more than 1000
        #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1000))]
        limit: u64,
        #[command(flatten)]
        format: FormatArgs<Alarm>,
    },
    /// Let sites be crawled again that were broken off
    #[command(after_help = "Examples:\n  landfall sites reopen www.example.cn\n  landfall sites reopen --all")]
    Reopen(ReopenArgs),
    /// Show all that is known of one site
    Show {
        /// A host, or scheme://host:port
        #[arg(value_name = "HOST")]
        site: String,
        #[command(flatten)]
        format: ShowFormatArgs<SiteMeasurement>,
    },
}

#[derive(Debug, Args)]
pub(super) struct SubmitArgs {
    /// The site list; - is standard input
    #[arg(value_name = "FILE")]
    pub(super) list: PathBuf,
    /// The batch, made when it is new
    #[arg(long, value_name = "NAME")]
    pub(super) batch: String,
    /// How agents are chosen; docs/choosing.md has every strategy [default: gnp-top3, or what the batch has]
    #[arg(long)]
    pub(super) strategy: Option<Strategy>,
    /// Follow the batch until every site has ended
    #[arg(long)]
    pub(super) watch: bool,
    /// Say what the submission would come to, and change nothing
    #[arg(long, conflicts_with = "watch")]
    pub(super) dry_run: bool,
    /// Submit the valid lines of a list that holds rubbish too
    #[arg(long)]
    pub(super) skip_invalid: bool,
    #[command(flatten)]
    pub(super) policy: PolicyArgs,
    #[command(flatten, next_help_heading = "Which agents may crawl it")]
    pub(super) constraints: ConstraintsRequest,
}

impl SitesCommand {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        match self {
            Self::Submit(args) => submit::submit(*args, connection).await,
            Self::Watch { batch } => watch::watch(&Client::connect(connection).await?, &batch).await,
            Self::Cancel(args) => args.run(connection).await,
            Self::Retry(args) => args.run(connection).await,
            Self::List(args) => args.run(connection).await,
            Self::Alarms { limit, format: FormatArgs { format, wide } } => {
                alarms::list(limit, format, &wide.view(), connection).await
            }
            Self::Reopen(args) => args.run(connection).await,
            Self::Show { site, format: ShowFormatArgs { format, wide } } => {
                let client = Client::connect(connection).await?;
                let site = Site::from(client.answer(client.sites().show_site(ShowSiteRequest { site }).await)?);
                match format {
                    ShowFormat::Table => print(&site.text(&wide.view())?),
                    ShowFormat::Json => output::print_json(&site),
                }
            }
        }
    }
}

/// A site, as printed.
#[derive(Debug, Serialize)]
pub(super) struct Site {
    site_id: i64,
    name: String,
    #[serde(serialize_with = "json::some")]
    origin: String,
    #[serde(serialize_with = "json::some")]
    alias_of: String,
    position: Option<GlobePosition>,
    placement: Option<SitePlacement>,
    verdict: Option<SiteVerdict>,
    measurements: Vec<SiteMeasurement>,
    sightings: Vec<SiteSighting>,
    order: Option<SiteOrder>,
    #[serde(serialize_with = "json::time")]
    broken_off_since: Option<Timestamp>,
    tasks: Vec<TaskRow>,
}

/// A position for people.
pub(super) fn globe_cell(position: Option<&GlobePosition>) -> String {
    let said = |GlobePosition { latitude, longitude, source }: &GlobePosition| match source.as_str() {
        "geoip" => format!("{latitude}, {longitude} (by its address)"),
        source => format!("{latitude}, {longitude} ({source})"),
    };
    position.map_or_else(|| "unknown".to_owned(), said)
}

impl From<ShowSiteResponse> for Site {
    fn from(site: ShowSiteResponse) -> Self {
        Self {
            site_id: site.site_id,
            name: site.name,
            origin: site.origin,
            alias_of: site.alias_of,
            position: site.position,
            placement: site.placement,
            verdict: site.verdict,
            measurements: site.measurements,
            sightings: site.sightings,
            order: site.order,
            broken_off_since: site.broken_off_since,
            tasks: site.tasks.into_iter().map(TaskRow::from).collect(),
        }
    }
}

impl Row for SiteMeasurement {
    const COLUMNS: &'static [Column<Self>] = &[
        ("prober", |row, _| row.prober.clone()),
        (">rtt ms", |row, _| output::millis_cell(row.rtt)),
        (">spread ms", |row, _| output::millis_cell(row.spread)),
        (">answered", |row, _| output::count_cell(row.count)),
        (">lost", |row, _| output::count_cell(row.lost)),
        ("measured", |row, view| view.when(row.measured_at)),
        ("address", |row, _| output::text_cell(&row.address)),
        ("~failure", |row, _| output::text_cell(&row.failure)),
        ("+>min ms", |row, _| output::millis_cell(row.min)),
        ("+>median ms", |row, _| output::millis_cell(row.median)),
        ("+confirms", |row, _| output::yes_cell(row.confirming)),
        ("+>requests", |row, _| output::count_cell(row.requests)),
        ("+shared from", |row, _| output::text_cell(&row.shared_from)),
    ];
}

impl Site {
    pub(super) fn text(&self, view: &View) -> anyhow::Result<String> {
        let mut text = String::new();
        writeln!(text, "{} (site {})", self.name, self.site_id)?;
        if !self.alias_of.is_empty() {
            writeln!(text, "  the same site as {}", self.alias_of)?;
        }
        writeln!(text, "  origin     {}", if self.origin.is_empty() { "not settled yet" } else { &self.origin })?;
        if self.broken_off_since.is_some() {
            let since = view.when(self.broken_off_since);
            writeln!(text, "  broken off {since}; nobody crawls it before `landfall sites reopen {}`", self.name)?;
        }
        writeln!(text, "  position   {}", globe_cell(self.position.as_ref()))?;
        match &self.placement {
            Some(SitePlacement { epoch, coordinate, fit_error }) => {
                let coordinate: Vec<String> = coordinate.iter().map(|ms| format!("{ms:.1}")).collect();
                let coordinate = coordinate.join(", ");
                writeln!(text, "  placement  [{coordinate}] ms, fit error {fit_error:.3}, map {epoch}")?;
            }
            None => writeln!(text, "  placement  none")?,
        }
        match &self.verdict {
            Some(SiteVerdict { suspect: true, confidence, evidence }) => {
                writeln!(text, "  places     several (confidence {confidence:.2}): {evidence}")?;
            }
            Some(_) => writeln!(text, "  places     one")?,
            None => writeln!(text, "  places     not judged yet")?,
        }
        if let Some(order) = &self.order {
            writeln!(text, "  waits for  {}", sightings::order(order))?;
        }
        if !self.measurements.is_empty() {
            write!(text, "\n{}", output::table(&self.measurements, view))?;
            writeln!(text, "{}", self.cost())?;
        }
        for sighting in &self.sightings {
            writeln!(text, "{}", sightings::sighting(sighting))?;
        }
        for task in &self.tasks {
            writeln!(text, "\n{}", task.sentence(view))?;
            if !task.candidates.is_empty() {
                text.push_str(&output::table(&task.candidates, view));
            }
        }
        Ok(view.fold(&text))
    }
}

impl Site {
    /// What its measurements cost. What is shared was spent on another site, and is told there.
    fn cost(&self) -> String {
        let probes = |row: &SiteMeasurement| match row.shared_from.is_empty() {
            true => u64::from(row.count) + u64::from(row.lost),
            false => 0,
        };
        let all: u64 = self.measurements.iter().map(probes).sum();
        let mut text = format!("{all} probes of this site");
        let confirming = self.measurements.iter().filter(|row| row.confirming);
        let agents = confirming.clone().count();
        if agents > 0 {
            let spent: u64 = confirming.map(probes).sum();
            text.push_str(&format!(", {spent} of them by {agents} confirming agents"));
        }
        let shared = self.measurements.iter().filter(|row| !row.shared_from.is_empty()).count();
        if shared > 0 {
            text.push_str(&format!("; {shared} of {} measurements are another site's", self.measurements.len()));
        }
        let requests: u64 = self.measurements.iter().map(|row| row.requests).sum();
        text.push_str(&format!("; {requests} requests so far, warm-ups and former measurements included"));
        text
    }
}
