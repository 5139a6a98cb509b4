//! What crawls teach of the way between agents and sites.
//!
//! A crawl's round trip is evidence, not truth: one is noisy, and an old one is stale. So what is believed of a pair is the mean of the
//! logarithms of the map's prediction (or the probes' measurement) and of its crawls, each weighed by how sure it is: a prediction by its
//! own spread, a crawl by [`CRAWL_SPREAD`] and less the older it is (conjugate normal means: Gelman et al., "Bayesian data analysis", 2013,
//! 2.5). One crawl never counts for everything, as the prediction never counts for nothing.
//!
//! What the map gets wrong of an agent's crawled sites it probably gets wrong of its other sites too, most of all of those that are alike:
//! the mean log ratio of an agent's crawls corrects its other predictions, drawn towards nothing by `PRIOR_LESSONS` lessons that say "no
//! error", and what that leaves over of crawls of alike sites corrects those more (`strategy::alike`). What pages take longer than probes is
//! common to all, and taken out first.

pub(super) mod alike;
pub mod confidence;
pub(crate) mod contradiction;
pub(super) mod explore;

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::model::{AgentId, Rtt, SiteId, stats};

use super::{Candidate, Spread};
use crate::strategy::learned::alike::{Alike, Told};

pub use crate::strategy::learned::alike::Near;

/// How sure one crawl is of a pair's round trip, as a standard deviation of its logarithm: medians over a crawl's pages repeat within some
/// ten per cent, and servers differ from day to day.
pub const CRAWL_SPREAD: f64 = 0.1;
/// How sure a prediction is whose spread is not known: the 90th percentile of errors in measured networks (docs/accuracy.md).
pub const UNKNOWN_SPREAD: f64 = 0.3;
/// What a map's own spread leaves out, beside it: it knows where a site may lie, not what no map says. Of predictions of agents in reach of the
/// nearest, which a choice is made among, half are off by more than 13 % where the map's own spread says 9 %, and a quarter by more than
/// 40 %: a crawl must not be outweighed by such a prediction. Half as much or half again changes what is learned by less than seeds do.
const UNTOLD_SPREAD: f64 = 0.2;
/// How sure probes are: they are many, and warm.
pub const PROBE_SPREAD: f64 = 0.05;
/// Spreads below are not believed: no map is that sure.
const LEAST_SPREAD: f64 = 0.03;
/// Lessons without an error that stand against those an agent has taught.
const PRIOR_LESSONS: f64 = 5.0;
/// No lesson is believed beyond this log ratio: a factor of four is a broken crawl, or another site.
const MOST: f64 = 1.4;
/// After this time a crawl counts half: routes change over weeks.
pub const HALF_LIFE: Duration = Duration::from_secs(7 * 86_400);

/// A network: what an address has in common with its neighbours, 24 bits of IPv4 and 48 of IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Network(u64);

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self(u64::from(v4.to_bits() >> 8)),
            IpAddr::V6(v6) => Self(1 << 63 | u64::try_from(v6.to_bits() >> 80).unwrap_or(0)),
        }
    }
}

/// What one crawl says of the map.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lesson {
    pub agent: AgentId,
    pub site: SiteId,
    /// The site's network, where its address is known.
    pub network: Option<Network>,
    /// The round trip that was known before.
    pub known: Rtt,
    /// Whether probes had measured that; else it was predicted.
    pub probed: bool,
    /// Whether the agent got the site by its prediction: then the prediction errs towards near, as a rule, and says nothing of the agent.
    pub preferred: bool,
    /// The one the crawl saw.
    pub crawled: Rtt,
    /// How much it counts: 1 now, and less the older it is ([`weight`]).
    pub weight: f64,
}

/// How much a crawl of this age counts.
pub fn weight(age: Duration) -> f64 {
    0.5_f64.powf(age.as_secs_f64() / HALF_LIFE.as_secs_f64())
}

/// What all lessons come to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Lessons {
    /// What pages take longer than probes, as a log ratio.
    bias: f64,
    by_agent: HashMap<AgentId, f64>,
    alike: Alike,
}

/// The weighted sum of log ratios, and the weights.
#[derive(Debug, Clone, Copy, Default)]
struct Sum(f64, f64);

