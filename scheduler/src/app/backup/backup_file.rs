//! The file of a backup: writes it completely or not at all, and reads and verifies its manifest,
//! its other entries and their checksums.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::dump_and_secrets::Secrets;
use crate::machine::secret::hex;

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
    dump: impl FnOnce(&mut Writer<&'out File>) -> anyhow::Result<u64>,
) -> anyhow::Result<u64> {
    let time = u64::try_from(manifest.made_at.timestamp()).unwrap_or(0);
    let mut archive = Writer::new(out, time);
    archive.add(MANIFEST, &manifest.write()?).context("write the manifest")?;
    for (name, content) in secrets.files() {
        archive.add(name, content).with_context(|| format!("write {name}"))?;
    }
    dump(&mut archive)?;
    archive.finish().context("write the sums")?;
    Ok(out.metadata().context("read its length")?.len())
}

/// The block size of tar, in bytes.
const BLOCK: usize = 512;
const BLOCK_LENGTH: u64 = 512;
/// Size of the read buffer in bytes.
const CHUNK: usize = 1 << 16;
/// Name of the last entry.
const SUMS: &str = "SHA256SUMS";
/// Maximum size in bytes of an entry that is read into memory. Secrets, certificates and the
/// manifest are a few kilobytes long.
const SMALL: u64 = 1 << 20;

/// Writes the tar of a backup. The manifest is its first entry; the last one contains the SHA-256
/// sums of all other entries, in the format of `sha256sum -c`. A truncated file lacks the last
/// entry, so truncation is detected. People can inspect and verify a backup with standard tools.
///
/// The file is written as a stream. Only an entry's header is written after the entry's content,
/// because the header contains the content's length.
#[derive(Debug)]
pub(super) struct Writer<W> {
    out: W,
    sums: String,
    /// Modification time of every entry, in seconds since 1970.
    time: u64,
}

impl<W: Write + Seek> Writer<W> {
    pub(super) fn new(out: W, time: u64) -> Self {
        Self { out, sums: String::new(), time }
    }

    pub(super) fn add(&mut self, name: &str, mut content: &[u8]) -> io::Result<()> {
        self.add_stream(name, &mut content).map(drop)
    }

    /// Adds an entry whose length is known only after all of it has been read. Returns the length.
    pub(super) fn add_stream(&mut self, name: &str, content: &mut impl Read) -> io::Result<u64> {
        let at = self.out.stream_position()?;
        self.out.write_all(&[0; BLOCK])?;
        let (mut sum, mut length, mut buffer) = (Sha256::new(), 0, vec![0; CHUNK]);
        loop {
            let read = match content.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            sum.update(&buffer[..read]);
            self.out.write_all(&buffer[..read])?;
            length += u64::try_from(read).unwrap_or(u64::MAX);
        }
        let padding = length.next_multiple_of(BLOCK_LENGTH) - length;
        self.out.write_all(&[0; BLOCK][..usize::try_from(padding).unwrap_or(0)])?;
        let end = self.out.stream_position()?;
        self.out.seek(SeekFrom::Start(at))?;
        self.out.write_all(&header(name, length, self.time))?;
        self.out.seek(SeekFrom::Start(end))?;
        self.sums.push_str(&format!("{}  {name}\n", hex(&sum.finalize())));
        Ok(length)
    }

    /// Adds the entry with the SHA-256 sums, and the two empty blocks that end a tar.
    pub(super) fn finish(mut self) -> io::Result<W> {
        let sums = std::mem::take(&mut self.sums);
        self.add(SUMS, sums.as_bytes())?;
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// The header of an entry in the format `ustar`. A length of 8 GiB or more is written in binary,
/// which every program for tar files can read.
fn header(name: &str, length: u64, time: u64) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name.as_bytes());
    put(100, b"0000600\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    if length < 1 << 33 {
        put(124, format!("{length:011o}\0").as_bytes());
    } else {
        put(124, &[0x80]);
        put(128, &length.to_be_bytes());
    }
    put(136, format!("{time:011o}\0").as_bytes());
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// The position of an entry's content in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EntrySpan {
    pub(super) at: u64,
    pub(super) length: u64,
}

/// Reads the first entry, which must be called `name`.
pub(super) fn first<R: Read + Seek>(file: &mut R, name: &str) -> anyhow::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(0)).context("read it")?;
    let foreign = || anyhow!("it is not a backup of landfall: it does not begin with {name}");
    let mut block = [0; BLOCK];
    file.read_exact(&mut block).map_err(|_| foreign())?;
    let Some((found, length)) = entry(&block) else { return Err(foreign()) };
    ensure!(found == name && length <= SMALL, foreign());
    let mut content = vec![0; usize::try_from(length).unwrap_or(0)];
    file.read_exact(&mut content).map_err(cut)?;
    Ok(content)
}

