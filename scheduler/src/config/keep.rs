//! How long what is over is kept: nothing that grows with use is without a bound.

use std::time::Duration;

use humantime_serde::re::humantime::format_duration;
use serde::Deserialize;

use super::{ConfigError, DAY, LeaseConfig, MINUTE, MeasureConfig, YEAR, value, within};
use crate::store::retention::Subject;

/// How long rows are kept after they are over.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeepConfig {
    /// Events of the log since they were written. A site leaves about eight of some 150 bytes in a round, so a million sites a day
    /// fill 1.2 GB a day; a week is long enough to ask what happened on Monday.
    #[serde(with = "humantime_serde")]
    pub events: Duration,
    /// Rounds since a newer one of the same site and batch was made, with their assignments, leases and outcomes: reports and
    /// `sites show` lose them. A round takes about 2 KB.
    #[serde(with = "humantime_serde")]
    pub rounds: Duration,
    /// Assignments and leases since a newer choice of the same task was made: `sites show` lists the later ones only.
    #[serde(with = "humantime_serde")]
    pub moves: Duration,
    /// Measurements of sites since they were taken; at least `measure.site_max_age`. A site that still waits is chosen for by its
    /// place on the map alone.
    #[serde(with = "humantime_serde")]
    pub measurements: Duration,
    /// Sessions since they ended: why a crawl was lost is not known of older ones.
    #[serde(with = "humantime_serde")]
    pub sessions: Duration,
    /// Answers to submissions: one that is repeated later under its key counts as a new one.
    #[serde(with = "humantime_serde")]
    pub submissions: Duration,
    /// Quarantines and alarms of the map since they ended.
    #[serde(with = "humantime_serde")]
    pub quarantines: Duration,
    /// The history of embeddings since they were fitted: `embedding history` begins later.
    #[serde(with = "humantime_serde")]
    pub embeddings: Duration,
    /// Enrolment tokens since their time was over, whether they were used, revoked or neither: so long `agents tokens --all` lists
    /// them, and an agent that comes with one is told what became of it.
    #[serde(with = "humantime_serde")]
    pub enrolments: Duration,
}

impl Default for KeepConfig {
    fn default() -> Self {
        Self {
            events: 7 * DAY,
            rounds: 90 * DAY,
            moves: 7 * DAY,
            measurements: 90 * DAY,
            sessions: 30 * DAY,
            submissions: 7 * DAY,
            quarantines: YEAR,
            embeddings: YEAR,
            enrolments: 30 * DAY,
        }
    }
}

impl KeepConfig {
    /// How long rows of this subject are kept.
    pub const fn of(&self, subject: Subject) -> Duration {
        match subject {
            Subject::Rounds => self.rounds,
            Subject::Moves => self.moves,
            Subject::Measurements => self.measurements,
            Subject::Sessions => self.sessions,
            Subject::Submissions => self.submissions,
            Subject::Quarantines => self.quarantines,
            Subject::Embeddings => self.embeddings,
            Subject::Enrolments => self.enrolments,
        }
    }

    pub(super) fn validate(&self, lease: &LeaseConfig, measure: &MeasureConfig) -> Result<(), ConfigError> {
        let all = [
            ("keep.events", self.events),
            ("keep.rounds", self.rounds),
            ("keep.moves", self.moves),
            ("keep.measurements", self.measurements),
            ("keep.sessions", self.sessions),
            ("keep.submissions", self.submissions),
            ("keep.quarantines", self.quarantines),
            ("keep.embeddings", self.embeddings),
            ("keep.enrolments", self.enrolments),
        ];
        let lived = lease.life + lease.grace;
        for (key, keep) in all {
            within(key, keep, &(60 * MINUTE..=10 * YEAR))?;
            if keep < lived {
                let rule = format!("at least lease.life and lease.grace together ({})", format_duration(lived));
                return Err(value(key, rule, format_duration(keep)));
            }
        }
        if self.measurements < measure.site_max_age {
            let rule = format!("at least measure.site_max_age ({})", format_duration(measure.site_max_age));
            return Err(value("keep.measurements", rule, format_duration(self.measurements)));
        }
        Ok(())
    }
}
