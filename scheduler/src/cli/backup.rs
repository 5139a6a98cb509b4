//! `landfall backup` and `landfall restore`: their flags, and what they print.

use std::path::PathBuf;

use clap::Args;

use super::ConnectionArgs;
use super::output::progress_bar::Bar;
use crate::app::backup::{self, Backup, MadeBackup, Restore, RestoredBackup};
use crate::app::exit::{print, quoted};
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
#[command(after_help = "\
Examples:
  landfall backup /backups/landfall-monday.tar
  landfall backup --database-url postgres://u@localhost/landfall --data-dir one monday.tar

The backup is a snapshot of one moment: sites, batches, agents, measurements and the log, but not the pages,
which agents store. The file is a tar archive: manifest.json describes it, and SHA256SUMS verifies it.")]
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
        print(&made(&done?))
    }
}

/// The text that a successful `landfall backup` prints.
fn made(done: &MadeBackup) -> String {
    let MadeBackup { sites, agents, made_at, secrets, file, length, took } = done;
    let held = match secrets {
        true => "it contains the operator's token and the authority's key: whoever can read it controls the fleet",
        false => "it contains no secrets: keep operator-token and tls of the data directory with it",
    };
    format!(
        "backed up {sites} sites and {agents} agents as of {} into {} ({:.1} MB) in {:.1} s\n{held}\n",
        made_at.format("%Y-%m-%d %H:%M:%S UTC"),
        file.display(),
        megabytes(*length),
        took.as_secs_f64()
    )
}

#[expect(clippy::cast_precision_loss, reason = "for people, to a decimal")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall restore monday.tar --data-dir /var/lib/landfall
  landfall restore monday.tar --database-url postgres://u@localhost/empty --data-dir one

Stop the old scheduler first. Agents reconnect by themselves if the restored scheduler has the old one's address. Everything
that happened after the backup is lost; the command ends by printing what that means.")]
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
        print(&restored(&done?))
    }
}

/// The text that a successful `landfall restore` prints.
fn restored(done: &RestoredBackup) -> String {
    let RestoredBackup { sites, agents, secrets, data_dir, private, result } = done;
    let secrets = match (secrets, private) {
        (true, _) => "those of the backup, now in the data directory",
        (false, false) => {
            "none restored: copy operator-token and tls of a scheduler of this fleet into the data directory before \
             you start it"
        }
        (false, true) => {
            "none restored: copy operator-token and tls of the fleet into the data directory before you start it; \
             otherwise the scheduler makes new ones, and agents on other machines must be enrolled again"
        }
    };
    let data_dir = quoted(&data_dir.to_string_lossy());
    let start = match private {
        false => format!("landfall serve --data-dir {data_dir} --database-url URL"),
        true => format!("landfall up --data-dir {data_dir}"),
    };
    format!(
        "{}\n  contains        {sites} sites, {agents} agents\n  secrets         {secrets}\n\
         Everything that happened after {} is lost:\n\
         \x20 - crawls that ended since then are repeated; agents' reports of them are refused as \"lost-history\"\n\
         \x20 - submissions, cancellations and settings made since then must be made again\n\
         \x20 - agents enrolled since then must be enrolled again; agents removed since then are back: landfall agents list\n\
         \x20 - an operator's token replaced since then is valid again; enrolment tokens are void\n\
         start the scheduler at its former address: {start}\n",
        result.sentence(),
        result.backed_up_at.format("%Y-%m-%d %H:%M:%S UTC"),
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use chrono::DateTime;

    use super::*;
    use crate::store::schema::backup_and_restore::RestoreResult;

    #[test]
    fn it_is_said_what_a_backup_contains() {
        let done = |secrets| MadeBackup {
            sites: 500,
            agents: 2,
            made_at: DateTime::UNIX_EPOCH,
            secrets,
            file: "b.tar".into(),
            length: 1_200_000,
            took: Duration::from_millis(1500),
        };
        assert_eq!(
            made(&done(true)),
            "backed up 500 sites and 2 agents as of 1970-01-01 00:00:00 UTC into b.tar (1.2 MB) in 1.5 s\n\
             it contains the operator's token and the authority's key: whoever can read it controls the fleet\n"
        );
        assert!(made(&done(false)).contains("it contains no secrets"));
    }

    #[test]
    fn it_is_said_what_a_restore_did_and_how_to_start() {
        let result = RestoreResult {
            at: DateTime::UNIX_EPOCH,
            backed_up_at: DateTime::UNIX_EPOCH,
            backup_version: "1.0".into(),
            sessions: 1,
            leases: 2,
            tokens: 3,
        };
        let done = |secrets, private| RestoredBackup {
            sites: 500,
            agents: 2,
            secrets,
            data_dir: "/d".into(),
            private,
            result: result.clone(),
        };
        let said = restored(&done(true, true));
        assert!(said.contains("500 sites, 2 agents") && said.contains("those of the backup"), "{said}");
        assert!(said.ends_with("address: landfall up --data-dir /d\n"), "{said}");
        let said = restored(&done(false, false));
        assert!(said.contains("none restored: copy operator-token and tls of a scheduler"), "{said}");
        assert!(said.ends_with("landfall serve --data-dir /d --database-url URL\n"), "{said}");
        assert!(restored(&done(false, true)).contains("must be enrolled again"));
    }
}
