//! The data directory of one scheduler, which only one process can use at a time.
//!
//! `LOCK_FILE` is locked while the [`DataDir`] exists. When the process ends for any reason, the
//! kernel releases the lock. The same file marks a directory as Landfall's. A directory without
//! this file is refused, unless it is empty or contains only copied secrets.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, User};

/// The lock file, which also marks a directory as Landfall's. It contains the PID of the process
/// that uses the directory.
pub(crate) const LOCK_FILE: &str = "landfall.lock";
/// Files that are permitted in a directory before a scheduler first uses it. They are the secrets
/// of another scheduler of the same database, copied by the operator.
pub(crate) const SECRETS: [&str; 2] = ["operator-token", "tls"];

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// The user is not root, and neither `XDG_DATA_HOME` nor `HOME` is set.
    #[error("no data directory is known because HOME is not set: give --data-dir")]
    NoDefault,
    #[error(
        "the data directory {path} is in use by process {holder}: stop that process, or choose another with --data-dir"
    )]
    InUse {
        path: PathBuf,
        /// The PID of the process, or a text that states that it is unknown.
        holder: String,
    },
    /// The directory belongs to the service's user. Files written by root would make the directory
    /// unusable for the service.
    #[error(
        "the data directory {path} belongs to {owner}, but you are root: start the service with `systemctl start \
         landfall`, run it here with `runuser -u {owner} -- landfall up`, or choose another directory with --data-dir"
    )]
    Others { path: PathBuf, owner: String },
    /// The directory has files, but does not have Landfall's mark.
    #[error("the data directory {0} is not empty and was not made by landfall: choose another with --data-dir")]
    Foreign(PathBuf),
    #[error("{what} {path}")]
    Io { what: &'static str, path: PathBuf, source: io::Error },
}

/// A data directory that only this process uses.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// This field only keeps the lock file open, because the lock lasts as long as the file is
    /// open.
    _lock: File,
}

impl DataDir {
    /// The default directory. For root and for the owner of `/var/lib/landfall`, it is
    /// `/var/lib/landfall`, which the Debian package creates for the service's user. For other
    /// users, it is a folder in the user's data home.
    pub fn default_path() -> Result<PathBuf, DataDirError> {
        let (machine, user) = (Path::new("/var/lib/landfall"), nix::unistd::geteuid());
        if user.is_root() || fs::metadata(machine).is_ok_and(|dir| dir.uid() == user.as_raw()) {
            return Ok(machine.to_owned());
        }
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let data_home = set("XDG_DATA_HOME").filter(|path| path.is_absolute());
        data_home
            .or_else(|| set("HOME").map(|home| home.join(".local/share")))
            .map(|base| base.join("landfall"))
            .ok_or(DataDirError::NoDefault)
    }

    /// The default directory for running a scheduler. Root may not use a directory that belongs to
    /// another user, because the service of that user could not read files written by root.
    pub fn default_to_run() -> Result<PathBuf, DataDirError> {
        let path = Self::default_path()?;
        let owner = fs::metadata(&path).map_or(nix::unistd::geteuid(), |dir| Uid::from_raw(dir.uid()));
        if !nix::unistd::geteuid().is_root() || owner.is_root() {
            return Ok(path);
        }
        let owner = User::from_uid(owner).ok().flatten().map_or_else(|| owner.to_string(), |user| user.name);
        Err(DataDirError::Others { path, owner })
    }

