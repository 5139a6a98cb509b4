//! Locks the folder of WARC files, and repairs the files after a crash.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use flate2::bufread::GzDecoder;

use super::records::ResponseLine;
use super::warc_file;
use crate::disk::folder::{FolderError, FolderPurpose};

/// Maximum bytes to read from the end of an index to find its last line. A line has a few hundred
/// bytes.
const TAIL: u64 = 1 << 20;

/// The folder is locked because two agents that shared it would write to each other's files.
pub(super) const FOLDER: FolderPurpose = FolderPurpose { what: "WARC files", otherwise: "use another folder" };

/// Locks the folder until the returned file is dropped, and completes the files that an earlier
/// process left open.
pub(super) fn take(folder: &Path) -> Result<File, FolderError> {
    let unusable = |source| FOLDER.unusable(folder, source);
    let lock = FOLDER.take(folder)?;
    for entry in fs::read_dir(folder).map_err(unusable)? {
        let name = entry.map_err(unusable)?.file_name();
        if let Some(stem) = name.to_str().and_then(|name| name.strip_suffix(warc_file::OPEN)) {
            mend(folder, stem).map_err(unusable)?;
        }
    }
    Ok(lock)
}

/// Completes a WARC file whose writer crashed. Removes everything after its last whole record. From
/// its index, removes incomplete lines and lines whose record is missing.
fn mend(folder: &Path, stem: &str) -> io::Result<()> {
    let [open, closed, lines] = [warc_file::open_name(stem), warc_file::closed_name(stem), warc_file::lines_name(stem)]
        .map(|name| folder.join(name));
    let warc = OpenOptions::new().read(true).write(true).open(&open)?;
    let lines_file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&lines)?;
    let end = end_of_records(&warc, &lines_file)?;
    let cut = warc.metadata()?.len().saturating_sub(end);
    tracing::info!(file = %closed.display(), cut_bytes = cut, "a WARC file that was left open is closed");
    if end == 0 {
        fs::remove_file(&lines)?;
        return fs::remove_file(&open);
    }
    warc.set_len(end)?;
    warc.sync_all()?;
    lines_file.sync_all()?;
    fs::rename(&open, &closed)
}

/// Returns the position after the last whole record. Removes the last lines of the index if their
/// records are not whole.
fn end_of_records(warc: &File, lines: &File) -> io::Result<u64> {
    while let Some((start, line)) = last_line(lines)? {
        // A line is written after its record, so all records before the last line's record are
        // whole. Start reading at the last line's record.
        if let Some(ResponseLine { offset, length, .. }) = line {
            let end = whole_until(warc, offset)?;
            if end >= offset.saturating_add(length) {
                return Ok(end);
            }
        }
        lines.set_len(start)?;
    }
    whole_until(warc, 0)
}

/// The position of the last whole line, and its content if valid. Removes everything after this
/// line. If the line is longer than [`TAIL`], only its end is read, and its content counts as
/// invalid.
fn last_line(lines: &File) -> io::Result<Option<(u64, Option<ResponseLine>)>> {
    let length = lines.metadata()?.len();
    let from = length.saturating_sub(TAIL);
    let mut tail = vec![0; usize::try_from(length - from).map_err(io::Error::other)?];
    lines.read_exact_at(&mut tail, from)?;
    let Some(end) = tail.iter().rposition(|byte| *byte == b'\n') else {
        lines.set_len(from)?;
        return if from == 0 { Ok(None) } else { last_line(lines) };
    };
    let start = tail[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
    let place = |index: usize| from + u64::try_from(index).expect("a length");
    lines.set_len(place(end + 1))?;
    Ok(Some((place(start), serde_json::from_slice(&tail[start..end]).ok())))
}

/// Reads gzip members from `from` on, and returns the position after the last whole member.
fn whole_until(warc: &File, from: u64) -> io::Result<u64> {
    let mut reader = BufReader::new(warc);
    reader.seek(SeekFrom::Start(from))?;
    let mut end = from;
    while is_whole(&mut reader) {
        end = reader.stream_position()?;
    }
    Ok(end)
}

/// Reads a member. Returns `false` if the member is incomplete or its checksum is wrong.
fn is_whole(reader: &mut BufReader<&File>) -> bool {
    if !reader.fill_buf().is_ok_and(|bytes| !bytes.is_empty()) {
        return false;
    }
    let mut decoder = GzDecoder::new(reader);
    let mut buffer = [0; 16 << 10];
    loop {
        match decoder.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}