/// Reads the whole file and verifies every SHA-256 sum. Returns the position of each entry. Rejects
/// a truncated or damaged file.
pub(super) fn check<R: Read + Seek>(file: &mut R) -> anyhow::Result<BTreeMap<String, EntrySpan>> {
    file.seek(SeekFrom::Start(0)).context("read it")?;
    let (mut spans, mut found, mut at) = (BTreeMap::new(), String::new(), 0);
    loop {
        let mut block = [0; BLOCK];
        file.read_exact(&mut block).map_err(cut)?;
        at += BLOCK_LENGTH;
        let (name, length) = entry(&block).ok_or_else(|| anyhow!("it is damaged: no entry begins at byte {at}"))?;
        if name == SUMS {
            ensure!(length <= SMALL, "it is damaged: {SUMS} is too long");
            let mut told = Vec::new();
            file.by_ref().take(length).read_to_end(&mut told).context("read it")?;
            ensure!(
                u64::try_from(told.len()).is_ok_and(|read| read == length),
                cut(io::ErrorKind::UnexpectedEof.into())
            );
            compare(&found, &String::from_utf8_lossy(&told))?;
            return Ok(spans);
        }
        let (mut sum, mut rest, mut buffer) = (Sha256::new(), length, vec![0; CHUNK]);
        while rest > 0 {
            let wanted = usize::try_from(rest).unwrap_or(CHUNK).min(CHUNK);
            file.read_exact(&mut buffer[..wanted]).map_err(cut)?;
            sum.update(&buffer[..wanted]);
            rest -= u64::try_from(wanted).unwrap_or(0);
        }
        found.push_str(&format!("{}  {name}\n", hex(&sum.finalize())));
        spans.insert(name, EntrySpan { at, length });
        let end = (at + length).next_multiple_of(BLOCK_LENGTH);
        at = file.seek(SeekFrom::Start(end)).context("read it")?;
    }
}

fn compare(found: &str, told: &str) -> anyhow::Result<()> {
    if found == told {
        return Ok(());
    }
    let differs = found.lines().find(|line| !told.lines().any(|told| told == *line));
    match differs.and_then(|line| line.split_once("  ")) {
        Some((_, name)) => bail!("it is damaged: the checksum of {name} differs from the one in {SUMS}"),
        None => bail!("it is damaged: an entry of {SUMS} is missing"),
    }
}

/// Reads the content of a small entry.
pub(super) fn small<R: Read + Seek>(file: &mut R, span: EntrySpan) -> anyhow::Result<Vec<u8>> {
    ensure!(span.length <= SMALL, "an entry is too long");
    file.seek(SeekFrom::Start(span.at)).context("read it")?;
    let mut content = vec![0; usize::try_from(span.length).unwrap_or(0)];
    file.read_exact(&mut content).context("read it")?;
    Ok(content)
}

fn cut(error: io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => anyhow!("it is truncated: it ends before {SUMS}, the last entry of a backup"),
        _ => anyhow::Error::new(error).context("read it"),
    }
}

/// The name and the length of the entry whose header is in this block; `None` if the block is not a
/// header.
fn entry(block: &[u8; BLOCK]) -> Option<(String, u64)> {
    let told = octal(&block[148..156])?;
    let sum: u64 =
        block.iter().enumerate().map(|(at, byte)| u64::from(if (148..156).contains(&at) { b' ' } else { *byte })).sum();
    if sum != told {
        return None;
    }
    let name = block[..100].split(|byte| *byte == 0).next().unwrap_or_default();
    let name = String::from_utf8(name.to_vec()).ok().filter(|name| !name.is_empty())?;
    let length = match block[124] {
        0x80 => u64::from_be_bytes(block[128..136].try_into().ok()?),
        _ => octal(&block[124..136])?,
    };
    // No file is longer than 64 PiB. The limit prevents overflows when callers add lengths.
    (length <= 1 << 56).then_some((name, length))
}

fn octal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?;
    u64::from_str_radix(text.trim_matches(|c| c == '\0' || c == ' '), 8).ok()
}

