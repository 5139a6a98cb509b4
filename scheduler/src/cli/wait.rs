//! `landfall batches wait`: for scripts, that go on when batches have ended.

use std::time::Duration;

use clap::Args;
use humantime_serde::re::humantime::{format_duration, parse_duration};

use super::ConnectionArgs;
use super::client::Client;
use super::watch;
use crate::exit::{self, Code};

#[derive(Debug, Args)]
pub(super) struct WaitArgs {
    /// The batches
    #[arg(value_name = "NAME", required = true)]
    batches: Vec<String>,
    /// How long to wait in all, 1s or more, such as 30m or 2h [default: for ever]
    #[arg(long, value_name = "TIME", value_parser = timeout)]
    timeout: Option<Duration>,
}

fn timeout(text: &str) -> Result<Duration, String> {
    let parsed = parse_duration(text).map_err(|error| error.to_string())?;
    if parsed < Duration::from_secs(1) { Err("must be 1s or more".to_owned()) } else { Ok(parsed) }
}

impl WaitArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let mut waiting = None;
        let waited = async {
            let client = Client::connect(connection).await?;
            let mut ended = Vec::new();
            for batch in &self.batches {
                let (_, last) = waiting.insert((batch.as_str(), None));
                watch::to_end(&client, batch, last).await?;
                ended.push((batch.clone(), last.take().unwrap_or_default()));
            }
            watch::tell(&ended)
        };
        let Some(timeout) = self.timeout else { return waited.await };
        if let Ok(waited) = tokio::time::timeout(timeout, waited).await {
            return waited;
        }
        let left = match &waiting {
            Some((batch, Some(progress))) => {
                let open = watch::total(progress).saturating_sub(watch::ended(progress));
                format!("{open} of {} sites of batch {batch} have not ended", watch::total(progress))
            }
            Some((batch, None)) => format!("the scheduler has said nothing of batch {batch}"),
            None => "no scheduler answered".to_owned(),
        };
        Err(exit::ended(Code::TimedOut, format!("{left} after {}", format_duration(timeout))))
    }
}
