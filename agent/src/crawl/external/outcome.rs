//! One crawl by the operator's command, and its outcome, which is derived from how the command
//! ended and from the statistics that it may write to a file.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;

use nix::sys::signal::Signal;
use serde::Deserialize;
use tokio::time::Instant;

use crate::crawl::outcome::{CrawlEnd, Outcome};
use crate::crawl::policy_and_budget::Stopwatch;
use crate::crawl::{Budget, OutcomeKind, Policy, Trouble};
use crate::net::origin::Origin;

/// What the command crawls, and until when.
#[derive(Debug)]
pub(super) struct Target<'a> {
    pub(super) origin: &'a Origin,
    /// The site's address, to which the scheduler permits requests.
    pub(super) address: IpAddr,
    pub(super) watch: Stopwatch,
    pub(super) deadline: Instant,
}

/// How a crawler ended, unless the agent was told to stop it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Exited(ExitStatus),
    /// The agent ended the crawler because its time was up.
    OutOfTime,
}

/// The part of an outcome that depends on the crawler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) kind: OutcomeKind,
    pub(super) trouble: Option<Trouble>,
    pub(super) pages: u32,
    pub(super) bytes: u64,
    pub(super) errors: u32,
    pub(super) message: String,
}

impl Verdict {
    /// Nothing was fetched.
    const NOTHING: Self =
        Self { kind: OutcomeKind::Unreachable, trouble: None, pages: 0, bytes: 0, errors: 0, message: String::new() };

    pub(super) fn outcome(self, watch: Stopwatch, origin: &Origin) -> CrawlEnd {
        let Verdict { kind, trouble, pages, bytes, errors, message } = self;
        CrawlEnd::Outcome(Outcome {
            requests: 0,
            kind,
            pages,
            bytes,
            errors,
            refetched: 0,
            trapped: 0,
            hosts: Vec::new(),
            started_at: watch.started_at(),
            duration: watch.elapsed(),
            rtt: None,
            origin: Some(origin.to_string()),
            message,
            trouble,
        })
    }
}

/// The outcome of a crawl. Without valid statistics the number of pages is unknown: the outcome
/// reports zero pages, and is successful if the exit code is 0.
///
/// # Errors
/// Returns the reason instead of an outcome if the crawler was killed or could not be started,
/// because these failures say nothing about the site.
pub(super) fn judge(
    ending: Ending,
    statistics: &Result<Option<Statistics>, StatisticsError>,
    last_line: &str,
    policy: &Policy,
) -> Result<Verdict, String> {
    let (known, invalid) = match statistics {
        Ok(known) => (*known, None),
        Err(error) => (None, Some(error.to_string())),
    };
    let code = match ending {
        Ending::Exited(status) => exit_code(status).map_err(|crash| with(&crash, last_line))?,
        Ending::OutOfTime => 0,
    };
    let failure = (code != 0).then(|| with(&format!("the crawler ended with exit code {code}"), last_line));
    let message: Vec<String> = failure.clone().into_iter().chain(invalid).collect();
    let Statistics { pages, bytes, failures } = known.unwrap_or_default();
    let errors = if failure.is_some() { failures.max(1) } else { failures };
    let verdict = Verdict { pages, bytes, errors, message: message.join("; "), ..Verdict::NOTHING };
    let nothing = if known.is_some() { pages == 0 } else { failure.is_some() };
    if nothing {
        let (trouble, reason) = match ending {
            Ending::OutOfTime => (Trouble::TimedOut, "the crawler fetched no page in the time of the policy"),
            Ending::Exited(_) => (Trouble::Other, "the crawler fetched no page"),
        };
        let message = if verdict.message.is_empty() { reason.to_owned() } else { verdict.message };
        return Ok(Verdict { trouble: Some(trouble), message, ..verdict });
    }
    let kind = match ending {
        Ending::OutOfTime => OutcomeKind::Truncated(Budget::Duration),
        Ending::Exited(_) if pages >= policy.max_pages => OutcomeKind::Truncated(Budget::Pages),
        Ending::Exited(_) if bytes >= policy.max_bytes => OutcomeKind::Truncated(Budget::Bytes),
        Ending::Exited(_) => OutcomeKind::Complete,
    };
    Ok(Verdict { kind, ..verdict })
}

