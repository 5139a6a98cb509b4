//! `landfall sites cancel|retry` and `landfall batches cancel|remove|wait`: changes batches, and
//! waits until they end.

use std::time::Duration;

use clap::Args;
use humantime::{format_duration, parse_duration};
use landfall_proto::v1::{
    CancelTasksRequest, CancelTasksResponse, RemoveBatchRequest, RetryTasksRequest, RetryTasksResponse,
};

use super::watch;
use crate::app::exit::{self, Code, print};
use crate::cli::ConnectionArgs;
use crate::cli::client::Client;
use crate::cli::output::counted;

/// Number of removed tasks between two lines of progress.
const TOLD_EVERY: u64 = 20_000;

#[derive(Debug, Args)]
pub(in crate::cli) struct CancelArgs {
    /// The sites, each a host or scheme://host:port
    #[arg(value_name = "HOST", required = true)]
    sites: Vec<String>,
    /// The batch
    #[arg(long, value_name = "NAME")]
    batch: String,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct RetryArgs {
    /// The sites, each a host or scheme://host:port
    #[arg(value_name = "HOST", required_unless_present = "failed")]
    sites: Vec<String>,
    /// Every site of the batch that failed
    #[arg(long, conflicts_with = "sites")]
    failed: bool,
    /// The batch
    #[arg(long, value_name = "NAME")]
    batch: String,
}

impl CancelArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        cancel(CancelTasksRequest { batch: self.batch, sites: self.sites, all: false }, connection).await
    }
}

pub(in crate::cli) async fn cancel(request: CancelTasksRequest, connection: &ConnectionArgs) -> anyhow::Result<()> {
    let client = Client::connect(connection).await?;
    let batch = request.batch.clone();
    let cancelled = client.answer(client.sites().cancel_tasks(request).await)?;
    print(&format!("batch {batch}: {}\n", cancelled_sentence(&cancelled)))
}

fn cancelled_sentence(CancelTasksResponse { tasks, leases, ended, recrawls }: &CancelTasksResponse) -> String {
    let mut said = match tasks {
        0 if *recrawls > 0 => "no site under way".to_owned(),
        0 => "nothing changed".to_owned(),
        tasks => format!("{} cancelled", counted(*tasks, "site")),
    };
    if *leases > 0 {
        said = format!("{said}, {} under way stopped", counted(*leases, "crawl"));
    }
    if *ended > 0 {
        said = format!("{said}; {} had already ended", counted(*ended, "site"));
    }
    match recrawls {
        0 => said,
        1 => format!("{said}, and 1 is not crawled again"),
        recrawls => format!("{said}, and {recrawls} are not crawled again"),
    }
}

impl RetryArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let client = Client::connect(connection).await?;
        let Self { sites, failed, batch } = self;
        let retried = client
            .answer(client.sites().retry_tasks(RetryTasksRequest { batch: batch.clone(), sites, failed }).await)?;
        print(&format!("batch {batch}: {}\n", retried_sentence(&retried)))
    }
}

fn retried_sentence(RetryTasksResponse { tasks, open }: &RetryTasksResponse) -> String {
    let said = match tasks {
        0 => "nothing changed".to_owned(),
        1 => "1 site is crawled again".to_owned(),
        tasks => format!("{tasks} sites are crawled again"),
    };
    match open {
        0 => said,
        1 => format!("{said}; 1 site is already under way"),
        open => format!("{said}; {open} sites are already under way"),
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct RemoveArgs {
    /// The batch
    #[arg(value_name = "NAME")]
    batch: String,
    /// Cancel sites that have not ended; without this flag a batch with such sites is not removed
    #[arg(long)]
    cancel: bool,
}

impl RemoveArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { batch, cancel } = self;
        let client = Client::connect(connection).await?;
        let mut stream =
            client.answer(client.sites().remove_batch(RemoveBatchRequest { batch: batch.clone(), cancel }).await)?;
        let mut told = 0;
        loop {
            let broke = |why| anyhow::anyhow!("{why}; run the same command again to continue");
            let progress = match stream.message().await {
                Ok(Some(progress)) => progress,
                Ok(None) => return Err(broke("the scheduler ended the stream".to_owned())),
                Err(status) => return Err(broke(client.refusal(&status).to_string())),
            };
            if progress.done {
                let tasks = counted(progress.removed, "task");
                return print(&format!("batch {batch} and its {tasks} are removed; its sites stay known\n"));
            }
            if progress.removed >= told + TOLD_EVERY {
                told = progress.removed;
                eprintln!("{told}/{} tasks removed", progress.tasks);
            }
        }
    }
}

#[derive(Debug, Args)]
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
            Some((batch, None)) => format!("the scheduler has not reported on batch {batch}"),
            None => "no scheduler answered".to_owned(),
        };
        Err(exit::ended(Code::TimedOut, format!("{left} after {}", format_duration(timeout))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_said_in_a_sentence() {
        let said = |tasks, leases, ended, recrawls| {
            cancelled_sentence(&CancelTasksResponse { tasks, leases, ended, recrawls })
        };
        assert_eq!(said(3, 1, 0, 0), "3 sites cancelled, 1 crawl under way stopped");
        assert_eq!(said(0, 0, 2, 0), "nothing changed; 2 sites had already ended");
        assert_eq!(said(1, 0, 2, 2), "1 site cancelled; 2 sites had already ended, and 2 are not crawled again");
        assert_eq!(said(0, 0, 1, 1), "no site under way; 1 site had already ended, and 1 is not crawled again");
        let said = |tasks, open| retried_sentence(&RetryTasksResponse { tasks, open });
        assert_eq!(said(1, 0), "1 site is crawled again");
        assert_eq!(said(0, 1), "nothing changed; 1 site is already under way");
    }
}
