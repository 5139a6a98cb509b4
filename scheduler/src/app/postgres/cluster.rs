//! Handles the cluster's files: reads the cluster's version, initialises the cluster, waits until a
//! previous server has stopped, and makes the socket's folder.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use nix::sys::signal::kill;
use nix::unistd::Pid;

use super::account::{Account, USER};
use super::binaries::Binaries;
use super::error::PostgresError;
use super::server::tail;
use super::settings::PORT;

/// Maximum length of a path in `sockaddr_un`, without the terminating zero.
const LONGEST_SOCKET_PATH: usize = 107;
/// Maximum time that a previous server may take to stop after its scheduler has ended.
const FORMER_SERVER_PATIENCE: Duration = Duration::from_secs(30);
/// The interval at which a previous server is checked while it stops.
const FORMER_SERVER_POLL: Duration = Duration::from_millis(50);

fn failed(what: &str, path: &Path) -> String {
    format!("{what} {}", path.display())
}

/// The major version of Postgres that made the cluster; `None` if there is no cluster yet.
pub(super) fn version(cluster: &Path) -> anyhow::Result<Option<String>> {
    let path = cluster.join("PG_VERSION");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(anyhow!(error).context(failed("read", &path))),
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

/// Waits until no server uses the cluster. If the previous scheduler was killed, its server may
/// still be shutting down.
pub(super) fn await_former_server(cluster: &Path) -> anyhow::Result<()> {
    let begun = Instant::now();
    while let Some(pid) = former_server(cluster)? {
        let (path, waited) = (cluster.display(), FORMER_SERVER_PATIENCE.as_secs());
        ensure!(
            begun.elapsed() <= FORMER_SERVER_PATIENCE,
            "the Postgres process {pid} of a former scheduler still uses {path} after {waited} s: stop that process, \
             then start again"
        );
        std::thread::sleep(FORMER_SERVER_POLL);
    }
    Ok(())
}

/// The socket folder of a server that another process runs on this cluster; `None` if no server is
/// running. Changes nothing.
pub(super) fn running_socket(cluster: &Path) -> anyhow::Result<Option<PathBuf>> {
    /// The line of `postmaster.pid` that contains the socket's folder, counted from 0. The server
    /// writes this line once it listens.
    const LINE: usize = 4;
    let PidFile::Of(_, text) = pid_file(cluster)? else { return Ok(None) };
    Ok(text.lines().nth(LINE).map(str::trim).filter(|line| !line.is_empty()).map(PathBuf::from))
}

/// The meaning of the file `postmaster.pid` of a cluster.
enum PidFile {
    /// There is no such file, or its process has ended.
    Over,
    /// The PID in the file now belongs to another process.
    Outdated,
    /// The server with this PID is running. Also contains the text of the file.
    Of(Pid, String),
}

fn pid_file(cluster: &Path) -> anyhow::Result<PidFile> {
    let path = cluster.join("postmaster.pid");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(PidFile::Over),
        Err(error) => return Err(anyhow!(error).context(failed("read", &path))),
    };
    let Some(pid) = text.lines().next().and_then(|line| line.trim().parse().ok()).map(Pid::from_raw) else {
        return Ok(PidFile::Over);
    };
    if kill(pid, None) == Err(nix::errno::Errno::ESRCH) {
        return Ok(PidFile::Over);
    }
    // The working directory of a Postgres server is its cluster.
    let at_work = fs::read_link(format!("/proc/{pid}/cwd")).ok();
    let ours = at_work.is_some() && at_work == cluster.canonicalize().ok();
    Ok(if ours { PidFile::Of(pid, text) } else { PidFile::Outdated })
}

/// The PID of the server that `postmaster.pid` names; `None` if that server is not running.
///
/// After a reboot another process may have the same PID, and Postgres would refuse to start while
/// that process runs. Therefore the file is removed if its PID belongs to another process. Two
/// servers still cannot use the cluster at the same time, because Postgres also checks whether the
/// shared memory of a previous server is in use.
fn former_server(cluster: &Path) -> anyhow::Result<Option<Pid>> {
    match pid_file(cluster)? {
        PidFile::Over => return Ok(None),
        PidFile::Of(pid, _) => return Ok(Some(pid)),
        PidFile::Outdated => {}
    }
    let path = cluster.join("postmaster.pid");
    match fs::remove_file(&path) {
        Ok(()) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(anyhow!(error).context(failed("remove", &path))),
    }
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
    fn a_process_number_that_is_anothers_by_now_does_not_hold_the_cluster() {
        let base = tempfile::tempdir().unwrap();
        let pid_file = base.path().join("postmaster.pid");
        // The PID of this process, which is running but is not a Postgres server in that directory.
        fs::write(&pid_file, format!("{}\n{}\n", std::process::id(), base.path().display())).unwrap();
        assert_eq!(former_server(base.path()).unwrap(), None);
        assert!(!pid_file.exists());
    }

    #[test]
    fn a_former_server_is_waited_for() {
        let base = tempfile::tempdir().unwrap();
        // A server is recognised by its PID and its working directory.
        let mut former = std::process::Command::new("sleep").arg("3").current_dir(base.path()).spawn().unwrap();
        fs::write(base.path().join("postmaster.pid"), format!("{}\n", former.id())).unwrap();
        assert!(former_server(base.path()).unwrap().is_some());
        await_former_server(base.path()).unwrap();
        assert!(former.try_wait().unwrap().is_some());
    }

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
