//! Holds the evidence about a fleet, limits the bias and the spread of an agent's log ratios, and
//! defines what is found: the trust, its reason as text, the alarm, and the release from
//! quarantine.
//!
//! An agent that multiplies its measurements by a factor has a *bias*: its ratios are close
//! together, but far from one. An agent that reports arbitrary values, or values measured
//! elsewhere, has a *spread*. Bias and spread are judged separately, because a bias can be
//! estimated more precisely than a spread.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::gnp::Mesh;
use crate::model::stats::{count, median};
use crate::model::{AgentId, Rtt, words};

/// Milliseconds added to both round trips of a ratio, because differences below a millisecond come
/// from the hosts, not from the network.
pub(super) const SOFTENING: f64 = 1.0;

#[derive(Debug, Clone, Copy)]
pub struct TrustEvidence<'a> {
    pub mesh: &'a Mesh,
    /// The landmarks, in the order of their election.
    pub landmarks: &'a [AgentId],
    /// Measurements of sites, one list per site. A few dozen sites suffice.
    pub sites: &'a [Vec<(AgentId, Rtt)>],
    /// For each pair of agents with known positions, the shortest round trip that light allows.
    pub least: &'a BTreeMap<(AgentId, AgentId), Rtt>,
}

/// `ln(reported / expected)`, softened.
pub(super) fn log_ratio(reported: Rtt, expected: Rtt) -> f64 {
    ((reported.as_millis_f64() + SOFTENING) / (expected.as_millis_f64() + SOFTENING)).ln()
}

/// The evidence without the reports of the agents that are set aside.
pub(super) struct RemainingEvidence<'a> {
    pub(super) evidence: &'a TrustEvidence<'a>,
    pub(super) agents: Vec<AgentId>,
    /// Agents set aside: their measurements are not used in the rest of the judgement.
    pub(super) aside: BTreeSet<AgentId>,
}

impl<'a> RemainingEvidence<'a> {
    pub(super) fn new(evidence: &'a TrustEvidence<'a>) -> Self {
        Self { evidence, agents: evidence.mesh.agents().into_iter().collect(), aside: BTreeSet::new() }
    }

    /// All agents except `agent` and the agents set aside.
    pub(super) fn others(&self, agent: AgentId) -> impl Iterator<Item = AgentId> {
        self.agents.iter().copied().filter(move |&other| other != agent && !self.aside.contains(&other))
    }
}

words!(
    /// The kind of evidence for which an agent is quarantined.
    #[derive(PartialOrd, Ord)]
    Kind {
        /// Reported round trips are shorter than light allows.
        Light = "light",
        /// Agents report that they are near each other, but other agents' measurements contradict
        /// this.
        Collusion = "collusion",
        /// The agent's measurements contradict other agents' measurements of it.
        Asymmetry = "asymmetry",
        /// The agent's measurements contradict the map fitted to the other agents.
        Residual = "residual",
        /// The agent's measurements contradict the other landmarks' measurements of sites.
        Sites = "sites",
    }
);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trust {
    /// The agent's measurements are used.
    Trusted,
    /// The agent's measurements are used, but the agent is doubtful and counts towards the alarm.
    Suspect,
    /// The agent's measurements are not used.
    Quarantined,
}

/// The result of judging a doubtful agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    pub kind: Kind,
    pub trust: Trust,
    /// The reason, with figures, for display.
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct FleetTrust {
    pub(super) findings: BTreeMap<AgentId, Finding>,
    /// For each agent, the kinds of evidence that sufficed to judge it.
    pub(super) heard: BTreeMap<AgentId, BTreeSet<Kind>>,
    pub(super) landmarks: Vec<AgentId>,
}

impl FleetTrust {
    /// The finding on an agent; `None` if the agent is trusted.
    pub fn finding(&self, agent: AgentId) -> Option<&Finding> {
        self.findings.get(&agent)
    }

    /// All doubtful agents, with their findings.
    pub const fn findings(&self) -> &BTreeMap<AgentId, Finding> {
        &self.findings
    }

    pub fn trust(&self, agent: AgentId) -> Trust {
        self.finding(agent).map_or(Trust::Trusted, |finding| finding.trust)
    }

    /// Whether there was enough evidence of this kind to judge the agent.
    pub fn heard(&self, agent: AgentId, kind: Kind) -> bool {
        self.heard.get(&agent).is_some_and(|kinds| kinds.contains(&kind))
    }

    pub fn quarantined(&self) -> BTreeSet<AgentId> {
        let held = self.findings.iter().filter(|(_, finding)| finding.trust == Trust::Quarantined);
        held.map(|(&agent, _)| agent).collect()
    }
}