/// The exit code, or an error if a signal ended the crawler or the program could not be started.
/// Shells report a signal as 128 plus its number. Shells and containers return 125 to 127 if they
/// cannot start the program.
fn exit_code(status: ExitStatus) -> Result<i32, String> {
    let killed = |signal: i32| match Signal::try_from(signal) {
        Ok(signal) => format!("the crawler was killed by {signal}"),
        Err(_) => format!("the crawler was killed by signal {signal}"),
    };
    match (status.code(), status.signal()) {
        (Some(code @ 125..=127), _) => Err(format!("the crawler could not be started: exit code {code}")),
        (Some(code), _) => match Signal::try_from(code - 128) {
            Ok(_) => Err(format!("{} (exit code {code})", killed(code - 128))),
            Err(_) => Ok(code),
        },
        (None, signal) => Err(killed(signal.unwrap_or_default())),
    }
}

fn with(reason: &str, last_line: &str) -> String {
    if last_line.is_empty() { reason.to_owned() } else { format!("{reason}: {last_line}") }
}

/// Maximum size of the file in bytes. The file's three numbers need fewer than a hundred bytes.
const MAX_FILE: u64 = 4096;
/// The largest values that the scheduler can store.
const MAX_COUNT: u32 = i32::MAX.cast_unsigned();
const MAX_BYTES: u64 = i64::MAX.cast_unsigned();

