//! The section `[keep]`: how long finished data is kept.

use std::time::Duration;

use serde::Deserialize;

use crate::store::schema::retention::RetainedKind;

use super::error::{ConfigError, value};
use super::lease::LeaseConfig;
use super::measure::MeasureConfig;
use super::section::{DAY, MINUTE, Setting, YEAR, section, within};

section! {
    /// How long old rows are kept.
    KeepConfig "keep" {
        /// How long events stay in the log. In each round a site creates about eight events of some
        /// 150 bytes, so a million sites a day take 1.2 GB a day. With the default of a week, last
        /// Monday's events can still be looked up.
        events: Duration = 7 * DAY, 60 * MINUTE..=10 * YEAR;
        /// How long a round, with its assignments, leases and outcomes, is kept after a newer round
        /// of the same site and batch is created. Deleted rounds no longer appear in reports and
        /// `sites show`. A round takes about 2 KB.
        rounds: Duration = 90 * DAY, 60 * MINUTE..=10 * YEAR;
        /// How long assignments and leases are kept after a newer assignment of the same task. Once
        /// they are deleted, `sites show` lists only the later ones.
        moves: Duration = 7 * DAY, 60 * MINUTE..=10 * YEAR;
        /// How long measurements of sites are kept; at least `measure.site_max_age`. A waiting site
        /// whose measurements were deleted is assigned by its placement on the map alone.
        measurements: Duration = 90 * DAY, 60 * MINUTE..=10 * YEAR;
        /// How long sessions are kept after they end. If a crawl was lost in a deleted session, the
        /// cause is no longer known.
        sessions: Duration = 30 * DAY, 60 * MINUTE..=10 * YEAR;
        /// How long results of submissions are kept. After this time, a submission with the same
        /// key counts as new.
        submissions: Duration = 7 * DAY, 60 * MINUTE..=10 * YEAR;
        /// How long quarantines, and alarms of the map, are kept after they end.
        quarantines: Duration = YEAR, 60 * MINUTE..=10 * YEAR;
        /// How long an embedding stays in the history after its fit. `embedding history` lists only
        /// the embeddings that are still kept.
        embeddings: Duration = YEAR, 60 * MINUTE..=10 * YEAR;
        /// How long an enrolment token is kept after it expires, whether it was used, revoked or
        /// neither. Until a token is deleted, `agents tokens --all` lists it, and an agent that
        /// uses it learns why it is invalid.
        enrolments: Duration = 30 * DAY, 60 * MINUTE..=10 * YEAR;
        /// How long each minute's throughput is kept. A batch adds a row of some 60 bytes in each
        /// minute in which one of its crawls ends.
        minutes: Duration = 90 * DAY, 60 * MINUTE..=10 * YEAR;
    }
}

impl KeepConfig {
    /// The time for which rows of this kind are kept.
    pub const fn of(&self, subject: RetainedKind) -> Duration {
        match subject {
            RetainedKind::Rounds => self.rounds,
            RetainedKind::Moves => self.moves,
            RetainedKind::Measurements => self.measurements,
            RetainedKind::Sessions => self.sessions,
            RetainedKind::Submissions => self.submissions,
            RetainedKind::Quarantines => self.quarantines,
            RetainedKind::Embeddings => self.embeddings,
            RetainedKind::Enrolments => self.enrolments,
            RetainedKind::Minutes => self.minutes,
        }
    }

    /// Checks that all rows are kept for at least the life and grace of a lease, and measurements
    /// for at least as long as they are used.
    pub(super) fn check_life(&self, lease: &LeaseConfig, measure: &MeasureConfig) -> Result<(), ConfigError> {
        let rows = RetainedKind::ALL.map(|kind| (kind.key(), self.of(kind)));
        let all = [("keep.events", self.events)].into_iter().chain(rows);
        let lived = lease.life + lease.grace;
        if let Some((key, kept)) = all.into_iter().find(|(_, kept)| *kept < lived) {
            let rule = format!("at least lease.life and lease.grace together ({})", lived.said());
            return Err(value(key, rule, kept.said()));
        }
        if self.measurements < measure.site_max_age {
            let rule = format!("at least measure.site_max_age ({})", measure.site_max_age.said());
            return Err(value("keep.measurements", rule, self.measurements.said()));
        }
        Ok(())
    }
}
