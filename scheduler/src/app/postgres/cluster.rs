//! Handles the cluster's files: reads the cluster's version, initialises the cluster, and makes the
//! socket's folder.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};

use super::account::{Account, USER};
use super::binaries::{self, Binaries};
use super::end_cause::tail;
use super::error::PostgresError;
use super::settings::PORT;

/// The cluster's folder in a data directory.
pub(super) const FOLDER: &str = "postgres";
/// Maximum length of a path in `sockaddr_un`, without the terminating zero.
const LONGEST_SOCKET_PATH: usize = 107;

/// The path of the cluster in a data directory.
pub(super) fn folder(data_dir: &Path) -> PathBuf {
    data_dir.join(FOLDER)
}

fn failed(what: &str, path: &Path) -> String {
    format!("{what} {}", path.display())
}

/// The major version of Postgres that made the cluster; `None` if there is no cluster yet.
fn version(cluster: &Path) -> anyhow::Result<Option<String>> {
    let path = cluster.join("PG_VERSION");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(anyhow!(error).context(failed("read", &path))),
    }
}

/// The installed server that fits the cluster. If there is no cluster yet, the newest version that
/// is installed.
pub(super) fn fitting_binaries(cluster: &Path, data_dir: &Path) -> Result<Binaries, PostgresError> {
    let installed = binaries::installed();
    match version(cluster)? {
        Some(made_by) => binaries::of_version(installed, &made_by, data_dir),
        None => binaries::newest(installed),
    }
}

/// What exists at the path of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    EmptyFolder,
    /// A cluster that belongs to the account.
    Cluster,
}

/// Looks for a usable cluster. Changes nothing.
pub(super) fn found(cluster: &Path, account: &Account) -> Result<Found, PostgresError> {
    let unreadable = |error: io::Error| PostgresError::from(anyhow!(error).context(failed("read", cluster)));
    match fs::metadata(cluster) {
        Ok(metadata) if cluster.join("PG_VERSION").exists() => {
            let (owner, runner) = (metadata.uid(), account.uid().as_raw());
            if owner == runner {
                return Ok(Found::Cluster);
            }
            let path = cluster.display();
            Err(anyhow!(
                "{path} belongs to user id {owner}, but Postgres would run as user id {runner}: start landfall as the \
                 user who started it first"
            )
            .into())
        }
        Ok(_) => match fs::read_dir(cluster).map_err(unreadable)?.next() {
            None => Ok(Found::EmptyFolder),
            Some(_) => Err(PostgresError::Foreign(cluster.to_owned())),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::Nothing),
        Err(error) => Err(unreadable(error)),
    }
}

/// Initialises the cluster if it is missing. If it exists, checks its owner.
///
/// A new cluster is made in a temporary folder, which gets its final name at the end, so that a
/// crash leaves no incomplete cluster.
pub(super) fn initialise(cluster: &Path, binaries: &Binaries, account: &Account) -> Result<(), PostgresError> {
    match found(cluster, account)? {
        Found::Cluster => return Ok(()),
        Found::EmptyFolder => {
            // `remove_dir` fails if the directory is not empty.
            fs::remove_dir(cluster).map_err(|_| PostgresError::Foreign(cluster.to_owned()))?;
        }
        Found::Nothing => {}
    }
    let unfinished = cluster.with_extension("new");
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished).with_context(|| failed("remove", &unfinished))?;
    }
    make_dir(&unfinished, *account)?;
    tracing::info!(path = %cluster.display(), "making the private Postgres cluster");
    let output = account
        .command(&binaries.initdb())
        .arg("--pgdata")
        .arg(&unfinished)
        .args(["--auth=trust", "--encoding=UTF8", "--no-locale", "--data-checksums"])
        .arg(format!("--username={USER}"))
        .output()
        .context("run setpriv")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(anyhow!("initdb failed: {}", tail(&said)).into());
    }
    fs::rename(&unfinished, cluster).with_context(|| failed("rename to", cluster))?;
    let parent = cluster.parent().unwrap_or(Path::new("/"));
    Ok(fs::File::open(parent).and_then(|dir| dir.sync_all()).with_context(|| failed("sync", parent))?)
}

/// The folder of the socket. It is in the data directory, or a temporary folder if the path would
/// be too long.
#[derive(Debug)]
pub(super) enum SocketDir {
    Kept(PathBuf),
    Temporary(tempfile::TempDir),
}

impl SocketDir {
    /// Makes an empty folder that only the account may enter. Call this function only while no
    /// server runs.
    pub(super) fn make(data_dir: &Path, account: &Account) -> anyhow::Result<Self> {
        let kept = data_dir.join("run");
        if fits(&kept) {
            if kept.exists() {
                // A crash left this folder. The lock file in it may name a PID that another process
                // has now.
                fs::remove_dir_all(&kept).with_context(|| failed("remove", &kept))?;
            }
            make_dir(&kept, *account)?;
            return Ok(Self::Kept(kept));
        }
        let preferred = std::env::temp_dir();
        let base = if fits(&preferred.join("landfall-XXXXXX")) { preferred } else { PathBuf::from("/tmp") };
        let dir = tempfile::Builder::new()
            .prefix("landfall-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(&base)
            .with_context(|| failed("make a directory in", &base))?;
        account.give(dir.path())?;
        Ok(Self::Temporary(dir))
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Kept(path) => path,
            Self::Temporary(dir) => dir.path(),
        }
    }
}

fn fits(socket_dir: &Path) -> bool {
    let file = socket_dir.join(format!(".s.PGSQL.{PORT}"));
    file.as_os_str().as_bytes().len() <= LONGEST_SOCKET_PATH
}

fn make_dir(path: &Path, account: Account) -> anyhow::Result<()> {
    fs::create_dir(path).with_context(|| failed("make", path))?;
    fs::set_permissions(path, Permissions::from_mode(0o700)).with_context(|| failed("set the mode of", path))?;
    account.give(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_gets_a_short_socket_directory_of_its_own() {
        let base = tempfile::tempdir().unwrap();
        let own = Account::Own(nix::unistd::geteuid());
        let long = base.path().join("d".repeat(100));
        fs::create_dir(&long).unwrap();
        let socket = SocketDir::make(&long, &own).unwrap();
        assert!(fits(socket.path()), "{socket:?}");
        assert_eq!(fs::metadata(socket.path()).unwrap().permissions().mode() & 0o777, 0o700);
        let short = SocketDir::make(base.path(), &own).unwrap();
        assert_eq!(short.path(), base.path().join("run"));
    }
}
