//! Writes files that appear only when they are complete, and reads files, where `-` means standard
//! input.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;
use tempfile::NamedTempFile;

use crate::app::exit::usage;

/// The mode of new files, before the process's umask is applied.
const FILE_MODE: u32 = 0o666;

/// Makes an empty temporary file beside `file`. `write` renames the temporary file to `file` at the
/// end, so that a failed run leaves no partial file.
pub(super) fn beside(flag: &str, file: &Path) -> anyhow::Result<NamedTempFile> {
    if fs::metadata(file).is_ok_and(|there| !there.is_file()) {
        return Err(usage(format!("{flag} {}: it exists but is not a regular file", file.display())));
    }
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::Builder::new()
        .prefix(".landfall-")
        .permissions(Permissions::from_mode(FILE_MODE))
        .tempfile_in(folder)
        .with_context(|| format!("{flag} {}: create a file in its folder", file.display()))
}

/// Writes a file that appears only after `fill` has written the whole content.
pub(super) fn write(flag: &str, file: &Path, fill: impl FnOnce(&File) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let beside = beside(flag, file)?;
    fill(beside.as_file()).with_context(|| format!("{flag} {}: write", file.display()))?;
    beside.persist(file).with_context(|| format!("{flag} {}: move the finished file into place", file.display()))?;
    Ok(())
}

/// Opens a file, or standard input for `-`.
pub(super) fn open(path: &Path) -> anyhow::Result<Box<dyn BufRead>> {
    if is_stdin(path) {
        return Ok(Box::new(std::io::stdin().lock()));
    }
    let file = File::open(path).with_context(|| format!("read {}", path.display()))?;
    Ok(Box::new(BufReader::new(file)))
}

/// Maximum length of a file that is read as a whole, in bytes. The longest such file lists a fleet
/// of agents, at a few hundred bytes each.
const MAX_WHOLE: u64 = 64 << 20;

/// Reads a file, or standard input for `-`. Refuses a longer file than [`MAX_WHOLE`], so that an
/// endless one does not fill the memory.
pub(super) fn read_bytes(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = open(path)?.take(MAX_WHOLE + 1).read_to_end(&mut bytes);
    let length = read.with_context(|| format!("read {}", shown(path)))?;
    if u64::try_from(length).is_ok_and(|length| length > MAX_WHOLE) {
        return Err(usage(format!("{}: longer than {MAX_WHOLE} bytes", shown(path))));
    }
    Ok(bytes)
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// A file's name for messages; `-` is standard input.
pub(super) fn shown(path: &Path) -> String {
    if is_stdin(path) { "standard input".to_owned() } else { path.display().to_string() }
}
