//! `landfall restore`: restores a backup into an empty data directory, into an empty database on
//! the operator's own server, or both.
//!
//! The file and the destination are checked before anything is changed. A mark in the database is
//! set before the first row is restored, and removed in the last step. The mark prevents schedulers
//! from starting on a database that is only partly restored.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Take};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use indicatif::ProgressBar;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection};

use super::backup_file::{self, EntrySpan, MANIFEST, Manifest};
use super::dump_and_secrets::{self, DUMP, Libpq, Secrets};
use crate::app::data_dir::DataDir;
use crate::app::exit::{self, Code, ended};
use crate::app::postgres::{PrivatePostgres, Tool, tool};
use crate::app::start_options;
use crate::store::schema;
use crate::store::schema::backup_and_restore::{self, RestoreResult};
use crate::store::{self, Tx};

#[derive(Debug, Clone)]
pub struct Restore {
    /// The data directory; [`DataDir::default_path`] if `None`.
    pub data_dir: Option<PathBuf>,
    /// The URL of the operator's own Postgres server. If `None`, a private server is used.
    pub database_url: Option<String>,
    pub file: PathBuf,
    /// Whether the backup's secrets are written into the data directory.
    pub secrets: bool,
    /// Counts the bytes of the database as they are restored.
    pub progress: ProgressBar,
}

/// A backup that was restored.
#[derive(Debug, Clone)]
pub struct RestoredBackup {
    pub sites: i64,
    pub agents: i64,
    /// Whether secrets of the backup were written into the data directory.
    pub secrets: bool,
    pub data_dir: PathBuf,
    /// Whether the database is the private Postgres of the data directory.
    pub private: bool,
    pub result: RestoreResult,
}

/// Restores a backup.
///
/// # Errors
/// When the backup cannot be restored; the message names the obstacle. In that case nothing is
/// restored.
pub async fn restore(wanted: Restore) -> anyhow::Result<RestoredBackup> {
    let interrupted = exit::on_signal()?;
    let data_dir = wanted.data_dir.clone().map_or_else(DataDir::default_path, Ok)?;
    let path = wanted.file.clone();
    let read = tokio::task::spawn_blocking(move || {
        Source::open(&path).with_context(|| format!("the backup {}", path.display()))
    });
    let mut source = tokio::select! {
        read = read => read.context("read the backup")??,
        () = interrupted.cancelled() => return Err(interruption("nothing was changed")),
    };
    let pg_restore = tool("pg_restore", source.manifest.pg_dump)?;
    let secrets = if wanted.secrets { source.secrets()? } else { Secrets::default() };
    ensure_theirs(&source.manifest, &data_dir)?;
    let (manifest, progress) = (source.manifest.clone(), wanted.progress.clone());
    let work = RestoreInput { manifest, pg_restore, secrets, source, data_dir, progress };
    let (work, result, private) = match &wanted.database_url {
        Some(url) => {
            let options = start_options::reach(&start_options::database_servers(url)?).await?.server;
            let (work, result) = work.into_own(&options, &interrupted).await?;
            (work, result, false)
        }
        None => {
            let (work, result) = work.into_private(&interrupted).await?;
            (work, result, true)
        }
    };
    let Manifest { sites, agents, .. } = work.manifest;
    let secrets = work.secrets.files().next().is_some();
    Ok(RestoredBackup { sites, agents, secrets, data_dir: work.data_dir, private, result })
}

/// Checks that secrets that are already in the data directory belong to the backup.
fn ensure_theirs(manifest: &Manifest, data_dir: &Path) -> anyhow::Result<()> {
    let (token, ca) = (manifest.operator_token_sha256.as_deref(), manifest.ca_sha256.as_deref());
    Secrets::of(data_dir)?.ensure_theirs(token, ca, data_dir)
}

/// A backup whose whole file has been checked.
struct Source {
    file: File,
    manifest: Manifest,
    spans: BTreeMap<String, EntrySpan>,
}

impl Source {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let mut file = File::open(path).context("open it")?;
        // The manifest is read first. If its format is not known, nothing else is read.
        let manifest = Manifest::read(&backup_file::first(&mut file, MANIFEST)?)?;
        let newest = schema::newest();
        ensure!(
            manifest.schema < schema::NUMBERED_BY_TIME,
            "it was made by an earlier build of landfall with a schema ({}) that this build does not know: restore it \
             with the build that made it",
            manifest.schema
        );
        ensure!(
            manifest.schema <= newest,
            "it has schema {} of landfall {}, but this landfall {} knows schemas only up to {newest}: use the newer \
             landfall",
            manifest.schema,
            manifest.landfall,
            env!("CARGO_PKG_VERSION")
        );
        let spans = backup_file::check(&mut file)?;
        ensure!(spans.contains_key(DUMP), "it is damaged: it contains no {DUMP}");
        Ok(Self { file, manifest, spans })
    }

    fn secrets(&mut self) -> anyhow::Result<Secrets> {
        let Self { file, spans, .. } = self;
        Secrets::collect(|name| spans.get(name).map(|span| backup_file::small(file, *span)).transpose())
    }

    fn dump(&mut self) -> anyhow::Result<Take<File>> {
        let span = self.spans.get(DUMP).copied().context("find the dump")?;
        self.file.seek(SeekFrom::Start(span.at)).context("read the backup")?;
        Ok(self.file.try_clone().context("read the backup")?.take(span.length))
    }
}

