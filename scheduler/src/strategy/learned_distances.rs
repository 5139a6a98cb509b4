//! Learns from crawls: estimates the round trips between a site and its candidates, corrects the
//! map's predictions for each agent, explores agents whose distance is only predicted, and decides
//! whether a crawl contradicts the known round trip to its site.
//!
//! Because the round trip of a crawl is noisy and becomes outdated, the estimate for an agent and a
//! site is a weighted mean of the logarithms of the prior (the map's prediction or the probes'
//! measurement) and of the crawls' round trips. The weight of a prediction is computed from its
//! spread. The weight of a crawl is computed from [`CRAWL_SPREAD`] and the crawl's age. The
//! weighted mean is the posterior mean of a normal distribution with a conjugate prior (Gelman et
//! al., "Bayesian data analysis", 2013, section 2.5).
//!
//! If the map errs for an agent's crawled sites, it probably errs in the same way for the agent's
//! other sites. Predictions are therefore corrected in two steps. First, all predictions for the
//! agent are corrected by the agent's mean crawl residual. The mean includes `PRIOR_RESIDUALS`
//! residuals of zero, which keep it small while there are few crawls. Then the crawl residuals of
//! similar sites correct the agent's predictions further (`alike`). Pages take longer than probes,
//! by about the same factor for all agents and sites. Before both corrections, the crawls' round
//! trips are divided by this factor.
//!
//! A crawl that explores is called a trial. The gain of a trial is the expected improvement over
//! the chosen agent's round trip, times `HORIZON` later crawls. The tried agent's round trip is
//! assumed to be lognormal (Jones, Schonlau and Welch, "Efficient global optimization of expensive
//! black-box functions", 1998, equation 15). The cost is the expected extra round trip of the
//! trial. The agent with the greatest difference between gain and cost is tried, but only if its
//! gain exceeds its cost. Only some randomly drawn choices explore (`one_in`).
//!
//! A crawl's round trip is the median over the crawl's pages. This median includes the server's
//! time per page and the crawl's own load on the path, so it may differ from the probes'
//! measurements. But if the round trips of two consecutive crawls differ from the measurements by a
//! large factor, the measurements are probably wrong, so the site is measured again before its next
//! task.

use std::collections::HashMap;
use std::time::Duration;

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::model::{AgentId, Rtt, SiteId, stats};

use super::candidate_and_site::{Candidate, Spread};
use super::similar_sites::{Alike, CRAWL_SPREAD, CorrectedResidual, CrawlResidual, Prefix, SimilarCrawls};

/// The spread assumed for a prediction without a spread: the 90th percentile of errors in measured
/// networks (docs/evaluation/accuracy.md).
pub const UNKNOWN_SPREAD: f64 = 0.3;
/// A spread added to the map's own spread, for errors that the map's spread does not include. For
/// the agents that rank best, the map's spread is 9 %, but half of the predictions for these agents
/// are off by more than 13 %, and a quarter by more than 40 %. A value of 0.1 or 0.3 changes the
/// results of a simulation less than another random seed does.
const UNTOLD_SPREAD: f64 = 0.2;
/// The spread of a measurement by probes, which take many samples on warm connections.
pub const PROBE_SPREAD: f64 = 0.05;
/// Minimum spread of a prior, because no map is more precise.
const LEAST_SPREAD: f64 = 0.03;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CrawlObservation {
    pub agent: AgentId,
    /// The median round trip over the crawl's pages.
    pub rtt: Rtt,
    /// The weight: 1 for a crawl now, less with age (see `weight`).
    pub weight: f64,
}

