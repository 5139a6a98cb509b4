//! Opens the database that is backed up: the operator's own, or the private Postgres of the data
//! directory, which is started if no scheduler runs it.

use std::path::Path;

use anyhow::bail;
use sqlx::postgres::PgConnectOptions;

use crate::app::data_dir::DataDir;
use crate::app::own_postgres;
use crate::app::postgres::PrivatePostgres;

/// The database of a scheduler, whether the scheduler is running or not.
pub(super) struct SourceDatabase {
    pub(super) options: PgConnectOptions,
    /// The private server, if this process had to start it because no scheduler is running.
    started: Option<(PrivatePostgres, DataDir)>,
}

impl SourceDatabase {
    pub(super) async fn of(data_dir: &Path, url: Option<&str>) -> anyhow::Result<Self> {
        if let Some(url) = url {
            let options = own_postgres::database_options(url)?;
            own_postgres::reach(&options).await?;
            return Ok(Self { options, started: None });
        }
        if !PrivatePostgres::cluster(data_dir).exists() {
            bail!(
                "{} contains no private Postgres: name a scheduler's data directory with --data-dir, or its database \
                 with --database-url",
                data_dir.display()
            );
        }
        if let Some(options) = PrivatePostgres::running(data_dir)? {
            own_postgres::reach(&options).await?;
            return Ok(Self { options, started: None });
        }
        let locked = DataDir::lock(data_dir)?;
        let postgres = PrivatePostgres::start(locked.path()).await?;
        Ok(Self { options: postgres.options(), started: Some((postgres, locked)) })
    }

    pub(super) async fn close(self) -> anyhow::Result<()> {
        match self.started {
            Some((postgres, _locked)) => postgres.stop().await,
            None => Ok(()),
        }
    }
}