impl Sum {
    fn add(&mut self, ratio: f64, weight: f64) {
        self.0 += ratio * weight;
        self.1 += weight;
    }

    fn shrunk(self) -> f64 {
        self.0 / (self.1 + PRIOR_LESSONS)
    }
}

impl Lessons {
    /// Sums up; `measured` is what probers measured of the lessons' sites, by which sites are alike. What pages take longer is told by pairs
    /// that probes had measured alone.
    pub fn of(lessons: &[Lesson], measured: &HashMap<SiteId, Vec<(AgentId, Rtt)>>) -> Self {
        let told = |lesson: &Lesson| ln(lesson.crawled) - ln(lesson.known);
        let bias = shrunk_median(lessons.iter().filter(|lesson| lesson.probed).map(told).collect());
        let ratio = |lesson: &Lesson| (told(lesson) - bias).clamp(-MOST, MOST);
        let mut agents: HashMap<AgentId, Sum> = HashMap::new();
        for lesson in lessons.iter().filter(|lesson| !lesson.probed && !lesson.preferred) {
            agents.entry(lesson.agent).or_default().add(ratio(lesson), lesson.weight);
        }
        let by_agent: HashMap<AgentId, f64> = agents.into_iter().map(|(agent, sum)| (agent, sum.shrunk())).collect();
        let told = |lesson: &Lesson| {
            // What the agent's own correction leaves.
            let residual = ratio(lesson) - by_agent.get(&lesson.agent).copied().unwrap_or(0.0);
            let Lesson { agent, site, network, weight, .. } = *lesson;
            Told { agent, site, network, residual, weight }
        };
        let alike = Alike::of(lessons.iter().filter(|lesson| !lesson.probed).map(told).collect(), measured);
        Self { bias, by_agent, alike }
    }

    /// A prediction, corrected by what the agent's crawls taught.
    pub fn corrected(&self, agent: AgentId, predicted: Rtt) -> Rtt {
        let of_agent = self.by_agent.get(&agent).copied().unwrap_or(0.0);
        round_trip(ln(predicted) + of_agent, predicted)
    }

    /// The crawls of sites that are alike a site in this network of which probers measured this. It looks at
    /// every crawled site that is known: not for a thread that serves others.
    pub fn near(&self, network: Option<Network>, measured: &[(AgentId, Rtt)]) -> Near {
        self.alike.near(measured, network)
    }

    /// What probes would have seen where a crawl saw this: without what pages take longer.
    pub fn probed(&self, crawled: Rtt) -> Rtt {
        round_trip(ln(crawled) - self.bias, crawled)
    }
}

/// A crawl of one site: who, what round trip it saw, and how much it counts ([`weight`]).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Crawled {
    pub agent: AgentId,
    /// The median round trip over its pages.
    pub rtt: Rtt,
    /// How much it counts.
    pub weight: f64,
}

/// What crawls of a site measured of it, one round trip an agent that is not among those that `measured` it: the map places the site by
/// these as well, so that an agent which proved farther than predicted moves its neighbours away too.
pub fn measured_by_crawls(lessons: &Lessons, measured: &[(AgentId, Rtt)], crawls: &[Crawled]) -> Vec<(AgentId, Rtt)> {
    let mut by_crawls: Vec<(AgentId, Rtt)> = Vec::new();
    for crawl in crawls {
        let known = |all: &[(AgentId, Rtt)]| all.iter().any(|(agent, _)| *agent == crawl.agent);
        if !known(measured) && !known(&by_crawls) {
            by_crawls.push((crawl.agent, lessons.probed(crawl.rtt)));
        }
    }
    by_crawls
}

