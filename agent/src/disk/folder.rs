//! An agent's folder: its default path, its owner, its lock, and crash-safe renames.
//!
//! The Debian package creates the default folder (`/var/lib/landfall-agent`) for the user of the
//! service. If root enrols an agent in this folder, the new files are given to this user.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, User};

/// The name of the lock file. Only the process that has locked this file may use the folder.
const LOCK: &str = "lock";

const OF_MACHINE: &str = "/var/lib/landfall-agent";

/// The default folder of an agent's files. For root and for the folder's owner, this is
/// `/var/lib/landfall-agent`.
pub fn default_dir() -> PathBuf {
    default_of(Path::new(OF_MACHINE), nix::unistd::geteuid())
}

fn default_of(machine: &Path, user: Uid) -> PathBuf {
    let owned = || std::fs::metadata(machine).is_ok_and(|folder| folder.uid() == user.as_raw());
    if user.is_root() || owned() {
        return machine.to_owned();
    }
    let home = std::env::home_dir().unwrap_or_else(|| PathBuf::from("."));
    home.join(".local/share/landfall-agent")
}

/// The user who owns the folder and so runs its agent. `None` if this user is root, or if this
/// process does not run as root.
pub fn other_owner(dir: &Path) -> Option<User> {
    if !nix::unistd::geteuid().is_root() {
        return None;
    }
    let owner = Uid::from_raw(std::fs::metadata(dir).ok()?.uid());
    if owner.is_root() { None } else { User::from_uid(owner).ok().flatten() }
}

/// Gives a file to the folder's owner if this process is root. Does nothing for other users.
pub fn leave_to_owner(file: &std::fs::File, dir: &Path) -> std::io::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let folder = std::fs::metadata(dir)?;
    fchown(file, Some(folder.uid()), Some(folder.gid()))
}

/// The purpose of a folder that only one process may use, for error messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FolderPurpose {
    pub(crate) what: &'static str,
    /// What the operator should do if another agent uses the folder.
    pub(crate) otherwise: &'static str,
}

#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("use {folder} for {what}")]
    Unusable { folder: PathBuf, what: &'static str, source: io::Error },
    #[error("another process uses {folder} for its {what}: stop it first, or {otherwise}")]
    Taken { folder: PathBuf, what: &'static str, otherwise: &'static str },
}

impl FolderPurpose {
    /// Creates a folder if missing, and keeps it locked until the returned file is dropped.
    pub(crate) fn take(self, folder: &Path) -> Result<File, FolderError> {
        let unusable = |source| self.unusable(folder, source);
        std::fs::create_dir_all(folder).map_err(unusable)?;
        let lock = File::create(folder.join(LOCK)).map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => Ok(lock),
            Err(TryLockError::WouldBlock) => {
                let Self { what, otherwise } = self;
                Err(FolderError::Taken { folder: folder.to_owned(), what, otherwise })
            }
            Err(TryLockError::Error(error)) => Err(unusable(error)),
        }
    }

    pub(crate) fn unusable(self, folder: &Path, source: io::Error) -> FolderError {
        FolderError::Unusable { folder: folder.to_owned(), what: self.what, source }
    }
}

/// Runs blocking disk operations on tokio's thread pool for blocking tasks.
pub(crate) async fn blocking<T: Send + 'static>(f: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(f).await.map_err(io::Error::other)?
}

/// Renames a file within its folder, and then syncs the folder so that the new name survives a
/// crash. The file's content must be synced already.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::rename(from, to)?;
    // A path with only one component has an empty parent.
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_folder_is_the_default_of_root_and_of_its_owner() {
        let machine = tempfile::tempdir().unwrap();
        let owner = Uid::from_raw(std::fs::metadata(machine.path()).unwrap().uid());
        let stranger = Uid::from_raw(owner.as_raw() + 1);
        assert_eq!(default_of(machine.path(), owner), machine.path());
        assert_eq!(default_of(Path::new("/nowhere"), Uid::from_raw(0)), Path::new("/nowhere"));
        for (folder, user) in [(machine.path(), stranger), (Path::new("/nowhere"), stranger)] {
            assert!(default_of(folder, user).ends_with(".local/share/landfall-agent"));
        }
    }
}
