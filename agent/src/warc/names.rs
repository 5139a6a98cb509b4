//! The names of WARC files.

use std::time::SystemTime;

use super::fields::stamp;

pub(super) const OPEN: &str = ".warc.gz.open";
const CLOSED: &str = ".warc.gz";
const LINES: &str = ".jsonl";

/// The common name of a WARC file and its index, without suffixes: the agent's name, the time `at`
/// of the file's creation, and a number.
pub(super) fn stem(name: &str, at: SystemTime, number: u32) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
    let name: String = name.chars().take(100).map(|c| if is_plain(c) { c } else { '-' }).collect();
    format!("landfall-{name}-{}-{number:05}", stamp(at))
}

pub(super) fn open(stem: &str) -> String {
    format!("{stem}{OPEN}")
}

pub(super) fn closed(stem: &str) -> String {
    format!("{stem}{CLOSED}")
}

pub(super) fn lines(stem: &str) -> String {
    format!("{stem}{LINES}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_file_name_is_one_path_component_for_any_agent_name() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(86_400 * 365);
        assert_eq!(closed(&stem("a/../北京 1", at, 7)), "landfall-a-..----1-19710101000000-00007.warc.gz");
        assert!(stem(&"x".repeat(1000), at, u32::MAX).len() < 150);
    }
}
