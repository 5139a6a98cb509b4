//! `landfall backup` and `landfall restore`: their flags.

use std::path::PathBuf;

use clap::Args;

use super::ConnectionArgs;
use crate::app::backup::{self, Backup, Restore};
use crate::app::exit::print;
use crate::config::Config;

/// Which database: what the scheduler's own flags say.
#[derive(Debug, Args)]
struct DatabaseArgs {
    /// The scheduler's configuration, TOML: its database_url counts
    #[arg(long, env = "LANDFALL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// The Postgres database [default: database_url of the configuration; without one the data directory's private Postgres]
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
    /// Where it is written, for its owner alone to read
    file: PathBuf,
    #[command(flatten)]
    database: DatabaseArgs,
    /// Leave out the operator's token and the authority
    #[arg(long)]
    without_secrets: bool,
    /// Replace FILE where it is there
    #[arg(long)]
    force: bool,
}

impl BackupArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        connection.refuse("this one reads a database")?;
        let wanted = Backup {
            data_dir: connection.data_dir.clone(),
            database_url: self.database.url()?,
            file: self.file,
            secrets: !self.without_secrets,
            force: self.force,
        };
        print(&backup::backup(wanted).await?)
    }
}

#[derive(Debug, Args)]
pub(super) struct RestoreArgs {
    /// What `landfall backup` wrote
    file: PathBuf,
    #[command(flatten)]
    database: DatabaseArgs,
    /// Restore the database alone
    #[arg(long)]
    without_secrets: bool,
}

impl RestoreArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        connection.refuse("this one writes a database")?;
        let wanted = Restore {
            data_dir: connection.data_dir.clone(),
            database_url: self.database.url()?,
            file: self.file,
            secrets: !self.without_secrets,
        };
        print(&backup::restore(wanted).await?)
    }
}
