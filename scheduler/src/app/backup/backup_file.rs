//! Writes the backup's file, which only its owner can read: completely or not at all.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use super::archive;
use super::manifest::{MANIFEST, Manifest};
use super::secrets::Secrets;

/// The name under which a backup's file is written until it is complete.
pub(super) fn temporary(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

/// Writes a file that only its owner can read. The file is written completely or not at all.
pub(super) fn write<T>(file: &Path, force: bool, fill: impl FnOnce(&File) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let temporary = temporary(file);
    let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&temporary);
    let out = opened.with_context(|| format!("make {}", temporary.display()))?;
    match out.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            bail!("another process is writing a backup to {}: wait until it ends, or name another file", file.display())
        }
        Err(TryLockError::Error(error)) => return Err(error).with_context(|| format!("lock {}", temporary.display())),
    }
    let filled = (|| {
        // An interrupted backup may have left a partial file.
        out.set_len(0).and_then(|()| out.set_permissions(Permissions::from_mode(0o600))).context("empty it")?;
        let filled = fill(&out)?;
        out.sync_all().context("sync it")?;
        ensure!(force || !file.exists(), "{} was created in the meantime", file.display());
        fs::rename(&temporary, file).context("rename it")?;
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder).and_then(|folder| folder.sync_all()).context("sync its folder")?;
        Ok(filled)
    })();
    filled.map_err(|error: anyhow::Error| {
        // If the file cannot be removed, it only takes up disk space.
        drop(fs::remove_file(&temporary));
        error.context(format!("write {}", file.display()))
    })
}

/// Writes the content of a backup. Returns the length of the file in bytes.
pub(super) fn fill<'out>(
    out: &'out File,
    manifest: &Manifest,
    secrets: &Secrets,
    dump: impl FnOnce(&mut archive::Writer<&'out File>) -> anyhow::Result<u64>,
) -> anyhow::Result<u64> {
    let time = u64::try_from(manifest.made_at.timestamp()).unwrap_or(0);
    let mut archive = archive::Writer::new(out, time);
    archive.add(MANIFEST, &manifest.write()?).context("write the manifest")?;
    for (name, content) in secrets.files() {
        archive.add(name, content).with_context(|| format!("write {name}"))?;
    }
    dump(&mut archive)?;
    archive.finish().context("write the sums")?;
    Ok(out.metadata().context("read its length")?.len())
}
