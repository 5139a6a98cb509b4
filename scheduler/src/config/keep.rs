//! The section `[keep]`: how long finished data is kept.

use std::time::Duration;

use serde::Deserialize;

use crate::store::schema::retention::RetainedKind;

use super::{ConfigError, DAY, LeaseConfig, MINUTE, MeasureConfig, Setting, YEAR, value, within};

section! {
    /// How long old rows are kept.
    KeepConfig "keep" {
        /// Events of the log, counted from their creation. In each round a site creates about eight
        /// events of some 150 bytes, so a million sites a day take 1.2 GB a day. With a week,
        /// events of last Monday can still be looked up.
        events: Duration = 7 * DAY, 60 * MINUTE..=10 * YEAR;
        /// Rounds, counted from the creation of a newer round of the same site and batch, with
        /// their assignments, leases and outcomes. Deleted rounds no longer appear in reports and
        /// `sites show`. A round takes about 2 KB.
        rounds: Duration = 90 * DAY, 60 * MINUTE..=10 * YEAR;
        /// Assignments and leases, counted from a newer assignment of the same task. `sites show`
        /// then lists only the later ones.
        moves: Duration = 7 * DAY, 60 * MINUTE..=10 * YEAR;
        /// Measurements of sites, counted from when they were made; at least
        /// `measure.site_max_age`. A waiting site whose measurements were deleted is assigned only
        /// by its placement on the map.
        measurements: Duration = 90 * DAY, 60 * MINUTE..=10 * YEAR;
        /// Sessions, counted from their end. If a crawl was lost in a deleted session, the cause is
        /// no longer known.
        sessions: Duration = 30 * DAY, 60 * MINUTE..=10 * YEAR;
        /// Results of submissions. After this time, a submission with the same key counts as new.
        submissions: Duration = 7 * DAY, 60 * MINUTE..=10 * YEAR;
        /// Quarantines, and alarms of the map, counted from their end.
        quarantines: Duration = YEAR, 60 * MINUTE..=10 * YEAR;
        /// The history of embeddings, counted from their fit. `embedding history` lists only these.
        embeddings: Duration = YEAR, 60 * MINUTE..=10 * YEAR;
        /// Enrolment tokens, counted from their expiry, whether used, revoked or neither. Until
        /// a token is deleted, `agents tokens --all` lists it, and an agent that uses it learns why
        /// it is invalid.
        enrolments: Duration = 30 * DAY, 60 * MINUTE..=10 * YEAR;
        /// Each minute's throughput, counted from that minute. A batch adds a row of some 60 bytes
        /// in each minute in which one of its crawls ends.
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
    pub(super) fn check_agreement(&self, lease: &LeaseConfig, measure: &MeasureConfig) -> Result<(), ConfigError> {
        let rows = RetainedKind::ALL.map(|kind| (kind.key(), self.of(kind)));
        let all = [("keep.events", self.events)].into_iter().chain(rows);
        let lived = lease.life + lease.grace;
        if let Some((key, keep)) = all.into_iter().find(|(_, keep)| *keep < lived) {
            let rule = format!("at least lease.life and lease.grace together ({})", lived.said());
            return Err(value(key, rule, keep.said()));
        }
        if self.measurements < measure.site_max_age {
            let rule = format!("at least measure.site_max_age ({})", measure.site_max_age.said());
            return Err(value("keep.measurements", rule, self.measurements.said()));
        }
        Ok(())
    }
}