/// Puts what crawls taught into the candidates for one site: a pair that was crawled has a measured distance, other predictions are
/// corrected. `crawls` are those of this site, `near` those of sites that are alike ([`Lessons::near`] of the same lessons).
pub fn teach(candidates: &mut [Candidate], lessons: &Lessons, near: &Near, crawls: &[Crawled]) {
    for one in candidates {
        let own: Vec<(Rtt, f64)> = crawls
            .iter()
            .filter(|crawl| crawl.agent == one.agent)
            .map(|crawl| (lessons.probed(crawl.rtt), crawl.weight))
            .collect();
        let corrected = |rtt: Option<Rtt>| rtt.map(|rtt| lessons.corrected(one.agent, rtt));
        let spread = one.spread.map_or(UNKNOWN_SPREAD, |spread| spread.ratio().hypot(UNTOLD_SPREAD));
        if let Some((last, _)) = own.first() {
            let prior =
                one.measured.map(|rtt| (rtt, PROBE_SPREAD)).or(corrected(one.predicted).map(|rtt| (rtt, spread)));
            one.measured = Some(prior.map_or(*last, |(prior, spread)| believed(prior, spread, &own)));
        }
        // The prediction stays the map's: with it goes what the next lesson is compared with.
        one.expected = corrected(one.expected.or(one.predicted));
        one.doubt = one.spread.map(|_| Spread::new(spread));
        if one.measured.is_none() {
            take_over(one, lessons, near, corrected(one.predicted), spread);
        }
    }
}

/// Moves what is expected by what crawls of alike sites say. What it exceeds the prediction by, since the agent might be far, shrinks as the
/// variance does.
fn take_over(one: &mut Candidate, lessons: &Lessons, near: &Near, predicted: Option<Rtt>, spread: f64) {
    let (Some(predicted), Some(expected)) = (predicted, one.expected) else { return };
    let Some((residual, left)) = lessons.alike.expects(near, one.agent, spread) else { return };
    let premium = (ln(expected) - ln(predicted)) * (left / spread).powi(2);
    one.expected = Some(round_trip(ln(predicted) + residual + premium, expected));
    one.doubt = one.doubt.map(|_| Spread::new(left));
}

/// The median, drawn towards nothing; a median, since a few crawls of slow servers say nothing of the others.
fn shrunk_median(mut ratios: Vec<f64>) -> f64 {
    ratios.sort_unstable_by(f64::total_cmp);
    let count = stats::count(ratios.len());
    ratios.get(ratios.len() / 2).copied().unwrap_or(0.0) * count / (count + PRIOR_LESSONS)
}

/// What is believed of a pair: `prior` is what the map or the probes say, this sure; `crawls` what its crawls saw
/// ([`Lessons::probed`]), and how much each counts.
pub fn believed(prior: Rtt, spread: f64, crawls: &[(Rtt, f64)]) -> Rtt {
    let precision = 1.0 / spread.max(LEAST_SPREAD).powi(2);
    let (mut sum, mut total) = (precision * ln(prior), precision);
    for (rtt, weight) in crawls {
        let precision = weight.clamp(0.0, 1.0) / (CRAWL_SPREAD * CRAWL_SPREAD);
        sum += precision * ln(*rtt);
        total += precision;
    }
    round_trip(sum / total, prior)
}

fn ln(rtt: Rtt) -> f64 {
    rtt.as_millis_f64().ln()
}

