//! `landfall sites cancel`: cancels sites of a batch, and says how many were under way or had ended.

use clap::Args;
use landfall_proto::v1::{CancelTasksRequest, CancelTasksResponse};

use crate::app::exit::print;
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::output::counted;

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  landfall sites cancel www.example.cn example.org --batch autumn")]
pub(in crate::cli) struct CancelArgs {
    /// The sites, each a host or scheme://host:port
    #[arg(value_name = "HOST", required = true)]
    sites: Vec<String>,
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
    }
}