/// Returns the round trips that crawls of a site observed, one for each agent that is not in
/// `measured`. The map also uses these round trips to locate the site. A round trip that is longer
/// than predicted moves the site away from the crawling agent, and so also away from agents near
/// that agent.
pub fn measured_by_crawls(
    residuals: &LearnedCorrections,
    measured: &[(AgentId, Rtt)],
    crawls: &[CrawlObservation],
) -> Vec<(AgentId, Rtt)> {
    let mut by_crawls: Vec<(AgentId, Rtt)> = Vec::new();
    for crawl in crawls {
        let known = |all: &[(AgentId, Rtt)]| all.iter().any(|(agent, _)| *agent == crawl.agent);
        if !known(measured) && !known(&by_crawls) {
            by_crawls.push((crawl.agent, residuals.probed(crawl.rtt)));
        }
    }
    by_crawls
}

/// Applies the results of crawls to the candidates of one site. A candidate that crawled the site
/// gets a measured distance. The predictions for all other candidates are corrected. `crawls` are
/// the crawls of this site. `near` are crawls of similar sites, from [`LearnedCorrections::near`]
/// of the same `residuals`.
pub fn teach(
    candidates: &mut [Candidate],
    residuals: &LearnedCorrections,
    near: &SimilarCrawls,
    crawls: &[CrawlObservation],
) {
    for one in candidates {
        let own: Vec<(Rtt, f64)> = crawls
            .iter()
            .filter(|crawl| crawl.agent == one.agent)
            .map(|crawl| (residuals.probed(crawl.rtt), crawl.weight))
            .collect();
        let corrected = |rtt: Option<Rtt>| rtt.map(|rtt| residuals.corrected(one.agent, rtt));
        let spread = one.spread.map_or(UNKNOWN_SPREAD, |spread| spread.ratio().hypot(UNTOLD_SPREAD));
        if let Some((last, _)) = own.first() {
            let prior =
                one.measured.map(|rtt| (rtt, PROBE_SPREAD)).or(corrected(one.predicted).map(|rtt| (rtt, spread)));
            one.measured = Some(prior.map_or(*last, |(prior, spread)| believed(prior, spread, &own)));
        }
        // `predicted` stays the map's prediction, because the next crawl residual is
        // computed from it.
        one.expected = corrected(one.expected.or(one.predicted));
        one.doubt = one.spread.map(|_| Spread::new(spread));
        if one.measured.is_none() {
            take_over(one, residuals, near, corrected(one.predicted), spread);
        }
    }
}

/// Corrects the expected round trip by the residuals of similar sites. The expected round trip is
/// longer than the prediction, because the prediction is uncertain. The difference between the
/// logarithms of the expected and the predicted round trip is multiplied by the share of the
/// variance that remains after the correction.
fn take_over(
    one: &mut Candidate,
    residuals: &LearnedCorrections,
    near: &SimilarCrawls,
    predicted: Option<Rtt>,
    spread: f64,
) {
    let (Some(predicted), Some(expected)) = (predicted, one.expected) else { return };
    let Some((residual, left)) = residuals.alike.expects(near, one.agent, spread) else { return };
    let premium = (ln(expected) - ln(predicted)) * (left / spread).powi(2);
    one.expected = Some(round_trip(ln(predicted) + residual + premium, expected));
    one.doubt = one.doubt.map(|_| Spread::new(left));
}

/// Estimates the round trip between an agent and a site from `prior` and `crawls`. `spread` is the
/// spread of the prior. Each element of `crawls` is a round trip (see
/// [`LearnedCorrections::probed`]) and a weight.
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

/// Number of residuals of zero that are added to an agent's own residuals, so that a correction by
/// few crawls is small.
const PRIOR_RESIDUALS: f64 = 5.0;
/// Maximum absolute log ratio of a residual, which corresponds to a factor of four. A greater
/// factor indicates a broken crawl.
const MOST: f64 = 1.4;

/// The corrections learned from all crawls.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LearnedCorrections {
    /// The logarithm of the ratio of a page's round trip to a probe's round trip, for all agents
    /// and sites.
    bias: f64,
    by_agent: HashMap<AgentId, f64>,
    pub(super) alike: Alike,
}

/// The weighted sum of log ratios, and the sum of the weights.
#[derive(Debug, Clone, Copy, Default)]
struct Sum(f64, f64);