fn round_trip(log: f64, otherwise: Rtt) -> Rtt {
    Rtt::try_from_millis_f64(log.exp()).unwrap_or(otherwise)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, prop_assert, proptest};

    use super::*;

    fn rtt(millis: f64) -> Rtt {
        Rtt::try_from_millis_f64(millis).unwrap()
    }

    fn lesson(agent: i64, net: u8, known: f64, crawled: f64) -> Lesson {
        let network = Some(Network::from(IpAddr::from([10, 0, net, 7])));
        let (agent, site, known, crawled) = (AgentId::new(agent), SiteId::new(net.into()), rtt(known), rtt(crawled));
        Lesson { agent, site, network, known, probed: false, preferred: false, crawled, weight: 1.0 }
    }

    /// Of lessons whose sites nobody measured.
    fn learned(lessons: &[Lesson]) -> Lessons {
        Lessons::of(lessons, &HashMap::new())
    }

    #[test]
    fn a_crawl_outweighs_an_unsure_prediction_and_not_a_sure_one_and_age_takes_from_it() {
        let after = |spread, crawls: &[(Rtt, f64)]| believed(rtt(10.0), spread, crawls).as_millis_f64();
        assert!((after(0.3, &[]) - 10.0).abs() < 1e-3);
        // Nine tenths of the way between logarithms.
        assert!((after(0.3, &[(rtt(20.0), 1.0)]) - 18.66).abs() < 0.05);
        assert!((after(0.1, &[(rtt(20.0), 1.0)]) - 14.14).abs() < 0.05, "half the way");
        assert!(after(0.1, &[(rtt(20.0), 0.1)]) < 11.0, "an old one");
        assert!(after(0.1, &[(rtt(20.0), 1.0); 9]) > 18.0, "many agree");
        assert!((weight(HALF_LIFE) - 0.5).abs() < 1e-9);
    }

    /// What is expected of an agent's way to a site in this network, of which 10 ms are predicted.
    fn expected(lessons: &Lessons, agent: i64, net: u8) -> (f64, f64) {
        let agent = AgentId::new(agent);
        let mut one =
            [Candidate { predicted: Some(rtt(10.0)), spread: Some(Spread::new(0.3)), ..Candidate::new(agent, 1) }];
        let network = Some(Network::from(IpAddr::from([10, 0, net, 200])));
        teach(&mut one, lessons, &lessons.near(network, &[]), &[]);
        assert_eq!(one[0].predicted, Some(rtt(10.0)), "it stays the map's");
        (one[0].expected.unwrap().as_millis_f64(), one[0].doubt.unwrap().ratio())
    }

    #[test]
    fn an_agents_error_is_learned_slowly_and_its_network_first() {
        let one = learned(&[lesson(1, 1, 10.0, 20.0), lesson(2, 2, 10.0, 10.0), lesson(3, 3, 10.0, 10.0)]);
        let ((elsewhere, unsure), (beside, surer)) = (expected(&one, 1, 9), expected(&one, 1, 1));
        assert!((10.5..12.5).contains(&elsewhere), "one lesson moves it by a sixth: {elsewhere}");
        assert!((15.0..20.0).contains(&beside) && surer < unsure, "{beside} {surer} {unsure}");
        assert!((expected(&one, 2, 9).0 - 10.0).abs() < 0.01);
        let mut many = vec![lesson(1, 1, 10.0, 20.0); 50];
        many.extend(vec![lesson(2, 2, 10.0, 10.0); 60]);
        assert!(expected(&learned(&many), 1, 9).0 > 18.0);
    }

    #[test]
    fn who_was_chosen_for_its_prediction_teaches_of_alike_sites_alone() {
        let preferred = Lesson { preferred: true, ..lesson(1, 1, 10.0, 20.0) };
        let lessons = learned(&[preferred; 50]);
        assert!((expected(&lessons, 1, 9).0 - 10.0).abs() < 0.01);
        assert!(expected(&lessons, 1, 1).0 > 15.0);
        let probed = Lesson { probed: true, ..preferred };
        assert!(
            (expected(&learned(&[probed]), 1, 1).0 - 10.0).abs() < 0.01,
            "what pages take longer is no error of the map"
        );
    }

    #[test]
    fn what_all_pages_take_longer_corrects_nobody() {
        let lesson = |i: i64| Lesson { probed: i % 2 == 0, ..lesson(i % 10, 1, 10.0, 15.0) };
        let lessons = learned(&(0..100).map(lesson).collect::<Vec<Lesson>>());
        let corrected = lessons.corrected(AgentId::new(1), rtt(10.0)).as_millis_f64();
        assert!((corrected - 10.0).abs() < 0.5, "{corrected}");
        assert!((lessons.probed(rtt(15.0)).as_millis_f64() - 10.0).abs() < 0.5);
    }

    proptest! {
        #[test]
        fn what_is_believed_lies_between_what_was_said(
            prior in 0.1..1000.0_f64,
            spread in 0.0..3.0_f64,
            crawls in prop::collection::vec((0.1..1000.0_f64, 0.0..1.0_f64), 0..10),
        ) {
            let told: Vec<(Rtt, f64)> = crawls.iter().map(|(millis, weight)| (rtt(*millis), *weight)).collect();
            let believed = believed(rtt(prior), spread, &told).as_millis_f64();
            let all = || crawls.iter().map(|crawl| crawl.0).chain([prior]);
            prop_assert!(believed <= all().fold(0.0, f64::max) + 0.002);
            prop_assert!(believed >= all().fold(f64::INFINITY, f64::min) - 0.002);
        }
    }
}
