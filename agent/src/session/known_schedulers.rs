//! The addresses of the fleet's schedulers: those that are configured, and those that a scheduler
//! reported.
//!
//! An agent starts with the first configured URL. If a session cannot be opened or breaks, the
//! agent moves on to the next URL. URLs that a scheduler reports come after the configured URLs,
//! and are kept only in memory.

use crate::config::{BadSchedulerUrl, SchedulerUrl};

/// Maximum number of reported URLs to keep. One database cannot serve this many schedulers.
const MOST: usize = 32;

#[derive(Debug, Clone)]
pub struct Schedulers {
    /// At least one URL. The configured URLs come first.
    known: Vec<SchedulerUrl>,
    configured: usize,
    now: usize,
}

impl Schedulers {
    pub fn try_new(texts: &[String]) -> Result<Self, BadSchedulerUrl> {
        let known = SchedulerUrl::parse_all(texts)?;
        Ok(Self { configured: known.len(), known, now: 0 })
    }

    pub fn current(&self) -> &SchedulerUrl {
        &self.known[self.now]
    }

    /// Moves on to the next scheduler, and from the last to the first.
    pub const fn move_on(&mut self) {
        self.now = (self.now + 1) % self.known.len();
    }

    /// Replaces the unconfigured URLs with those that the current scheduler reports. Ignores
    /// invalid URLs. If the current URL uses TLS, also ignores plaintext URLs; otherwise, ignores
    /// TLS URLs.
    pub fn learn(&mut self, others: &[String]) {
        let current = self.current().clone();
        self.known.truncate(self.configured);
        for other in others.iter().filter_map(|text| SchedulerUrl::parse(text).ok()).chain([current.clone()]) {
            let is_new = self.known.iter().all(|known| known.url != other.url);
            if other.tls == current.tls && is_new && self.known.len() < self.configured.saturating_add(MOST) {
                self.known.push(other);
            }
        }
        self.now = self.known.iter().position(|known| known.url == current.url).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(texts: &[&str]) -> Schedulers {
        Schedulers::try_new(&texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>()).unwrap()
    }

    fn tour(schedulers: &mut Schedulers, steps: usize) -> Vec<String> {
        let mut seen = Vec::new();
        for _ in 0..steps {
            seen.push(schedulers.current().url.port().unwrap().to_string());
            schedulers.move_on();
        }
        seen
    }

    #[test]
    fn configured_schedulers_are_tried_before_reported_ones() {
        let mut schedulers = of(&["http://127.0.0.1:1", "http://127.0.0.1:2"]);
        assert_eq!(tour(&mut schedulers, 3), ["1", "2", "1"]);
        let reported =
            ["http://127.0.0.1:1", "http://127.0.0.1:3", "https://127.0.0.1:4", "http://192.0.2.1:5", "what"];
        schedulers.learn(&reported.map(str::to_owned));
        assert_eq!(tour(&mut schedulers, 4), ["2", "3", "1", "2"], "the others are not spoken to like this one");
        assert_eq!(schedulers.current().url.port(), Some(3));
        schedulers.learn(&[]);
        assert_eq!(tour(&mut schedulers, 3), ["3", "1", "2"], "it has just answered");
        schedulers.learn(&[]);
        assert_eq!(tour(&mut schedulers, 3), ["3", "1", "2"]);
    }
}
