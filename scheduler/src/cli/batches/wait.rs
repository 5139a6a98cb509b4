//! `landfall batches wait`: waits until every site of these batches has ended, or until a time
//! limit has passed.

use std::time::Duration;

use clap::Args;
use humantime::{format_duration, parse_duration};

use super::follow;
use super::progress_text::{ended, total};
use crate::app::exit::{self, Code};
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  landfall batches wait autumn winter --timeout 30m && landfall report agents --batch autumn"
)]
pub(in crate::cli) struct WaitArgs {
    /// The batches
    #[arg(value_name = "NAME", required = true)]
    batches: Vec<String>,
    /// Time limit, 1s or more, such as 30m or 2h [default: none]
    #[arg(long, value_name = "TIME", value_parser = timeout)]
    timeout: Option<Duration>,
}

fn timeout(text: &str) -> Result<Duration, String> {
    let parsed = parse_duration(text).map_err(|error| error.to_string())?;
    if parsed < Duration::from_secs(1) { Err("must be 1s or more".to_owned()) } else { Ok(parsed) }
}

impl WaitArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        exit::unless_interrupted(self.wait(connection), || "the batches continue".to_owned()).await
    }

    async fn wait(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let mut waiting = None;
        let waited = async {
            let client = Client::connect(connection).await?;
            let mut over = Vec::new();
            for batch in &self.batches {
                let (_, last) = waiting.insert((batch.as_str(), None));
                follow::to_end(&client, batch, last).await?;
                over.push((batch.clone(), last.take().unwrap_or_default()));
            }
            follow::tell(&over)
        };
        let Some(timeout) = self.timeout else { return waited.await };
        if let Ok(waited) = tokio::time::timeout(timeout, waited).await {
            return waited;
        }
        let left = match &waiting {
            Some((batch, Some(progress))) => {
                let open = total(progress).saturating_sub(ended(progress));
                format!("{open} of {} sites of batch {batch} have not ended", total(progress))
            }
            Some((batch, None)) => format!("the scheduler has not reported on batch {batch}"),
            None => "no scheduler answered".to_owned(),
        };
        Err(exit::ended(Code::TimedOut, format!("{left} after {}", format_duration(timeout))))
    }
}
