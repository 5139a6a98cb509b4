//! Handles the files of the private Postgres: initialises the cluster, makes the socket's folder,
//! writes the settings, reads `postmaster.pid`, and explains from the log why the server ended.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use nix::sys::signal::kill;
use nix::unistd::Pid;

use super::programs_and_user::{self, Account, Binaries, PostgresError, USER};
use crate::machine::disk;

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
    let installed = programs_and_user::installed();
    match version(cluster)? {
        Some(made_by) => programs_and_user::of_version(installed, &made_by, data_dir),
        None => programs_and_user::newest(installed),
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

/// The port is only a part of the socket's file name, because the server does not listen on TCP.
pub(super) const PORT: u16 = 5432;

/// Settings of a small server that is reachable only through its socket.
pub(super) fn settings(socket_dir: &Path) -> Vec<String> {
    // `unix_socket_directories` is a list, so the path is quoted in case it contains a comma or a
    // blank.
    let socket_dir = socket_dir.to_string_lossy().replace('"', "\"\"");
    vec![
        "listen_addresses=".to_owned(),
        format!("unix_socket_directories=\"{socket_dir}\""),
        "unix_socket_permissions=0700".to_owned(),
        format!("port={PORT}"),
        "cluster_name=landfall".to_owned(),
        "max_connections=100".to_owned(),
        // 256 MB is enough for the indexes of a million open tasks. A small database uses little of
        // this memory.
        "shared_buffers=256MB".to_owned(),
        // When a page is first changed after a checkpoint, Postgres logs the whole page, which
        // makes frequent checkpoints expensive. A limit of 256 MB would cause a checkpoint every
        // second at full load.
        "max_wal_size=1GB".to_owned(),
        "jit=off".to_owned(),
        "fsync=on".to_owned(),
        "timezone=UTC".to_owned(),
        "log_timezone=UTC".to_owned(),
        // At the level `log`, the server's log omits errors of statements, because the scheduler
        // reports them.
        "log_min_messages=log".to_owned(),
        "log_checkpoints=off".to_owned(),
        // The default prefix, and the SQLSTATE, which reveals a full disk.
        "log_line_prefix=%m [%p] %e ".to_owned(),
    ]
}

/// The file's name in the cluster.
pub(super) const PID_FILE: &str = "postmaster.pid";

/// The meaning of the file `postmaster.pid` of a cluster.
pub(super) enum PidFile {
    /// There is no such file, or its process has ended.
    Over,
    /// The PID in the file now belongs to another process.
    Outdated,
    /// The server with this PID is running. Also contains the text of the file.
    Of(Pid, String),
}

/// Reads the file, and checks whether its process is a server of this cluster.
pub(super) fn read_pid_file(cluster: &Path) -> anyhow::Result<PidFile> {
    let path = cluster.join(PID_FILE);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(PidFile::Over),
        Err(error) => return Err(anyhow!(error).context(format!("read {}", path.display()))),
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

/// The socket folder of a server that another process runs on this cluster; `None` if no server is
/// running. Changes nothing.
pub(super) fn running_socket(cluster: &Path) -> anyhow::Result<Option<PathBuf>> {
    /// The line of `postmaster.pid` that contains the socket's folder, counted from 0. The server
    /// writes this line once it listens.
    const LINE: usize = 4;
    let PidFile::Of(_, text) = read_pid_file(cluster)? else { return Ok(None) };
    Ok(text.lines().nth(LINE).map(str::trim).filter(|line| !line.is_empty()).map(PathBuf::from))
}

/// Minimum number of free bytes. If fewer bytes are free, the server may stop, because it writes
/// its write-ahead log in files of 16 MB.
pub(crate) const LEAST_ROOM: u64 = 32 << 20;
/// Number of lines at the end of the log that an error message quotes.
const SHOWN_LINES: usize = 5;

/// The error for a server that ended or never answered. The usual cause is a full disk.
pub(super) fn down(cluster: &Path, log: &Path, what: &str) -> anyhow::Error {
    let room = disk::space(cluster).map(|disk| disk.free);
    let (last, cluster) = (last_lines(log), cluster.display());
    let left = room.map_or_else(String::new, |room| format!(" ({} MB are free now)", room >> 20));
    // The log is checked too, because the disk may have room again: when the server ends, the space
    // of its temporary files is freed. In the log, an error's SQLSTATE follows the process id.
    if room.is_some_and(|room| room < LEAST_ROOM) || last.contains(&format!("] {} ", crate::store::DISK_FULL)) {
        return anyhow!(
            "the private Postgres {what}; the disk of {cluster} is or was full{left}: free some space and start again"
        );
    }
    anyhow!("the private Postgres {what}; its log {} ends with: {last}", log.display())
}

fn last_lines(log: &Path) -> String {
    match std::fs::read(log) {
        Ok(bytes) => tail(&String::from_utf8_lossy(&bytes)),
        Err(error) => format!("(unreadable: {error})"),
    }
}

/// The last lines of a text, joined into one line.
pub(super) fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        return "(no output)".to_owned();
    }
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("; ")
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

    #[test]
    fn a_server_that_ended_on_a_full_disk_says_so_even_if_its_end_made_room() {
        let folder = tempfile::tempdir().unwrap();
        let cluster = folder.path().join("postgres");
        std::fs::create_dir(&cluster).unwrap();
        let log = folder.path().join("postgres.log");
        let line = |sqlstate: &str| format!("2026-11-24 10:00:00.123 UTC [7] {sqlstate} PANIC:  what happened\n");
        std::fs::write(&log, line("53100")).unwrap();
        let said = down(&cluster, &log, "ended (signal 6)").to_string();
        assert!(said.contains("is or was full (") && said.ends_with(": free some space and start again"), "{said}");
        std::fs::write(&log, line("XX000")).unwrap();
        // If the disk of the test's machine is nearly full, the error blames the disk instead.
        if disk::space(folder.path()).is_some_and(|disk| disk.free >= LEAST_ROOM) {
            let said = down(&cluster, &log, "ended (signal 6)").to_string();
            assert!(said.ends_with("XX000 PANIC:  what happened"), "{said}");
        }
    }
}