impl Sum {
    fn add(&mut self, ratio: f64, weight: f64) {
        self.0 += ratio * weight;
        self.1 += weight;
    }

    fn shrunk(self) -> f64 {
        self.0 / (self.1 + PRIOR_RESIDUALS)
    }
}

impl LearnedCorrections {
    /// Learns from residuals. `measured` contains the probers' measurements of the crawled sites,
    /// which determine how similar the sites are. The factor by which pages take longer than
    /// probes is learned only from crawls by agents whose probes measured the site.
    pub fn of(residuals: &[CrawlResidual], measured: &HashMap<SiteId, Vec<(AgentId, Rtt)>>) -> Self {
        let log_ratio = |crawl: &CrawlResidual| ln(crawl.crawled) - ln(crawl.known);
        let bias = shrunk_median(residuals.iter().filter(|residual| residual.probed).map(log_ratio).collect());
        let ratio = |crawl: &CrawlResidual| (log_ratio(crawl) - bias).clamp(-MOST, MOST);
        let mut agents: HashMap<AgentId, Sum> = HashMap::new();
        for residual in residuals.iter().filter(|residual| !residual.probed && !residual.preferred) {
            agents.entry(residual.agent).or_default().add(ratio(residual), residual.weight);
        }
        let by_agent: HashMap<AgentId, f64> = agents.into_iter().map(|(agent, sum)| (agent, sum.shrunk())).collect();
        let corrected = |crawl: &CrawlResidual| {
            let CrawlResidual { agent, site, network, weight, .. } = *crawl;
            let residual = ratio(crawl) - by_agent.get(&agent).copied().unwrap_or(0.0);
            CorrectedResidual { agent, site, network, residual, weight }
        };
        let alike = Alike::of(residuals.iter().filter(|residual| !residual.probed).map(corrected).collect(), measured);
        Self { bias, by_agent, alike }
    }

    pub fn corrected(&self, agent: AgentId, predicted: Rtt) -> Rtt {
        let of_agent = self.by_agent.get(&agent).copied().unwrap_or(0.0);
        round_trip(ln(predicted) + of_agent, predicted)
    }

    /// Returns the crawls of sites similar to a site in this network with these measurements. This
    /// method scans all crawled sites, so do not call it on a thread that serves requests.
    pub fn near(&self, network: Option<Prefix>, measured: &[(AgentId, Rtt)]) -> SimilarCrawls {
        self.alike.near(measured, network)
    }

    /// Estimates the round trip that probes would measure: the crawl's round trip without the time
    /// by which crawls usually exceed probes.
    pub fn probed(&self, crawled: Rtt) -> Rtt {
        round_trip(ln(crawled) - self.bias, crawled)
    }
}

/// The median, shrunk towards zero. A mean is not used, because a few slow servers would change it
/// too much.
fn shrunk_median(mut ratios: Vec<f64>) -> f64 {
    ratios.sort_unstable_by(f64::total_cmp);
    let count = stats::count(ratios.len());
    ratios.get(ratios.len() / 2).copied().unwrap_or(0.0) * count / (count + PRIOR_RESIDUALS)
}

pub(super) fn ln(rtt: Rtt) -> f64 {
    rtt.as_millis_f64().ln()
}

pub(super) fn round_trip(log: f64, otherwise: Rtt) -> Rtt {
    Rtt::try_from_millis_f64(log.exp()).unwrap_or(otherwise)
}

/// Number of later crawls that benefit from a nearer agent.
const HORIZON: f64 = 5.0;
/// Returns the number `n` such that a choice explores with the probability `1 / n` after `crawls`
/// crawls of the site. Returns `None` if the choice must not explore. The choices for the first two
/// crawls do not explore, because there may be no later crawls that benefit. The choices for the
/// next two crawls explore often, because many crawls benefit if a nearer agent is found early.
const fn one_in(crawls: usize) -> Option<u32> {
    match crawls {
        0 | 1 => None,
        2 | 3 => Some(2),
        _ => Some(20),
    }
}

