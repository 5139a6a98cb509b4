//! Writes the files of an enrolment, with their permissions and their owner.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::error::EnrolError;
use crate::disk::folder;

/// Writes a file atomically, and syncs the file and its folder. The token cannot be used again, so
/// the file must not be lost.
pub(super) fn write_atomically(path: &Path, content: &[u8], mode: u32) -> Result<(), EnrolError> {
    let failed = |source| EnrolError::Write { path: path.to_owned(), source };
    let temporary = path.with_extension("new");
    // Delete an old temporary file first, or the new file would keep the old file's permissions.
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(mode).open(&temporary).map_err(failed)?;
    let dir = path.parent().unwrap_or(Path::new("."));
    folder::leave_to_owner(&file, dir).map_err(failed)?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(failed)?;
    folder::rename(&temporary, path).map_err(failed)
}
