//! An agent's folder: where it lies unless told otherwise, whom it belongs to, and how what is in it outlives a crash.
//!
//! A package makes the machine's folder for the user the service runs as. Root, who enrols, leaves to that user what it writes there.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, User};

/// The file whose lock says that a process has a folder.
const LOCK: &str = "lock";

const OF_MACHINE: &str = "/var/lib/landfall-agent";

/// The folder an agent's files lie in unless told otherwise: the machine's for root and for the user it belongs to.
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

/// The owner of a folder that is another user's, where this process is root: the one who is to run what lies in it.
pub fn other_owner(dir: &Path) -> Option<User> {
    if !nix::unistd::geteuid().is_root() {
        return None;
    }
    let owner = Uid::from_raw(std::fs::metadata(dir).ok()?.uid());
    if owner.is_root() { None } else { User::from_uid(owner).ok().flatten() }
}

/// Leaves a file that root made in a folder to the folder's owner. Does nothing for anybody else.
pub fn leave_to_owner(file: &std::fs::File, dir: &Path) -> std::io::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let folder = std::fs::metadata(dir)?;
    fchown(file, Some(folder.uid()), Some(folder.gid()))
}

/// What a folder is for that one process alone may use, in the words of the sentences about it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Purpose {
    pub(crate) what: &'static str,
    /// What an agent does with it.
    pub(crate) does: &'static str,
    /// What to do where another agent has it.
    pub(crate) otherwise: &'static str,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("use {folder} for {what}")]
    Unusable { folder: PathBuf, what: &'static str, source: io::Error },
    #[error("another agent {does} {folder}: stop it first, or {otherwise}")]
    Taken { folder: PathBuf, does: &'static str, otherwise: &'static str },
}

impl Purpose {
    /// Takes a folder, which is made if need be, for as long as the file is kept.
    pub(crate) fn take(self, folder: &Path) -> Result<File, OpenError> {
        let unusable = |source| self.unusable(folder, source);
        std::fs::create_dir_all(folder).map_err(unusable)?;
        let lock = File::create(folder.join(LOCK)).map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => Ok(lock),
            Err(TryLockError::WouldBlock) => {
                let Self { does, otherwise, .. } = self;
                Err(OpenError::Taken { folder: folder.to_owned(), does, otherwise })
            }
            Err(TryLockError::Error(error)) => Err(unusable(error)),
        }
    }

    pub(crate) fn unusable(self, folder: &Path, source: io::Error) -> OpenError {
        OpenError::Unusable { folder: folder.to_owned(), what: self.what, source }
    }
}

/// Does what waits for the disk where nobody else has to wait for it.
pub(crate) async fn blocking<T: Send + 'static>(f: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(f).await.map_err(io::Error::other)?
}

/// Renames a file that is on the disk, to a name in the same folder: no crash takes the new name away.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::rename(from, to)?;
    // The parent of a path of one part is an empty one.
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
