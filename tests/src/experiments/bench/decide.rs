//! Measures how long each strategy takes to choose one of a thousand available agents for a site.
//!
//! The inputs of all strategies are computed before the measurement, because reading candidates and
//! predicting round trips are not part of the choice. The strategies alternate in five runs, and
//! medians are printed. In this comparison, `earliest-finish` decides for one site at a time. How
//! long `earliest-finish` takes to plan many sites together is measured separately, as the time per
//! site.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use landfall_scheduler::model::geo::{Direction, Position};
use landfall_scheduler::model::{AgentId, Rtt, SiteId, Strategy};
use landfall_scheduler::strategy::learned_distances::{LearnedCorrections, teach};
use landfall_scheduler::strategy::plan::{Job, plan};
use landfall_scheduler::strategy::preemption::{UnderWay, moves};
use landfall_scheduler::strategy::similar_sites::CrawlResidual;
use landfall_scheduler::strategy::{AgentLocation, Candidate, Site, Speed, Spread, Work, choose};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::line::{Line, median};

const AGENTS: i64 = 1_000;
const SITES: u32 = 500;
const RUNS: usize = 5;
const SLOTS: u32 = 8;
const LANDMARKS: i64 = 9;
/// Number of past crawls from which `residual_micros` learns. Each crawl is of a different site.
const CRAWLS: i64 = 40_000;
/// Maximum time of a choice in microseconds. The time must be negligible compared with a round
/// trip.
const MOST_MICROS: f64 = 20.0;

pub(super) fn run() -> anyhow::Result<Vec<Line>> {
    let candidates = fleet();
    let hosts: Vec<String> = (0..SITES).map(|number| format!("www.site{number}.com.cn")).collect();
    let position = Position::try_new(39.9, 116.4)?;
    let work = Work { pages: 30, bytes: 600_000, interval: Duration::from_millis(250) };
    let site =
        |host| Site { host, address: Some(IpAddr::from([10, 77, 3, 9])), position: Some(position), work: Some(work) };
    let mut runs: Vec<(Strategy, Vec<f64>)> = Strategy::ALL.iter().map(|strategy| (*strategy, Vec::new())).collect();
    let (mut plans, mut stragglers) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        for (strategy, micros) in &mut runs {
            let began = Instant::now();
            for (seed, host) in (0..).zip(&hosts) {
                std::hint::black_box(choose(*strategy, &site(host), &candidates, seed));
            }
            micros.push(began.elapsed().as_secs_f64() * 1e6 / f64::from(SITES));
        }
        plans.push(plan_micros(&candidates, work));
        stragglers.push(straggler_micros(&candidates, work));
    }
    let mut lines: Vec<Line> = runs
        .into_iter()
        .map(|(strategy, micros)| Line::at_most(format!("{strategy}: us a site"), median(micros), MOST_MICROS))
        .collect();
    let at_once = format!("earliest-finish, {SITES} sites planned at once: us a site");
    lines.push(Line::at_most(at_once, median(plans), MOST_MICROS));
    lines.push(Line::at_most("earliest-finish, stragglers: us a crawl".to_owned(), median(stragglers), MOST_MICROS));
    lines.push(Line::plain(
        "what crawls of alike sites teach, 40,000 crawls known: us a site",
        format!("{:.0}", residual_micros(&candidates)),
    ));
    Ok(lines)
}

/// The time per crawl that it takes to find stragglers: crawls that another agent would finish
/// sooner. Each crawl is compared with every agent. All crawls run at the nearest agent, so none of
/// them is moved.
fn straggler_micros(candidates: &[Candidate], work: Work) -> f64 {
    let Some(here) = candidates.iter().min_by_key(|one| one.distance()).copied() else { return 0.0 };
    let free = candidates.iter().map(|one| (one.agent, one.capacity.saturating_sub(one.load))).collect();
    let (took, takes, at_most) = (Duration::from_secs(20), Duration::from_secs(60), Duration::from_secs(3600));
    let (elsewhere, most_pages) = (candidates.to_vec(), 1_000);
    let crawl = UnderWay { took, takes, at_most, most_pages, work, sized: true, fetched: None, here, elsewhere };
    let crawls: Vec<UnderWay> = (0..SITES).map(|_| crawl.clone()).collect();
    let began = Instant::now();
    std::hint::black_box(moves(&crawls, &free));
    began.elapsed().as_secs_f64() * 1e6 / f64::from(SITES)
}