/// What a crawler fetched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Statistics {
    pub(super) pages: u32,
    /// Body bytes of pages.
    pub(super) bytes: u64,
    /// Number of failed requests.
    pub(super) failures: u32,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum StatisticsError {
    #[error("read the statistics: {0}")]
    Read(io::Error),
    #[error("the statistics are not a regular file")]
    NotFile,
    #[error("the statistics have more than {MAX_FILE} bytes")]
    TooLarge,
    #[error("the statistics are no JSON object of pages, bytes and failures: {0}")]
    Invalid(serde_json::Error),
    #[error("the statistics' {field} is more than {max}")]
    OutOfRange { field: &'static str, max: u64 },
}

/// Reads the file; `None` if the crawler wrote none. Blocks.
pub(super) fn read_statistics(file: &Path) -> Result<Option<Statistics>, StatisticsError> {
    match std::fs::symlink_metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StatisticsError::Read(error)),
        // Reading a named pipe would never end.
        Ok(found) if !found.is_file() => return Err(StatisticsError::NotFile),
        Ok(_) => {}
    }
    let mut bytes = Vec::new();
    let file = File::open(file).map_err(StatisticsError::Read)?;
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(StatisticsError::Read)?;
    if u64::try_from(bytes.len()).is_ok_and(|bytes| bytes > MAX_FILE) {
        return Err(StatisticsError::TooLarge);
    }
    let statistics: Statistics = serde_json::from_slice(&bytes).map_err(StatisticsError::Invalid)?;
    let Statistics { pages, bytes, failures } = statistics;
    let (count, most) = (u64::from(MAX_COUNT), MAX_BYTES);
    let limits = [("pages", pages.into(), count), ("bytes", bytes, most), ("failures", failures.into(), count)];
    match limits.into_iter().find(|(_, value, max)| value > max) {
        Some((field, _, max)) => Err(StatisticsError::OutOfRange { field, max }),
        None => Ok(Some(statistics)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exited(code: i32) -> Ending {
        Ending::Exited(ExitStatus::from_raw(code << 8))
    }

    fn killed(signal: i32) -> Ending {
        Ending::Exited(ExitStatus::from_raw(signal))
    }

    fn fetched(pages: u32, bytes: u64, failures: u32) -> Result<Option<Statistics>, StatisticsError> {
        Ok(Some(Statistics { pages, bytes, failures }))
    }

    fn judged(
        ending: Ending,
        statistics: &Result<Option<Statistics>, StatisticsError>,
    ) -> Result<(OutcomeKind, u32, u32, String), String> {
        let policy = Policy { max_pages: 10, max_bytes: 1000, ..crate::crawl::tests::policy() };
        let Verdict { kind, pages, errors, message, .. } = judge(ending, statistics, "no route", &policy)?;
        Ok((kind, pages, errors, message))
    }

    #[test]
    fn exit_code_zero_is_complete_unless_a_budget_is_spent() {
        let said = String::new;
        let budget = OutcomeKind::Truncated;
        assert_eq!(judged(exited(0), &fetched(3, 10, 1)), Ok((OutcomeKind::Complete, 3, 1, said())));
        assert_eq!(judged(exited(0), &fetched(10, 10, 0)), Ok((budget(Budget::Pages), 10, 0, said())));
        assert_eq!(judged(exited(0), &fetched(3, 1000, 0)), Ok((budget(Budget::Bytes), 3, 0, said())));
        assert_eq!(judged(exited(0), &Ok(None)), Ok((OutcomeKind::Complete, 0, 0, said())));
        let nothing = "the crawler fetched no page".to_owned();
        assert_eq!(judged(exited(0), &fetched(0, 0, 4)), Ok((OutcomeKind::Unreachable, 0, 4, nothing)));
    }

    #[test]
    fn another_exit_code_fails_the_site_unless_pages_were_fetched() {
        let said = || "the crawler ended with exit code 8: no route".to_owned();
        assert_eq!(judged(exited(8), &Ok(None)), Ok((OutcomeKind::Unreachable, 0, 1, said())));
        assert_eq!(judged(exited(8), &fetched(0, 0, 0)), Ok((OutcomeKind::Unreachable, 0, 1, said())));
        assert_eq!(judged(exited(8), &fetched(3, 9, 2)), Ok((OutcomeKind::Complete, 3, 2, said())));
        let both = format!("{}; the statistics are not a regular file", said());
        assert_eq!(judged(exited(8), &Err(StatisticsError::NotFile)), Ok((OutcomeKind::Unreachable, 0, 1, both)));
    }

    #[test]
    fn invalid_statistics_are_reported_with_an_outcome() {
        let (kind, pages, errors, said) = judged(exited(0), &Err(StatisticsError::TooLarge)).unwrap();
        assert_eq!((kind, pages, errors), (OutcomeKind::Complete, 0, 0));
        assert_eq!(said, "the statistics have more than 4096 bytes");
    }

    #[test]
    fn the_end_of_the_time_truncates() {
        let cut = OutcomeKind::Truncated(Budget::Duration);
        assert_eq!(judged(Ending::OutOfTime, &Ok(None)), Ok((cut, 0, 0, String::new())));
        assert_eq!(judged(Ending::OutOfTime, &fetched(10, 5, 1)), Ok((cut, 10, 1, String::new())));
        let policy = crate::crawl::tests::policy();
        let nothing = judge(Ending::OutOfTime, &fetched(0, 0, 0), "", &policy).unwrap();
        assert_eq!((nothing.kind, nothing.trouble), (OutcomeKind::Unreachable, Some(Trouble::TimedOut)));
    }

    #[test]
    fn a_killed_crawler_says_nothing_about_the_site() {
        let cases = [
            (killed(11), "the crawler was killed by SIGSEGV: no route"),
            (killed(40), "the crawler was killed by signal 40: no route"),
            (exited(137), "the crawler was killed by SIGKILL (exit code 137): no route"),
            (exited(127), "the crawler could not be started: exit code 127: no route"),
        ];
        for (ending, expected) in cases {
            assert_eq!(judged(ending, &fetched(3, 9, 0)), Err(expected.to_owned()));
        }
        assert!(judged(exited(255), &Ok(None)).is_ok(), "255 is no signal");
    }

    fn read_text(text: &str) -> Result<Option<Statistics>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("statistics.json");
        std::fs::write(&file, text).unwrap();
        read_statistics(&file).map_err(|error| error.to_string())
    }

    #[test]
    fn absent_fields_are_zero_and_an_absent_file_is_no_error() {
        let all = Statistics { pages: 12, bytes: 40_960, failures: 1 };
        assert_eq!(read_text(r#"{"pages": 12, "bytes": 40960, "failures": 1}"#), Ok(Some(all)));
        assert_eq!(read_text("{}\n"), Ok(Some(Statistics::default())));
        assert!(matches!(read_statistics(Path::new("/nowhere/statistics.json")), Ok(None)));
    }

    #[test]
    fn invalid_statistics_are_refused_with_the_reason() {
        let cases = [
            ("", "EOF"),
            ("12", "invalid type"),
            (r#"{"page": 1}"#, "unknown field `page`"),
            (r#"{"pages": -1}"#, "invalid value: integer `-1`"),
            (r#"{"pages": 1.5}"#, "invalid type: floating point"),
            (r#"{"pages": 2147483648}"#, "pages is more than 2147483647"),
            (r#"{"failures": 4294967295}"#, "failures is more than 2147483647"),
            (r#"{"bytes": 9223372036854775808}"#, "bytes is more than 9223372036854775807"),
            (r#"{"bytes": 1e400}"#, "number out of range"),
        ];
        for (text, expected) in cases {
            let error = read_text(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let large = read_text(&format!("{{{}}}", " ".repeat(5000))).unwrap_err();
        assert_eq!(large, "the statistics have more than 4096 bytes");
        assert!(matches!(read_statistics(Path::new("/dev/zero")), Err(StatisticsError::NotFile)));
    }
}
