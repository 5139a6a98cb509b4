//! Fetches robots.txt again when its rules have expired during a crawl.

use super::visit_pages::Walk;
use crate::crawl::budget::Budget;
use crate::crawl::outcome::{Blocker, WalkEnd};
use crate::crawl::politeness::robots::{self, RobotsRules, RulesError};

impl Walk<'_> {
    /// Fetches robots.txt again if the rules have expired.
    pub(super) async fn renew_rules(&mut self) -> Result<(), WalkEnd> {
        if !self.rules.are_stale() {
            return Ok(());
        }
        // Drop the old rules first, so that their memory is free when the new rules need memory.
        self.rules = RobotsRules::none();
        self.rules = match robots::rules_of(self.fetcher, &self.site, self.robots).await {
            Ok(rules) => rules,
            Err(RulesError::Forbidden(reason) | RulesError::NoAnswer(_, reason)) => {
                return Err(WalkEnd::Blocked(Blocker::of_robots(self.fetcher.is_circuit_open()), reason));
            }
            Err(RulesError::OutOfTime) => return Err(WalkEnd::Cut(Budget::Duration)),
        };
        if let Some(delay) = self.rules.crawl_delay() {
            self.fetcher.politeness().slow_down(delay);
        }
        Ok(())
    }
}