/// The time per site that the scheduler takes to learn from past crawls. The number of past crawls
/// is the maximum that the scheduler reads for this number of agents. The scheduler learns when it
/// reads the candidates, before the choice.
fn residual_micros(candidates: &[Candidate]) -> f64 {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let mut rtt = |least: f64| Rtt::try_from_millis_f64(rng.random_range(least..300.0)).ok();
    let mut measure =
        || (1..=LANDMARKS).filter_map(|agent| Some((AgentId::new(agent), rtt(1.0)?))).collect::<Vec<(AgentId, Rtt)>>();
    let measured: HashMap<SiteId, Vec<(AgentId, Rtt)>> =
        (0..CRAWLS).map(|site| (SiteId::new(site), measure())).collect();
    let residual = |(site, agent): (i64, &Candidate)| {
        let (known, crawled) = (agent.predicted?, agent.expected?);
        let (agent, site) = (agent.agent, SiteId::new(site));
        Some(CrawlResidual { agent, site, network: None, known, probed: false, preferred: true, crawled, weight: 1.0 })
    };
    let residuals: Vec<CrawlResidual> = (0..CRAWLS).zip(candidates.iter().cycle()).filter_map(residual).collect();
    let residuals = LearnedCorrections::of(&residuals, &measured);
    let mut candidates = candidates.to_vec();
    let began = Instant::now();
    for measured in measured.values().take(usize::try_from(SITES).unwrap_or(1)) {
        teach(&mut candidates, &residuals, &residuals.near(None, measured), &[]);
    }
    std::hint::black_box(&candidates);
    began.elapsed().as_secs_f64() * 1e6 / f64::from(SITES)
}

/// The time per site that `earliest-finish` takes to plan all sites together.
fn plan_micros(candidates: &[Candidate], work: Work) -> f64 {
    let frees = vec![vec![Duration::ZERO; usize::try_from(SLOTS).unwrap_or(1)]; candidates.len()];
    let began = Instant::now();
    let job = |_| {
        let work = work.counted();
        let takes = candidates.iter().map(|one| Some(work.takes(one.distance()?, one.speed))).collect();
        Job { takes, sized: true, waited: Duration::ZERO }
    };
    std::hint::black_box(plan(&(0..SITES).map(job).collect::<Vec<Job>>(), &frees));
    began.elapsed().as_secs_f64() * 1e6 / f64::from(SITES)
}

fn fleet() -> Vec<Candidate> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    (1..=AGENTS)
        .map(|number| {
            let millis = rng.random_range(1.0..300.0);
            let degrees = (rng.random_range(-80.0..80.0), rng.random_range(-180.0..180.0));
            Candidate {
                predicted: Rtt::try_from_millis_f64(millis).ok(),
                expected: Rtt::try_from_millis_f64(millis * 1.1).ok(),
                spread: Some(Spread::new(0.2)),
                load: rng.random_range(0..SLOTS + 2),
                speed: Speed::new(rng.random_range(0.8..1.5), Some(500_000.0)),
                home: AgentLocation {
                    country: Some(if rng.random_bool(0.5) { *b"CN" } else { *b"JP" }),
                    direction: Position::try_new(degrees.0, degrees.1).ok().map(Direction::from),
                    address: Some(IpAddr::from([10, rng.random(), rng.random(), 1])),
                },
                ..Candidate::new(AgentId::new(number), SLOTS)
            }
        })
        .collect()
}
