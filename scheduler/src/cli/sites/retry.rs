//! `landfall sites retry`: crawls failed or cancelled sites of a batch again.

use clap::Args;
use landfall_proto::v1::{RetryTasksRequest, RetryTasksResponse};

use crate::app::exit::print;
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall sites retry www.example.cn --batch autumn
  landfall sites retry --failed --batch autumn")]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_crawled_again_is_said_in_a_sentence() {
        let said = |tasks, open| retried_sentence(&RetryTasksResponse { tasks, open });
        assert_eq!(said(1, 0), "1 site is crawled again");
        assert_eq!(said(0, 1), "nothing changed; 1 site is already under way");
    }
}
