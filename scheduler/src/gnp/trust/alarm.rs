//! Raises the alarm of the map if too many landmarks are doubtful.

use std::fmt;

use super::finding::FleetTrust;

/// The alarm is raised if at least one in `ALARM_ONE_IN` landmarks is doubtful. If a third of the
/// landmarks lie, the honest landmarks are not a clear majority.
pub const ALARM_ONE_IN: usize = 3;

/// The map cannot be trusted, because too many landmarks are doubtful.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alarm {
    /// Number of landmarks that are suspect or quarantined.
    pub doubted: usize,
    pub landmarks: usize,
}

impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the map cannot be trusted: {} of {} landmarks are doubted", self.doubted, self.landmarks)
    }
}

impl FleetTrust {
    /// Returns the alarm if at least one in [`ALARM_ONE_IN`] landmarks is doubtful.
    pub fn alarm(&self) -> Option<Alarm> {
        let landmarks = self.landmarks.len();
        let doubted = self.landmarks.iter().filter(|landmark| self.findings.contains_key(landmark)).count();
        (doubted > 0 && doubted.saturating_mul(ALARM_ONE_IN) >= landmarks).then_some(Alarm { doubted, landmarks })
    }
}