/// Minimum spread, because the computation divides by the spread.
const LEAST_EXPLORED_SPREAD: f64 = 0.01;
/// The random stream of exploration. This stream differs from the strategy's stream, so that
/// exploration does not change the strategy's draw.
const STREAM: u64 = 1;

/// Returns the agent to try instead of `chosen`, for a site that has been crawled `crawls` times.
/// The seed decides whether the choice explores. Returns `None` if the choice does not explore, or
/// if no trial is worth its cost.
pub fn explored<'a>(
    chosen: &Candidate,
    candidates: &'a [Candidate],
    crawls: usize,
    seed: u64,
) -> Option<&'a Candidate> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(STREAM);
    if rng.random_range(0..one_in(crawls)?) > 0 {
        return None;
    }
    // If the chosen agent's distance is only predicted, no other agent is tried, because the crawl
    // by the chosen agent already measures an unknown distance.
    let best = chosen.measured?.as_millis_f64();
    candidates
        .iter()
        .filter(|one| one.agent != chosen.agent && one.measured.is_none() && one.level().has_room())
        .filter_map(|one| Some((worth(one, best)?, one)))
        .filter(|(worth, _)| *worth > 0.0)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, one)| one)
}

/// The gain of a trial over [`HORIZON`] crawls minus its cost, in milliseconds. `best` is the
/// chosen agent's round trip in milliseconds. `None` if the agent's distance or spread is unknown.
fn worth(one: &Candidate, best: f64) -> Option<f64> {
    let mean = one.distance()?.as_millis_f64();
    let spread = one.doubt.or(one.spread)?.ratio().max(LEAST_EXPLORED_SPREAD);
    let z = (best.ln() - mean.ln()) / spread + spread / 2.0;
    let improvement = (best * normal(z) - mean * normal(z - spread)).max(0.0);
    Some(HORIZON * improvement - (mean - best).max(0.0))
}

/// The normal distribution function to within 0.01, approximated by a logistic function.
fn normal(z: f64) -> f64 {
    1.0 / (1.0 + (-1.702 * z).exp())
}

/// If a crawl's round trip and the known round trip differ by a smaller factor, the crawl is not a
/// contradiction. The factor is large, because predictions err by up to 30 % in nine of ten cases,
/// and pages take longer than HEAD requests.
const CONTRADICTED_BY: f64 = 2.0;
/// A single crawl that differs by at least this factor causes a new measurement of the site,
/// because neither load nor slow pages change the median of a whole crawl so much.
const REFUTED_BY: f64 = 4.0;
/// A difference shorter than this is not a contradiction, because servers need some time per page.
const SLACK: Duration = Duration::from_millis(20);
/// Number of consecutive contradictions after which a site is measured again.
pub const ENOUGH: i32 = 2;
/// Minimum time between two measurements of a site that are caused by contradictions. If crawls
/// contradict even new measurements, measuring more often does not help.
pub const PAUSE: Duration = Duration::from_secs(6 * 3600);

/// The number of contradictions that a crawl counts as: 0 if the crawl agrees with `known`,
/// [`ENOUGH`] if this crawl alone must cause a new measurement.
pub fn weigh(known: Rtt, crawled: Rtt) -> i32 {
    let (known_ms, crawled_ms) = (known.as_millis_f64(), crawled.as_millis_f64());
    let factor = (crawled_ms / known_ms).max(known_ms / crawled_ms);
    if (crawled_ms - known_ms).abs() < SLACK.as_secs_f64() * 1e3 || factor < CONTRADICTED_BY {
        0
    } else if factor < REFUTED_BY {
        1
    } else {
        ENOUGH
    }
}

