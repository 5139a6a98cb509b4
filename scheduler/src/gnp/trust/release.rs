//! When an agent leaves quarantine: how often it must be found consistent, and what it must measure
//! again first.

use std::time::Duration;

use super::finding::{FleetTrust, Kind, Trust};
use crate::model::AgentId;

/// Number of consecutive judgements that must find an agent consistent, each from newer
/// measurements, before the agent is trusted again.
pub const CONSISTENT: i32 = 3;
/// Number of sites that an agent must measure again if it was quarantined for its reports about
/// sites. The number is 1.5 times the minimum for a judgement, because some sites do not answer.
pub const PROBATION_SITES: i64 = 12;
/// Age after which an agent quarantined for its reports about sites repeats a site's measurement.
/// This age is short enough to release the agent within an hour, and long enough not to burden
/// sites.
pub const PROBATION_AGE: Duration = Duration::from_secs(600);

/// Whether an agent's measurements are consistent again. `evidence` is the kind of evidence for
/// which the agent was quarantined.
pub fn is_consistent(judgement: &FleetTrust, agent: AgentId, evidence: Kind) -> bool {
    let counted = matches!(evidence, Kind::Light | Kind::Collusion);
    (counted || judgement.heard(agent, evidence)) && judgement.trust(agent) == Trust::Trusted
}
