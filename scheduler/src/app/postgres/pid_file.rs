//! Reads `postmaster.pid`, the file in which the server of a cluster writes its PID and its socket.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use nix::sys::signal::kill;
use nix::unistd::Pid;

/// The file's name in the cluster.
pub(super) const NAME: &str = "postmaster.pid";

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
pub(super) fn read(cluster: &Path) -> anyhow::Result<PidFile> {
    let path = cluster.join(NAME);
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
    let PidFile::Of(_, text) = read(cluster)? else { return Ok(None) };
    Ok(text.lines().nth(LINE).map(str::trim).filter(|line| !line.is_empty()).map(PathBuf::from))
}