    /// Creates the directory if it is missing, and locks it for this process.
    pub fn lock(path: &Path) -> Result<Self, DataDirError> {
        let path = std::path::absolute(path).map_err(failed("find", path))?;
        // If root starts Landfall, Postgres runs as another user, which must be able to enter this
        // directory. Files with secrets have stricter modes.
        let mode = if nix::unistd::geteuid().is_root() { 0o711 } else { 0o700 };
        if !path.exists() {
            if let Some(parent) = path.parent() {
                fs::DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(failed("make", parent))?;
            }
            fs::DirBuilder::new().recursive(true).create(&path).map_err(failed("make", &path))?;
            fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(failed("set the mode of", &path))?;
        }
        let path = path.canonicalize().map_err(failed("find", &path))?;
        let lock_path = path.join(LOCK_FILE);
        if !lock_path.exists() {
            for entry in fs::read_dir(&path).map_err(failed("read", &path))? {
                let name = entry.map_err(failed("read", &path))?.file_name();
                if !SECRETS.iter().any(|secret| name == *secret) {
                    return Err(DataDirError::Foreign(path));
                }
            }
        }
        let lock = take_lock(&path, &lock_path)?;
        Ok(Self { path, _lock: lock })
    }

    /// The absolute path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn take_lock(path: &Path, lock_path: &Path) -> Result<File, DataDirError> {
    let mut lock = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(lock_path)
        .map_err(failed("open", lock_path))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // If the PID cannot be read, the error message is only less precise.
            let holder = match lock.read_to_string(&mut holder) {
                Ok(_) if !holder.trim().is_empty() => holder.trim().to_owned(),
                _ => "(unknown)".to_owned(),
            };
            return Err(DataDirError::InUse { path: path.to_owned(), holder });
        }
        Err(TryLockError::Error(source)) => return Err(failed("lock", lock_path)(source)),
    }
    lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(failed("write", lock_path))?;
    Ok(lock)
}

/// Replaces a file in one step. Readers find either the old content or the new one, even after a
/// crash.
pub fn write_atomically(path: &Path, mode: u32, content: &[u8]) -> Result<(), DataDirError> {
    let temporary = path.with_extension("new");
    // An existing temporary file is removed first, because it would keep its old mode.
    if let Err(source) = fs::remove_file(&temporary)
        && source.kind() != io::ErrorKind::NotFound
    {
        return Err(failed("remove", &temporary)(source));
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&temporary)
        .map_err(failed("make", &temporary))?;
    give_to_owner(&file, path).map_err(failed("change the owner of", &temporary))?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(failed("write", &temporary))?;
    fs::rename(&temporary, path).map_err(failed("replace", path))?;
    let parent = path.parent().unwrap_or(Path::new("/"));
    File::open(parent).and_then(|dir| dir.sync_all()).map_err(failed("sync", parent))
}

/// Makes the folder's owner the owner of a file written by root, because the service cannot read
/// root's files.
fn give_to_owner(file: &File, path: &Path) -> io::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let folder = fs::metadata(path.parent().unwrap_or(Path::new("/")))?;
    std::os::unix::fs::fchown(file, Some(folder.uid()), Some(folder.gid()))
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DataDirError {
    let path = path.to_owned();
    move |source| DataDirError::Io { what, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_use_names_its_user() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("data");
        let held = DataDir::lock(&dir).unwrap();
        let refused = DataDir::lock(&dir).unwrap_err().to_string();
        assert!(refused.contains(&format!("is in use by process {}:", std::process::id())), "{refused}");
        drop(held);
        DataDir::lock(&dir).unwrap();
    }

    #[test]
    fn a_strangers_directory_is_left_alone() {
        let base = tempfile::tempdir().unwrap();
        fs::write(base.path().join("thesis.tex"), "x").unwrap();
        assert!(matches!(DataDir::lock(base.path()), Err(DataDirError::Foreign(_))));
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 1);
        fs::remove_file(base.path().join("thesis.tex")).unwrap();
        fs::write(base.path().join("operator-token"), "x").unwrap();
        fs::create_dir(base.path().join("tls")).unwrap();
        DataDir::lock(base.path()).expect("the secrets of another scheduler are no stranger's");
    }

    #[test]
    fn a_replaced_file_has_the_mode_asked_for() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("secret.toml");
        fs::write(&path, "old").unwrap();
        write_atomically(&path, 0o600, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