/// Number of an agent's newest crawls from which its speed is learned.
pub const CRAWLS_LEARNED: i64 = 40;
/// Maximum number of crawl residuals read per agent. With more than 100 connected agents, the limit
/// is lower: [`RESIDUALS`] divided by the number of agents.
pub const MOST_RESIDUALS_OF_AN_AGENT: i64 = 200;
/// Maximum number of crawl residuals read for all agents together. The total may exceed this limit,
/// because at least [`CRAWLS_LEARNED`] of each agent are read.
pub const RESIDUALS: i64 = 20_000;
/// Number of a site's newest crawls that are read. Older crawls are not needed: strategies try only
/// a few agents per site, so ten crawls include all these agents.
pub const CRAWLS_OF_A_SITE: i64 = 10;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::IpAddr;

    use proptest::prelude::{prop, prop_assert, proptest};

    use crate::model::SiteId;
    use crate::strategy::Spread;
    use crate::strategy::fixture::{candidate, measured};
    use crate::strategy::similar_sites::{CrawlResidual, Prefix};

    use super::*;

    fn rtt(millis: f64) -> Rtt {
        Rtt::try_from_millis_f64(millis).unwrap()
    }

    fn residual(agent: i64, net: u8, known: f64, crawled: f64) -> CrawlResidual {
        let network = Some(Prefix::from(IpAddr::from([10, 0, net, 7])));
        let (agent, site, known, crawled) = (AgentId::new(agent), SiteId::new(net.into()), rtt(known), rtt(crawled));
        CrawlResidual { agent, site, network, known, probed: false, preferred: false, crawled, weight: 1.0 }
    }

    fn learned(residuals: &[CrawlResidual]) -> LearnedCorrections {
        LearnedCorrections::of(residuals, &HashMap::new())
    }

    #[test]
    fn a_crawl_outweighs_an_unsure_prediction_and_not_a_sure_one_and_age_takes_from_it() {
        let after = |spread, crawls: &[(Rtt, f64)]| believed(rtt(10.0), spread, crawls).as_millis_f64();
        assert!((after(0.3, &[]) - 10.0).abs() < 1e-3);
        // The estimate moves nine tenths of the way from the prior to the crawl, on the
        // logarithmic scale.
        assert!((after(0.3, &[(rtt(20.0), 1.0)]) - 18.66).abs() < 0.05);
        assert!((after(0.1, &[(rtt(20.0), 1.0)]) - 14.14).abs() < 0.05, "half the way");
        assert!(after(0.1, &[(rtt(20.0), 0.1)]) < 11.0, "an old one");
        assert!(after(0.1, &[(rtt(20.0), 1.0); 9]) > 18.0, "many agree");
    }

    /// The expected round trip of an agent to a site in this network, and its uncertainty, if the
    /// prediction is 10 ms.
    fn expected(residuals: &LearnedCorrections, agent: i64, net: u8) -> (f64, f64) {
        let agent = AgentId::new(agent);
        let mut one =
            [Candidate { predicted: Some(rtt(10.0)), spread: Some(Spread::new(0.3)), ..Candidate::new(agent, 1) }];
        let network = Some(Prefix::from(IpAddr::from([10, 0, net, 200])));
        teach(&mut one, residuals, &residuals.near(network, &[]), &[]);
        assert_eq!(one[0].predicted, Some(rtt(10.0)), "it stays the map's");
        (one[0].expected.unwrap().as_millis_f64(), one[0].doubt.unwrap().ratio())
    }

    #[test]
    fn an_agents_error_is_learned_slowly_and_its_network_first() {
        let one = learned(&[residual(1, 1, 10.0, 20.0), residual(2, 2, 10.0, 10.0), residual(3, 3, 10.0, 10.0)]);
        let ((elsewhere, unsure), (beside, surer)) = (expected(&one, 1, 9), expected(&one, 1, 1));
        assert!((10.5..12.5).contains(&elsewhere), "one residual moves it by a sixth: {elsewhere}");
        assert!((15.0..20.0).contains(&beside) && surer < unsure, "{beside} {surer} {unsure}");
        assert!((expected(&one, 2, 9).0 - 10.0).abs() < 0.01);
        let mut many = vec![residual(1, 1, 10.0, 20.0); 50];
        many.extend(vec![residual(2, 2, 10.0, 10.0); 60]);
        assert!(expected(&learned(&many), 1, 9).0 > 18.0);
    }

    #[test]
    fn who_was_chosen_for_its_prediction_teaches_of_alike_sites_alone() {
        let preferred = CrawlResidual { preferred: true, ..residual(1, 1, 10.0, 20.0) };
        let residuals = learned(&[preferred; 50]);
        assert!((expected(&residuals, 1, 9).0 - 10.0).abs() < 0.01);
        assert!(expected(&residuals, 1, 1).0 > 15.0);
        let probed = CrawlResidual { probed: true, ..preferred };
        assert!(
            (expected(&learned(&[probed]), 1, 1).0 - 10.0).abs() < 0.01,
            "what pages take longer is no error of the map"
        );
    }

    #[test]
    fn what_all_pages_take_longer_corrects_nobody() {
        let residual = |i: i64| CrawlResidual { probed: i % 2 == 0, ..residual(i % 10, 1, 10.0, 15.0) };
        let residuals = learned(&(0..100).map(residual).collect::<Vec<CrawlResidual>>());
        let corrected = residuals.corrected(AgentId::new(1), rtt(10.0)).as_millis_f64();
        assert!((corrected - 10.0).abs() < 0.5, "{corrected}");
        assert!((residuals.probed(rtt(15.0)).as_millis_f64() - 10.0).abs() < 0.5);
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

    fn predicted(agent: i64, millis: f64, spread: f64) -> Candidate {
        Candidate { spread: Some(Spread::new(spread)), ..candidate(agent, Some(millis), None) }
    }

    #[test]
    fn who_may_well_be_nearer_is_tried_now_and_then_and_who_cannot_never() {
        let tried = |others: &[Candidate]| -> Vec<i64> {
            let mut all = vec![measured(1, 20.0)];
            all.extend_from_slice(others);
            (0..400).filter_map(|seed| explored(&all[0], &all, 2, seed)).map(|one| one.agent.get()).collect()
        };
        let unsure = tried(&[predicted(2, 22.0, 0.4), predicted(3, 60.0, 0.3), measured(4, 19.9)]);
        assert!((150..250).contains(&unsure.len()) && unsure.iter().all(|agent| *agent == 2), "{unsure:?}");
        assert!(tried(&[predicted(2, 22.0, 0.01), predicted(3, 60.0, 0.3)]).is_empty(), "surely farther");
        assert!(tried(&[Candidate { load: 1, ..predicted(2, 10.0, 0.3) }]).is_empty(), "it has no room");
        let unknown = [predicted(1, 20.0, 0.3), predicted(2, 19.0, 0.3)];
        assert!(
            (0..400).all(|seed| explored(&unknown[0], &unknown, 2, seed).is_none()),
            "the chosen one teaches as much"
        );
        let unsure = [measured(1, 20.0), predicted(2, 22.0, 0.4)];
        let tries = |crawls| (0..400).filter(|seed| explored(&unsure[0], &unsure, crawls, *seed).is_some()).count();
        assert_eq!((tries(0), tries(1)), (0, 0));
        assert!((5..50).contains(&tries(9)), "{}", tries(9));
    }

    fn weigh_ms(known: u64, crawled: u64) -> i32 {
        let rtt = |millis| Rtt::try_new(Duration::from_millis(millis)).unwrap();
        assert_eq!(weigh(rtt(known), rtt(crawled)), weigh(rtt(crawled), rtt(known)));
        weigh(rtt(known), rtt(crawled))
    }

    #[test]
    fn only_a_multiple_contradicts_and_near_sites_may_think() {
        assert_eq!(weigh_ms(100, 190), 0);
        assert_eq!(weigh_ms(100, 210), 1);
        assert_eq!(weigh_ms(100, 400), ENOUGH);
        assert_eq!(weigh_ms(2, 20), 0, "ten times, and still a fast server");
        assert_eq!(weigh_ms(2, 40), ENOUGH);
    }
}