/// Minimum number of measurements needed to locate a host, and of log ratios needed to judge an
/// agent.
pub(super) const FEWEST: usize = 3;
/// Factor that converts the median absolute deviation (MAD) of normal values to their
/// standard deviation.
const MAD_SCALE: f64 = 1.4826;
/// The standard error of a median is this factor times the standard deviation, divided by the root
/// of the count.
const MEDIAN_ERROR: f64 = 1.2533;
/// Minimum of the standard deviation assumed among honest agents, as a log ratio. This minimum
/// prevents a division by zero in a network without noise.
const LEAST_DEVIATION: f64 = 0.03;
/// An agent is quarantined if its bias differs from the typical bias by at least this many standard
/// deviations, and by at least the minimum log ratio for the kind of evidence. With normal errors,
/// one honest agent in fifteen thousand reaches this limit by chance.
const FAR_BIAS: f64 = 4.0;
/// An agent is suspect if its bias differs from the typical bias by at least this many standard
/// deviations. It is practically impossible for a third of the landmarks to reach this limit by
/// chance, and so to raise the alarm.
const ODD_BIAS: f64 = 3.0;
/// An agent with a spread of at least 0.55 (as a log ratio) is quarantined if its spread exceeds
/// the typical spread by this many standard deviations. This limit is greater than [`FAR_BIAS`],
/// because the noise of honest agents' paths has heavy tails.
const FAR_SPREAD: f64 = 5.0;
/// The limit for agents with a spread below 0.55. An agent whose spread exceeds the typical spread
/// by this many standard deviations is quarantined if its spread is at least 0.5, and only suspect
/// if its spread is from 0.35 to 0.5.
const FARTHER_SPREAD: f64 = 10.0;

/// Limits on bias and spread. An agent gets the value `trust` if its bias or its spread reaches the
/// limits.
#[derive(Debug, Clone, Copy, PartialEq)]
struct BiasLimits {
    /// Minimum deviation from the typical bias: as a log ratio, and as a number of standard
    /// deviations. A bias must reach both limits.
    bias: (f64, f64),
    /// Minimum spread as a log ratio, and minimum excess over the typical spread as a number of
    /// standard deviations. A spread must reach both limits.
    spread: (f64, f64),
    trust: Trust,
}

impl Kind {
    /// The limits for this kind of evidence, the most severe first.
    const fn limits(self) -> [BiasLimits; 3] {
        let ([bias, odd_bias], [far, near, odd]) = match self {
            // Light and collusion are judged by counts of reports, so they have no limits on bias
            // or spread.
            Self::Light | Self::Collusion => ([f64::INFINITY; 2], [f64::INFINITY; 3]),
            // A bias below 15 % (0.14 as a logarithm) is tolerated, because it changes a map no
            // more than the usual noise of twelve honest landmarks' measurements does.
            Self::Asymmetry => ([0.14, 0.1], [0.55, 0.5, 0.35]),
            Self::Residual => ([0.3, 0.3], [0.55, 0.5, 0.35]),
            Self::Sites => ([0.35, 0.35], [0.55, 0.5, 0.35]),
        };
        [
            BiasLimits { bias: (bias, FAR_BIAS), spread: (far, FAR_SPREAD), trust: Trust::Quarantined },
            BiasLimits { bias: (bias, FAR_BIAS), spread: (near, FARTHER_SPREAD), trust: Trust::Quarantined },
            BiasLimits { bias: (odd_bias, ODD_BIAS), spread: (odd, FARTHER_SPREAD), trust: Trust::Suspect },
        ]
    }
}

/// The deviation of an agent's reports from the expected values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ReportBias {
    /// The median log ratio; positive if the agent reports round trips that are too long.
    pub(super) bias: f64,
    /// The median distance between the log ratios and the bias.
    pub(super) spread: f64,
    /// The distance from the bias that two thirds of the log ratios do not exceed. For normally
    /// distributed log ratios, it is about one standard deviation.
    deviation: f64,
    /// Number of log ratios.
    pub(super) rows: usize,
}

impl ReportBias {
    /// Computes the bias and the spread; `None` if there are fewer than `fewest` ratios.
    pub(super) fn of(ratios: &[f64], fewest: usize) -> Option<Self> {
        let rows = ratios.len();
        let bias = median(ratios.to_vec())?;
        let away = sorted(ratios.iter().map(|ratio| (ratio - bias).abs()).collect());
        // The deviation is not computed from the median distance, which can be zero: with a coarse
        // clock, half of the log ratios may be equal.
        let (spread, deviation) = (*away.get(rows / 2)?, *away.get(rows * 2 / 3)?);
        (rows >= fewest).then_some(Self { bias, spread, deviation, rows })
    }

