//! Estimates the round trips between a site and its candidates from predictions, probes and crawls.

use crate::model::{AgentId, Rtt};
use crate::strategy::candidate::{Candidate, Spread};

use super::corrections::{LearnedCorrections, ln, round_trip};
use super::crawl_residual::CRAWL_SPREAD;
use super::similar_sites::SimilarCrawls;

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
    /// The weight: 1 for a crawl now, less with age (see [`weight`]).
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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::IpAddr;

    use proptest::prelude::{prop, prop_assert, proptest};

    use super::*;
    use crate::model::SiteId;
    use crate::strategy::learned::{CrawlResidual, Prefix};

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
}
