//! Explains why the private Postgres ended or did not answer.

use std::path::Path;

use anyhow::anyhow;

use crate::machine::disk;

/// Minimum number of free bytes. If fewer bytes are free, the server may stop, because it writes
/// its write-ahead log in files of 16 MB.
pub(crate) const LEAST_ROOM: u64 = 32 << 20;
/// Number of lines at the end of the log that an error message quotes.
const SHOWN_LINES: usize = 5;

/// The error for a server that ended or never answered. The usual cause is a full disk.
pub(super) fn down(cluster: &Path, log: &Path, what: &str) -> anyhow::Error {
    let room = disk::space(cluster).map(|disk| disk.free);
    let (last, cluster) = (last_lines(log), cluster.display());
    let left = room.map_or_else(String::new, |room| format!(" ({} MB are free now)", room >> 20));
    // The log is checked too, because the disk may have room again: when the server ends, the space
    // of its temporary files is freed. In the log, an error's SQLSTATE follows the process id.
    if room.is_some_and(|room| room < LEAST_ROOM) || last.contains(&format!("] {} ", crate::store::DISK_FULL)) {
        return anyhow!(
            "the private Postgres {what}; the disk of {cluster} is or was full{left}: free some space and start again"
        );
    }
    anyhow!("the private Postgres {what}; its log {} ends with: {last}", log.display())
}

fn last_lines(log: &Path) -> String {
    match std::fs::read(log) {
        Ok(bytes) => tail(&String::from_utf8_lossy(&bytes)),
        Err(error) => format!("(unreadable: {error})"),
    }
}

/// The last lines of a text, joined into one line.
pub(super) fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        return "(no output)".to_owned();
    }
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_ended_on_a_full_disk_says_so_even_if_its_end_made_room() {
        let folder = tempfile::tempdir().unwrap();
        let cluster = folder.path().join("postgres");
        std::fs::create_dir(&cluster).unwrap();
        let log = folder.path().join("postgres.log");
        let line = |sqlstate: &str| format!("2026-11-24 10:00:00.123 UTC [7] {sqlstate} PANIC:  what happened\n");
        std::fs::write(&log, line("53100")).unwrap();
        let said = down(&cluster, &log, "ended (signal 6)").to_string();
        assert!(said.contains("is or was full (") && said.ends_with(": free some space and start again"), "{said}");
        std::fs::write(&log, line("XX000")).unwrap();
        // If the disk of the test's machine is nearly full, the error blames the disk instead.
        if disk::space(folder.path()).is_some_and(|disk| disk.free >= LEAST_ROOM) {
            let said = down(&cluster, &log, "ended (signal 6)").to_string();
            assert!(said.ends_with("XX000 PANIC:  what happened"), "{said}");
        }
    }
}
