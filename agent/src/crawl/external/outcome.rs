//! Derives the outcome of a crawl from how its external crawler ended.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use nix::sys::signal::Signal;

use super::external_crawl::Started;
use super::statistics::{Statistics, StatisticsError};
use crate::crawl::outcome::{CrawlEnd, Outcome, WalkEnd};
use crate::crawl::{Budget, Job, OutcomeKind, Policy, Trouble};
use crate::net::origin::Origin;

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
    pub(super) const NOTHING: Self =
        Self { kind: OutcomeKind::Unreachable, trouble: None, pages: 0, bytes: 0, errors: 0, message: String::new() };

    pub(super) fn outcome(self, started: Started, origin: Option<&Origin>) -> CrawlEnd {
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
            started_at: started.at,
            duration: started.began.elapsed(),
            rtt: None,
            origin: origin.map(ToString::to_string),
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

/// How a crawl ended if its command was never run.
pub(super) fn without_run(job: &Job, end: WalkEnd, started: Started) -> CrawlEnd {
    let (kind, trouble, message) = match end {
        WalkEnd::Blocked(blocker, reason) => (OutcomeKind::Blocked(blocker), None, reason),
        WalkEnd::Unreachable(trouble, reason) => (OutcomeKind::Unreachable, Some(trouble), reason),
        WalkEnd::NotPermitted(reason) => {
            tracing::debug!(site = job.name, reason, "the crawl got no permit for its address");
            return CrawlEnd::NotPermitted;
        }
        WalkEnd::Broken(reason) => return CrawlEnd::Broken(reason),
        WalkEnd::Cut(_) | WalkEnd::Exhausted | WalkEnd::Paused(_) => {
            let message = format!("{}: no answer within {:?}", job.name, job.policy.max_duration);
            (OutcomeKind::Unreachable, Some(Trouble::TimedOut), message)
        }
    };
    Verdict { kind, trouble, message, ..Verdict::NOTHING }.outcome(started, None)
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
}
