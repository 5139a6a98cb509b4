//! `landfall report html`: writes a page with plots.

use std::io::Write as _;
use std::path::PathBuf;

use clap::Args;
use landfall_proto::v1::{
    AccuracyRequest, AgentsReportRequest, CrawlFilter, FailuresRequest, ListBatchesRequest, ReportGroup,
    ThroughputRequest,
};

use super::page::{Answers, SLICES, page};
use crate::app::exit::print;
use crate::cli::ConnectionArgs;
use crate::cli::client::Client;
use crate::cli::files;
use crate::cli::filters::{TimeArgs, timestamp};
use crate::cli::view;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall report html --batch autumn --output autumn.html
  landfall report html --since 7d --output week.html

The page is one file without scripts, which any browser shows without a connection. --since and --until select the failures
and the crawls whose accuracy is shown.")]
pub(in crate::cli) struct HtmlArgs {
    /// Only this batch, with its progress and throughput
    #[arg(long, value_name = "NAME")]
    batch: Option<String>,
    #[command(flatten)]
    time: TimeArgs,
    /// The file to write
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
}

impl HtmlArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        // The file is checked first, so that an error is reported before the scheduler
        // computes answers.
        files::beside("--output", &self.output)?;
        let client = Client::connect(connection).await?;
        let text = page(&self.ask(&client).await?, view::now());
        files::write("--output", &self.output, |mut file| Ok(file.write_all(text.as_bytes())?))?;
        print(&format!("wrote {}\n", self.output.display()))
    }

    async fn ask(&self, client: &Client) -> anyhow::Result<Answers> {
        let batch = self.batch.clone().unwrap_or_default();
        let (since, until) = (self.time.since.map(timestamp), self.time.until.map(timestamp));
        let wanted = CrawlFilter { batch: batch.clone(), since, until, ..CrawlFilter::default() };
        let accuracy = async |by: &[ReportGroup]| {
            let by = by.iter().map(|group| (*group).into()).collect();
            let request = AccuracyRequest { crawls: Some(wanted.clone()), by, limit: 0 };
            anyhow::Ok(client.answer(client.reports().accuracy(request).await)?.rows)
        };
        let failures = async |by: ReportGroup| {
            let by = vec![by.into()];
            let request = FailuresRequest { sites: Some(wanted.clone()), by, ..FailuresRequest::default() };
            anyhow::Ok(client.answer(client.reports().failures(request).await)?.rows)
        };
        let asked = AgentsReportRequest { batch: batch.clone(), ..AgentsReportRequest::default() };
        let mut answers = Answers {
            agents: client.answer(client.reports().agents(asked).await)?.agents,
            places: accuracy(&[ReportGroup::City, ReportGroup::Carrier]).await?,
            days: accuracy(&[ReportGroup::Day]).await?,
            reasons: failures(ReportGroup::Reason).await?,
            sources: failures(ReportGroup::Agent).await?,
            ..Answers::default()
        };
        if batch.is_empty() {
            let asked = ListBatchesRequest { since, until, ..ListBatchesRequest::default() };
            answers.batches = client.answer(client.sites().list_batches(asked).await)?.batches;
        } else {
            let asked = ThroughputRequest { batch: batch.clone(), round: None, slices: Some(SLICES) };
            answers.batch = Some((batch.clone(), client.answer(client.reports().throughput(asked).await)?));
        }
        Ok(answers)
    }
}