    /// Subtracts from the bias the part that it shares with `control`: the error that the judged
    /// agent does not cause.
    pub(super) fn beyond(self, control: &Self) -> Self {
        let shared =
            if self.bias > 0.0 { control.bias.clamp(0.0, self.bias) } else { control.bias.clamp(self.bias, 0.0) };
        Self { bias: self.bias - shared, ..self }
    }

    /// The size of the whole error: the bias, without its sign, plus the spread.
    pub(super) fn far(&self) -> f64 {
        self.bias.abs() + self.spread
    }
}

/// The typical bias and spread of the agents that are not set aside.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct TypicalSize {
    /// `bias`, `spread` and `deviation` are medians over the agents. `bias_deviation` and
    /// `spread_deviation` are scaled median absolute deviations.
    bias: f64,
    bias_deviation: f64,
    pub(super) spread: f64,
    spread_deviation: f64,
    deviation: f64,
}

impl TypicalSize {
    pub(super) fn of<'a>(sizes: impl Iterator<Item = &'a ReportBias>) -> Self {
        let sizes: Vec<&ReportBias> = sizes.collect();
        let (bias, bias_deviation) = center(&sizes.iter().map(|size| size.bias).collect::<Vec<f64>>());
        let (spread, spread_deviation) = center(&sizes.iter().map(|size| size.spread).collect::<Vec<f64>>());
        let deviation = median(sizes.iter().map(|size| size.deviation).collect()).unwrap_or(0.0);
        Self { bias, bias_deviation, spread, spread_deviation, deviation }
    }

    /// The difference between the agent's bias and the typical bias, in standard deviations. The
    /// standard deviation combines the deviation of all agents' biases with the standard error of
    /// the judged agent's bias.
    fn z_of_bias(&self, size: &ReportBias) -> f64 {
        let rows = count(size.rows.max(1));
        let error = MEDIAN_ERROR * size.deviation.max(self.deviation) / rows.sqrt();
        (size.bias - self.bias).abs() / self.bias_deviation.hypot(error).max(LEAST_DEVIATION)
    }

    fn z_of_spread(&self, size: &ReportBias) -> f64 {
        (size.spread - self.spread) / self.spread_deviation.max(LEAST_DEVIATION)
    }

    pub(super) fn trust(&self, kind: Kind, size: &ReportBias) -> Trust {
        let off = (size.bias - self.bias).abs();
        let reached = kind.limits().into_iter().find(|limits| {
            let (bias, spread) = (limits.bias, limits.spread);
            (off >= bias.0 && self.z_of_bias(size) >= bias.1)
                || (size.spread >= spread.0 && self.z_of_spread(size) >= spread.1)
        });
        reached.map_or(Trust::Trusted, |limits| limits.trust)
    }

    /// Whether the agent's bias differs from the typical bias by at least the agent's spread.
    fn is_biased(&self, size: &ReportBias) -> bool {
        (size.bias - self.bias).abs() >= size.spread
    }
}

/// The median and the scaled median absolute deviation of the values; zeros if there are no values.
fn center(values: &[f64]) -> (f64, f64) {
    let center = median(values.to_vec()).unwrap_or(0.0);
    let away = median(values.iter().map(|value| (value - center).abs()).collect()).unwrap_or(0.0);
    (center, MAD_SCALE * away)
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// The reason for doubting an agent, as text for the operator.
pub(super) fn reason(kind: Kind, size: &ReportBias, believed: &TypicalSize, landmarks: usize) -> String {
    let rows = size.rows;
    let against = match kind {
        Kind::Light => "light".to_owned(),
        Kind::Collusion => "the others".to_owned(),
        Kind::Asymmetry => format!("what {rows} others measured of it"),
        Kind::Residual => format!("where {rows} others place it"),
        Kind::Sites => format!("where the other {} landmarks place {rows} sites", landmarks.saturating_sub(1)),
    };
    if believed.is_biased(size) {
        let way = if size.bias > 0.0 { "too long" } else { "too short" };
        let factor = size.bias.abs().exp();
        return format!("its reports are {way}: off by a factor of {factor:.2} in the median from {against}");
    }
    format!(
        "its reports are both too long and too short: off by a factor of {:.2} in the median from {against} (others: \
         {:.2})",
        size.spread.exp(),
        believed.spread.exp()
    )
}

/// The reason for doubting an agent's claims, as text for the operator.
pub(super) fn claims(size: &ReportBias, landmarks: usize) -> String {
    let (factor, rows) = ((-size.bias).exp(), size.rows);
    format!(
        "its claims are too short: off by a factor of {factor:.2} in the median from where {landmarks} landmarks place {rows} \
         sites it confirmed"
    )
}

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