/// The name of the manifest in a backup.
pub(super) const MANIFEST: &str = "manifest.json";
/// The number of the backup format that this program writes.
pub(super) const FORMAT: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) format: u32,
    /// The version of Landfall that made the backup.
    pub(super) landfall: String,
    /// The time of the snapshot, by the database's clock.
    pub(super) made_at: DateTime<Utc>,
    /// The newest migration in the database.
    pub(super) schema: i64,
    /// The major versions of the Postgres server, and of the `pg_dump` that wrote the dump.
    pub(super) postgres: u32,
    pub(super) pg_dump: u32,
    /// SHA-256 of the operator's token and of the authority's certificate, hexadecimal. These
    /// hashes identify the backup's secrets, even if the backup does not contain the secrets.
    /// `None` if the database had no such hash.
    pub(super) operator_token_sha256: Option<String>,
    pub(super) ca_sha256: Option<String>,
    /// Whether the backup contains the secrets.
    pub(super) secrets: bool,
    pub(super) sites: i64,
    pub(super) agents: i64,
}

/// The fields that all formats share.
#[derive(Deserialize)]
struct FormHeader {
    format: u32,
    #[serde(default)]
    landfall: String,
}

impl Manifest {
    /// The manifest as JSON, which is the first entry of the backup.
    pub(super) fn write(&self) -> anyhow::Result<Vec<u8>> {
        let mut text = serde_json::to_vec_pretty(self).context("write the manifest")?;
        text.push(b'\n');
        Ok(text)
    }

    /// Parses a manifest. Rejects a format that this program does not know.
    pub(super) fn read(content: &[u8]) -> anyhow::Result<Self> {
        let form: FormHeader = serde_json::from_slice(content).context("it is damaged: its manifest cannot be read")?;
        if form.format != FORMAT {
            bail!(
                "it has format {} of landfall {}, but this landfall {} knows only format {FORMAT}: use the landfall \
                 that made it",
                form.format,
                form.landfall,
                env!("CARGO_PKG_VERSION")
            );
        }
        serde_json::from_slice(content).context("it is damaged: its manifest cannot be read")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn sample() -> Vec<u8> {
        let mut writer = Writer::new(Cursor::new(Vec::new()), 1_700_000_000);
        writer.add("manifest.json", b"{}").unwrap();
        writer.add("tls/ca.pem", b"").unwrap();
        let dump = vec![7; 3 * CHUNK + 5];
        assert_eq!(writer.add_stream("database.dump", &mut dump.as_slice()).unwrap(), 196_613);
        writer.finish().unwrap().into_inner()
    }

    #[test]
    fn what_was_written_is_found_whole() {
        let mut file = Cursor::new(sample());
        assert_eq!(first(&mut file, "manifest.json").unwrap(), b"{}");
        let spans = check(&mut file).unwrap();
        assert_eq!(spans.keys().collect::<Vec<_>>(), ["database.dump", "manifest.json", "tls/ca.pem"]);
        assert_eq!(spans["database.dump"].length, 196_613);
        assert_eq!(small(&mut file, spans["manifest.json"]).unwrap(), b"{}");
    }

    #[test]
    fn every_cut_and_every_damaged_byte_is_told() {
        let whole = sample();
        let sums_end = whole.len() - 2 * BLOCK;
        for cut_at in [0, 1, 511, 512, 700, 1_500, 100_000, sums_end - BLOCK] {
            let told = check(&mut Cursor::new(&whole[..cut_at])).unwrap_err().to_string();
            assert!(told.contains("it is truncated"), "{cut_at}: {told}");
        }
        for damaged_at in [3, 130, 512, 100_000, sums_end - BLOCK + 5] {
            let mut damaged = whole.clone();
            damaged[damaged_at] ^= 1;
            let told = check(&mut Cursor::new(damaged)).unwrap_err().to_string();
            assert!(told.contains("it is damaged"), "{damaged_at}: {told}");
        }
        for foreign in [&b"hello"[..], &[0; 2048]] {
            let told = first(&mut Cursor::new(foreign), "manifest.json").unwrap_err().to_string();
            assert!(told.contains("not a backup of landfall"), "{told}");
        }
    }

    #[test]
    fn tar_and_sha256sum_read_it() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("b.tar"), sample()).unwrap();
        let script = "tar xf b.tar && sha256sum -c --quiet SHA256SUMS";
        let mut shell = std::process::Command::new("sh");
        let status = shell.args(["-ec", script]).current_dir(directory.path()).status().unwrap();
        assert!(status.success());
    }

    #[test]
    fn lengths_beyond_what_octal_holds_are_read_as_written() {
        for length in [0, 5, (1 << 33) - 1, 1 << 33, 1 << 40] {
            assert_eq!(entry(&header("x", length, 0)), Some(("x".to_owned(), length)));
        }
    }
}
