//! The flags of `landfall backup` and `landfall restore`.

use std::path::PathBuf;

use clap::Args;

use super::ConnectionArgs;
use super::output::progress::Bar;
use crate::app::backup::{self, Backup, Restore};
use crate::app::exit::print;
use crate::config::Config;

/// The database, named as by the scheduler's own flags.
#[derive(Debug, Args)]
struct DatabaseArgs {
    /// The scheduler's configuration file (TOML), from which database_url is taken
    #[arg(long, env = "LANDFALL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// The Postgres database [default: database_url in the configuration, else the data directory's
    /// private Postgres]
    #[arg(long, env = "LANDFALL_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database_url: Option<String>,
}

impl DatabaseArgs {
    fn url(self) -> anyhow::Result<Option<String>> {
        match (self.database_url, self.config) {
            (None, Some(config)) => Ok(Config::load(&config)?.database_url),
            (url, _) => Ok(url),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct BackupArgs {
    /// The file to write, readable only by its owner
    file: PathBuf,
    #[command(flatten)]
    database: DatabaseArgs,
    /// Leave out the operator's token and the certificate authority
    #[arg(long)]
    without_secrets: bool,
    /// Replace FILE if it exists
    #[arg(long)]
    force: bool,
}

impl BackupArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        connection.refuse("this command reads the database itself")?;
        let bar = Bar::written_bytes();
        let wanted = Backup {
            data_dir: connection.data_dir.clone(),
            database_url: self.database.url()?,
            file: self.file,
            secrets: !self.without_secrets,
            force: self.force,
            progress: bar.clone(),
        };
        let done = backup::backup(wanted).await;
        drop(bar);
        print(&done?)
    }
}

#[derive(Debug, Args)]
pub(super) struct RestoreArgs {
    /// A file that `landfall backup` wrote
    file: PathBuf,
    #[command(flatten)]
    database: DatabaseArgs,
    /// Restore only the database
    #[arg(long)]
    without_secrets: bool,
}

impl RestoreArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        connection.refuse("this command writes the database itself")?;
        let bar = Bar::read_bytes();
        let wanted = Restore {
            data_dir: connection.data_dir.clone(),
            database_url: self.database.url()?,
            file: self.file,
            secrets: !self.without_secrets,
            progress: bar.clone(),
        };
        let done = backup::restore(wanted).await;
        drop(bar);
        print(&done?)
    }
}
