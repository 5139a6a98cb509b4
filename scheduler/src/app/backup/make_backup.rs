//! Makes a backup: opens the operator's own database or the private Postgres, takes a snapshot
//! while schedulers run, and writes it with the secrets into a file.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ChildStdout;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use chrono::{DateTime, Utc};
use indicatif::ProgressBar;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection};

use super::backup_file::{self, Manifest, fill, temporary, write};
use super::dump_and_secrets::{self, DUMP, Libpq, Secrets, ensure_schema};
use crate::app::data_dir::DataDir;
use crate::app::exit::{self, Code, ended, usage};
use crate::app::postgres::{PrivatePostgres, Tool, tool};
use crate::app::start_options;
use crate::store;
use crate::store::schema::{self, backup_and_restore};

#[derive(Debug, Clone)]
pub struct Backup {
    /// The scheduler's data directory; [`DataDir::default_path`] if `None`.
    pub data_dir: Option<PathBuf>,
    /// The URL of the operator's own Postgres server. If `None`, the data directory's private
    /// server is used.
    pub database_url: Option<String>,
    pub file: PathBuf,
    /// Whether the backup contains the secrets.
    pub secrets: bool,
    /// Whether an existing file is replaced.
    pub force: bool,
    /// Counts the bytes of the database as they are written.
    pub progress: ProgressBar,
}

/// A backup that was made.
#[derive(Debug, Clone)]
pub struct MadeBackup {
    pub sites: i64,
    pub agents: i64,
    /// The time of the snapshot, by the database's clock.
    pub made_at: DateTime<Utc>,
    /// Whether the backup contains the secrets.
    pub secrets: bool,
    pub file: PathBuf,
    /// The length of the file in bytes.
    pub length: u64,
    /// How long the backup took.
    pub took: Duration,
}

/// Makes a backup.
///
/// # Errors
/// When the backup cannot be made; the message names the obstacle. In that case no file is written,
/// and an existing file is kept.
pub async fn backup(wanted: Backup) -> anyhow::Result<MadeBackup> {
    let began = Instant::now();
    ensure_free(&wanted)?;
    let data_dir = wanted.data_dir.clone().map_or_else(DataDir::default_path, Ok)?;
    let secrets = if wanted.secrets { Secrets::of(&data_dir)? } else { Secrets::default() };
    let interrupted = exit::on_signal()?;
    let database = SourceDatabase::of(&data_dir, wanted.database_url.as_deref()).await?;
    let made = tokio::select! {
        made = make(&wanted, &data_dir, secrets, &database.options) => made,
        () = interrupted.cancelled() => {
            // If a thread is still writing the backup, it continues to write to the deleted file,
            // which is harmless.
            drop(fs::remove_file(temporary(&wanted.file)));
            Err(ended(Code::Interrupted, format!("interrupted: {} was not written", wanted.file.display())))
        }
    };
    database.close().await?;
    let (manifest, length) = made?;
    let Manifest { sites, agents, made_at, secrets, .. } = manifest;
    Ok(MadeBackup { sites, agents, made_at, secrets, file: wanted.file, length, took: began.elapsed() })
}

fn ensure_free(wanted: &Backup) -> anyhow::Result<()> {
    let file = &wanted.file;
    match fs::metadata(file) {
        Ok(there) if !there.is_file() => {
            Err(usage(format!("{} is not a regular file: name another file", file.display())))
        }
        Ok(_) if !wanted.force => {
            Err(usage(format!("{} already exists: name another file, or replace it with --force", file.display())))
        }
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("read the metadata of {}", file.display())),
    }
}

async fn make(
    wanted: &Backup,
    data_dir: &Path,
    secrets: Secrets,
    options: &PgConnectOptions,
) -> anyhow::Result<(Manifest, u64)> {
    let mut conn = options.connect().await.context("reach the database")?;
    let pg_dump = ensure_dumpable(&mut conn).await?;
    let snapshot = backup_and_restore::begin_snapshot(&mut conn).await?;
    if snapshot.schema > schema::newest() {
        return Err(schema::unknown_migration(&mut conn, snapshot.schema).await?.into());
    }
    if wanted.secrets {
        let fits = secrets.operator_token() == snapshot.operator_token && secrets.authority() == snapshot.authority;
        ensure!(
            fits || (secrets.operator_token() == snapshot.operator_token && snapshot.authority.is_none()),
            "the secrets in {} do not match the database: name the data directory of a scheduler of this database \
             with --data-dir, or leave the secrets out with --without-secrets",
            data_dir.display()
        );
    }
    let manifest = Manifest {
        format: backup_file::FORMAT,
        landfall: env!("CARGO_PKG_VERSION").to_owned(),
        made_at: snapshot.at,
        schema: snapshot.schema,
        postgres: u32::try_from(backup_and_restore::look(&mut conn).await?.postgres)
            .context("read the server's version")?,
        pg_dump: pg_dump.major,
        operator_token_sha256: snapshot.operator_token.clone(),
        ca_sha256: snapshot.authority.clone(),
        secrets: wanted.secrets,
        sites: snapshot.sites,
        agents: snapshot.agents,
    };
    let (wanted, libpq) = (wanted.clone(), Libpq::of(options));
    let written = tokio::task::spawn_blocking(move || {
        let dump = |archive: &mut backup_file::Writer<&File>| {
            let take = |output: &mut ChildStdout| archive.add_stream(DUMP, &mut wanted.progress.wrap_read(output));
            dump_and_secrets::dump(&pg_dump, &libpq, &snapshot.name, take)
        };
        let length = write(&wanted.file, wanted.force, |out| fill(out, &manifest, &secrets, dump))?;
        Ok::<_, anyhow::Error>((manifest, length))
    });
    let written = written.await.context("write the backup")?;
    // The snapshot exists only while this connection is open, so the connection is dropped only
    // after the dump.
    drop(conn);
    written
}

/// Checks that the database can be dumped. Returns a `pg_dump` that is new enough for the server.
async fn ensure_dumpable(conn: &mut PgConnection) -> anyhow::Result<Tool> {
    if backup_and_restore::under_way(conn).await? {
        return Err(store::Error::HalfRestored.into());
    }
    let place = backup_and_restore::look(conn).await?;
    ensure!(
        place.ours,
        "the database contains no tables of landfall, because no scheduler has used it: name another database"
    );
    ensure_schema(place.schema.as_deref())?;
    tool("pg_dump", u32::try_from(place.postgres).context("read the server's version")?)
}

/// The database of a scheduler, whether the scheduler is running or not.
struct SourceDatabase {
    options: PgConnectOptions,
    /// The private server, if this process had to start it because no scheduler is running.
    started: Option<(PrivatePostgres, DataDir)>,
}

impl SourceDatabase {
    async fn of(data_dir: &Path, url: Option<&str>) -> anyhow::Result<Self> {
        if let Some(url) = url {
            let options = start_options::reach(&start_options::database_servers(url)?).await?.server;
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
            start_options::reach(&options.clone().into()).await?;
            return Ok(Self { options, started: None });
        }
        let locked = DataDir::lock(data_dir)?;
        let postgres = PrivatePostgres::start(locked.path()).await?;
        Ok(Self { options: postgres.options(), started: Some((postgres, locked)) })
    }

    async fn close(self) -> anyhow::Result<()> {
        match self.started {
            Some((postgres, _locked)) => postgres.stop().await,
            None => Ok(()),
        }
    }
}