/// The input of a restore, except the destination.
struct RestoreInput {
    source: Source,
    manifest: Manifest,
    pg_restore: Tool,
    secrets: Secrets,
    data_dir: PathBuf,
    progress: ProgressBar,
}

fn interruption(left: &str) -> anyhow::Error {
    ended(Code::Interrupted, format!("interrupted: {left}"))
}

type Interrupted = tokio_util::sync::CancellationToken;

impl RestoreInput {
    async fn into_own(
        self,
        options: &PgConnectOptions,
        interrupted: &Interrupted,
    ) -> anyhow::Result<(Self, RestoreResult)> {
        let mut conn = options.connect().await.context("reach the database")?;
        if backup_and_restore::under_way(&mut conn).await? {
            return Err(store::Error::HalfRestored.into());
        }
        self.ensure_fit(&mut conn).await?;
        // No other process may use the directory while secrets are written into it.
        let _locked = if self.secrets.files().next().is_some() { Some(DataDir::lock(&self.data_dir)?) } else { None };
        backup_and_restore::begin(&mut conn).await.context("make a table in the database")?;
        let loaded = tokio::select! {
            loaded = self.load(options) => loaded,
            () = interrupted.cancelled() => return Err(interruption("empty the database before you restore again")),
        };
        match loaded {
            Ok(done) => Ok(done),
            Err(error) => {
                // All rows are restored in one transaction, so a rollback leaves no row.
                if backup_and_restore::look(&mut conn).await.is_ok_and(|place| !place.ours) {
                    backup_and_restore::give_up(&mut conn).await?;
                }
                Err(error)
            }
        }
    }

    async fn into_private(self, interrupted: &Interrupted) -> anyhow::Result<(Self, RestoreResult)> {
        let cluster = PrivatePostgres::cluster(&self.data_dir);
        let locked = DataDir::lock(&self.data_dir)?;
        ensure!(
            !cluster.exists(),
            "{} already contains a database: remove it, or choose an empty directory with --data-dir",
            locked.path().display()
        );
        let restored = async {
            let postgres = PrivatePostgres::start(locked.path()).await?;
            let options = postgres.options();
            let load = async {
                let mut conn = options.connect().await.context("reach the database")?;
                self.ensure_fit(&mut conn).await?;
                backup_and_restore::begin(&mut conn).await?;
                conn.close().await.context("disconnect from the database")?;
                self.load(&options).await
            };
            let restored = tokio::select! {
                restored = load => restored,
                error = postgres.ended() => Err(error),
                () = interrupted.cancelled() => Err(interruption("nothing was restored")),
            };
            let stopped = postgres.stop().await;
            let restored = restored?;
            stopped?;
            Ok::<_, anyhow::Error>(restored)
        };
        restored.await.inspect_err(|_| {
            // This restore made both folders, so removing them loses no other data. If they cannot
            // be removed, the mark in the database still shows that the restore is incomplete.
            for made in [&cluster, &locked.path().join("run")] {
                drop(fs::remove_dir_all(made));
            }
        })
    }

    /// Checks that the backup can be restored into the database.
    async fn ensure_fit(&self, conn: &mut PgConnection) -> anyhow::Result<()> {
        let place = backup_and_restore::look(conn).await?;
        ensure!(place.empty, "the database is not empty: restore into an empty one");
        dump_and_secrets::ensure_schema(place.schema.as_deref())?;
        let (server, needed) = (place.postgres, self.manifest.postgres);
        ensure!(
            u32::try_from(server).is_ok_and(|server| server >= needed),
            "the backup is of Postgres {needed}, but the server is Postgres {server}: restore into Postgres {needed} \
             or newer"
        );
        Ok(())
    }

    /// Restores the rows and writes the secrets to the data directory. Then ends the sessions and
    /// leases that were active in the backup (`store::schema::backup_and_restore`).
    async fn load(self, options: &PgConnectOptions) -> anyhow::Result<(Self, RestoreResult)> {
        let mut work = self;
        let libpq = Libpq::of(options);
        let loading = tokio::task::spawn_blocking(move || {
            let dump = work.source.dump()?;
            work.progress.set_length(dump.limit());
            let mut dump = work.progress.wrap_read(dump);
            dump_and_secrets::restore(&work.pg_restore, &libpq, &mut dump)?;
            Ok::<_, anyhow::Error>(work)
        });
        let work = loading.await.context("restore the database")??;
        let mut conn = options.connect().await.context("reach the database")?;
        schema::migrate(&mut conn).await.context("bring the schema up to date")?;
        backup_and_restore::analyze(&mut conn).await?;
        work.secrets.write(&work.data_dir)?;
        let mut tx = Tx::on(&mut conn).await.context("begin")?;
        let restored = backup_and_restore::rewind(&mut tx, work.manifest.made_at, &work.manifest.landfall).await?;
        tx.commit().await.context("commit")?;
        conn.close().await.context("disconnect from the database")?;
        Ok((work, restored))
    }
}
