//! Waits until the private Postgres of a previous scheduler has shut down.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use nix::unistd::Pid;

use super::pid_file::{self, PidFile};

/// Maximum time that a previous server may take to stop after its scheduler has ended.
const FORMER_SERVER_PATIENCE: Duration = Duration::from_secs(30);
/// The interval at which a previous server is checked while it stops.
const FORMER_SERVER_POLL: Duration = Duration::from_millis(50);

/// Waits until no server uses the cluster. If the previous scheduler was killed, its server may
/// still be shutting down.
pub(super) fn wait(cluster: &Path) -> anyhow::Result<()> {
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

/// The PID of the server that `postmaster.pid` names; `None` if that server is not running.
///
/// After a reboot another process may have the same PID, and Postgres would refuse to start while
/// that process runs. Therefore the file is removed if its PID belongs to another process. Two
/// servers still cannot use the cluster at the same time, because Postgres also checks whether the
/// shared memory of a previous server is in use.
fn former_server(cluster: &Path) -> anyhow::Result<Option<Pid>> {
    match pid_file::read(cluster)? {
        PidFile::Over => return Ok(None),
        PidFile::Of(pid, _) => return Ok(Some(pid)),
        PidFile::Outdated => {}
    }
    let path = cluster.join(pid_file::NAME);
    match fs::remove_file(&path) {
        Ok(()) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(anyhow!(error).context(format!("remove {}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_number_that_is_anothers_by_now_does_not_hold_the_cluster() {
        let base = tempfile::tempdir().unwrap();
        let pid_file = base.path().join(pid_file::NAME);
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
        fs::write(base.path().join(pid_file::NAME), format!("{}\n", former.id())).unwrap();
        assert!(former_server(base.path()).unwrap().is_some());
        wait(base.path()).unwrap();
        assert!(former.try_wait().unwrap().is_some());
    }
}
