//! What measuring costs the sites, and what saving costs the map: 5,000 sites at 500 addresses, each from nine landmarks.
//!
//! The agent's own rules decide (`probe::sharing`, `probe::stopping`, the weighted mean); only the network is drawn: distances
//! from PlanetLab, samples by the model of `weighted_mean::trial` (2 % jitter, a fifth spikes). A *probe* is a request sent to
//! a site, those thrown away included: one that warms a connection up, and one a sample. The naive prober measures every
//! site from every landmark with a fixed number of samples. The sites are spread over the addresses by Zipf's law; each
//! address is a PlanetLab node (the last forty repeat the first).

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use landfall_agent::origin::Scheme;
use landfall_agent::probe::sharing::{Advice, Place, Sharing, draw as draw_of};
use landfall_agent::probe::weighted_mean::{trial, weighted_mean};
use landfall_agent::probe::{Metric, Phases, Probed};
use landfall_scheduler::config::MeasureConfig;
use landfall_scheduler::gnp::{Embedding, default_dimensions, elect, fit};
use landfall_scheduler::model::{AgentId, EmbeddingEpoch, Rtt};
use landfall_scheduler::simulate::{Draw, Matrix};
use rand::SeedableRng;
use rand::distr::Distribution;
use rand::distr::weighted::WeightedIndex;
use rand_chacha::ChaCha8Rng;

use super::Line;

const MATRIX: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/planetlab490.matrix.csv.gz");
const SEEDS: u64 = 10;
const AGENTS: usize = 30;
const LANDMARKS: usize = 9;
const ADDRESSES: usize = 500;
const SITES: usize = 5_000;
/// What every site got before there was an economy.
const NAIVE_SAMPLES: usize = 5;
/// One site in so many is located: locating all would take minutes and change the third digit.
const LOCATED: usize = 4;
/// What an order that sends nothing takes, there and back.
const ORDER: Duration = Duration::from_millis(50);

/// How sites are measured.
#[derive(Debug, Clone, Copy)]
enum Prober {
    /// So many samples, always.
    Naive(usize),
    /// As the agents do it.
    Economical,
}

/// Requests, by what they were for, and the map's errors.
#[derive(Debug, Default)]
struct Bill {
    measuring: u64,
    settling: u64,
    checking: u64,
    errors: Vec<f64>,
}

/// One drawing of a fleet, its map, and the sites.
struct World<'a> {
    draw: Draw<'a>,
    landmarks: Vec<AgentId>,
    map: Embedding,
    /// The sites of each address, by number.
    addresses: Vec<Vec<usize>>,
}

pub(super) fn run() -> anyhow::Result<Vec<Line>> {
    let file = Path::new(MATRIX);
    if !file.exists() {
        return Ok(vec![Line::plain("skipped: the PlanetLab matrix is absent", "")]);
    }
    let matrix = Matrix::read(file)?;
    let most = usize::try_from(MeasureConfig::default().site_samples).context("samples")?;
    let arms = [Prober::Naive(NAIVE_SAMPLES), Prober::Naive(most), Prober::Economical];
    let mut bills = arms.map(|_| Bill::default());
    for seed in 0..SEEDS {
        let world = World::draw(&matrix, seed)?;
        for (arm, bill) in arms.into_iter().zip(&mut bills) {
            world.measure(arm, seed, bill)?;
        }
    }
    let [naive, full, economical] = &mut bills;
    let share = economical.per_site() / naive.per_site();
    let (naive_re50, full_re50, re50) = (naive.re50(), full.re50(), economical.re50());
    let part = |requests: u64| format!("{:.2}", per_site(requests));
    Ok(vec![
        Line::plain(format!("naive, {NAIVE_SAMPLES} samples: probes a site"), format!("{:.2}", naive.per_site())),
        Line::plain(format!("naive, {most} samples: probes a site"), format!("{:.2}", full.per_site())),
        Line::plain("economical: probes a site", format!("{:.2}", economical.per_site())),
        Line::plain("  of them measuring", part(economical.measuring)),
        Line::plain("  of them settling", part(economical.settling)),
        Line::plain("  of them checking", part(economical.checking)),
        Line::at_most(format!("economical, as a share of naive with {NAIVE_SAMPLES} samples"), share, 0.15),
        Line::plain(
            format!("economical, as a share of naive with {most} samples"),
            format!("{:.4}", economical.per_site() / full.per_site()),
        ),
        Line::plain(format!("naive, {NAIVE_SAMPLES} samples: RE50"), format!("{naive_re50:.4}")),
        Line::plain(format!("naive, {most} samples: RE50"), format!("{full_re50:.4}")),
        Line::plain("economical: RE50", format!("{re50:.4}")),
        Line::at_most(format!("its RE50 over that of naive with {NAIVE_SAMPLES} samples"), re50 / naive_re50, 1.02),
        Line::at_most(format!("its RE50 over that of naive with {most} samples"), re50 / full_re50, 1.02),
    ])
}

impl<'a> World<'a> {
    fn draw(matrix: &'a Matrix, seed: u64) -> anyhow::Result<Self> {
        let draw = Draw::new(matrix, AGENTS, seed)?;
        let mesh = draw.mesh();
        let elected = elect(&mesh, &draw.nominees(), LANDMARKS, seed)?;
        let landmarks: Vec<AgentId> = elected.into_iter().map(|elected| elected.agent).collect();
        let map = fit(EmbeddingEpoch::new(1), &mesh, &landmarks, default_dimensions(LANDMARKS), seed)?;
        Ok(Self { draw, landmarks, map, addresses: spread(seed)? })
    }

    fn node(&self, address: usize) -> usize {
        address % self.draw.sites()
    }

    fn measure(&self, arm: Prober, seed: u64, bill: &mut Bill) -> anyhow::Result<()> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (start, mut number) = (Instant::now(), 0);
        let mut probers: Vec<Sharing> = self.landmarks.iter().map(|_| Sharing::default()).collect();
        for (address, sites) in self.addresses.iter().enumerate() {
            let mut measured: Vec<Vec<(AgentId, Rtt)>> = vec![Vec::new(); sites.len()];
            let mut now = start;
            for (site, prober) in order_of_visits(sites.len()) {
                number += 1;
                let Some(distance) = self.distance(address, prober) else { continue };
                let samples = match arm {
                    Prober::Naive(samples) => {
                        let samples = trial::take(&mut rng, distance, samples, false);
                        bill.measuring += requests(&samples);
                        samples
                    }
                    Prober::Economical => {
                        let visit = Visit { place: place(address)?, settled: prober > 0, number, distance };
                        visit.pay(&mut probers[prober], &mut now, &mut rng, bill)
                    }
                };
                let summary = weighted_mean(&samples).context("sum up")?;
                measured[site].push((self.landmarks[prober], Rtt::try_new(summary.rtt)?));
            }
            for (site, measured) in sites.iter().zip(measured) {
                if site % LOCATED == 0 && measured.len() == LANDMARKS {
                    self.judge(address, &measured, &mut bill.errors)?;
                }
            }
        }
        Ok(())
    }

    /// Seconds from a landmark to an address.
    fn distance(&self, address: usize, prober: usize) -> Option<f64> {
        Some(self.draw.truth(self.node(address), self.draw.agent_of(self.landmarks[prober])?)? / 1e3)
    }

    /// The relative errors of one site against the agents that are no landmarks.
    fn judge(&self, address: usize, measured: &[(AgentId, Rtt)], errors: &mut Vec<f64>) -> anyhow::Result<()> {
        let placement = self.map.locate(measured)?;
        for agent in 0..self.draw.agents() {
            let id = self.draw.agent_id(agent);
            if self.landmarks.contains(&id) {
                continue;
            }
            let (Some(truth), Some(there)) = (self.draw.truth(self.node(address), agent), self.map.placement(id))
            else {
                continue;
            };
            let predicted = self.map.predict(&placement, there)?.as_millis_f64();
            errors.push((predicted - truth).abs() / truth);
        }
        Ok(())
    }
}

/// One order of one prober for one site.
struct Visit {
    place: Place,
    /// Whether the site's origin is known, so that nothing need be sent to find it out.
    settled: bool,
    number: i64,
    distance: f64,
}

impl Visit {
    /// The samples that answer it; its requests go on the bill, each a second after the last.
    fn pay(&self, prober: &mut Sharing, now: &mut Instant, rng: &mut ChaCha8Rng, bill: &mut Bill) -> Vec<Duration> {
        let config = MeasureConfig::default();
        let most = usize::try_from(config.site_samples).unwrap_or(usize::MAX);
        let mut take = |now: &mut Instant| {
            let samples = trial::take(rng, self.distance, most, true);
            *now += u32::try_from(requests(&samples)).unwrap_or(u32::MAX) * config.site_interval;
            samples
        };
        *now += ORDER;
        match prober.advise(&self.place, Some(config.share_max_age), draw_of(self.number), *now) {
            Advice::Share(probed, _) => {
                if !self.settled {
                    bill.settling += 1;
                    *now += config.site_interval;
                }
                probed.samples
            }
            Advice::Measure => {
                let samples = take(now);
                bill.measuring += requests(&samples);
                prober.learn(self.place, self.probed(&samples), *now);
                samples
            }
            Advice::Check(shared) => {
                let samples = take(now);
                bill.checking += requests(&samples);
                let seen = self.probed(&samples);
                prober.compare(&self.place, &shared, &seen, *now);
                prober.learn(self.place, seen, *now);
                samples
            }
        }
    }

    fn probed(&self, samples: &[Duration]) -> Probed {
        let (address, phases) = (self.place.address, Phases::default());
        Probed { origin: None, address, phases, samples: samples.to_vec(), lost: 0 }
    }
}

impl Bill {
    fn per_site(&self) -> f64 {
        per_site(self.measuring + self.settling + self.checking)
    }

    fn re50(&mut self) -> f64 {
        self.errors.sort_by(f64::total_cmp);
        self.errors.get(self.errors.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

/// Requests of one seed for one site, in the mean.
fn per_site(requests: u64) -> f64 {
    let sites = u64::try_from(SITES).unwrap_or(u64::MAX).saturating_mul(SEEDS);
    Duration::from_secs(requests).div_duration_f64(Duration::from_secs(sites))
}

/// The samples, and the request that warmed their connection up.
fn requests(samples: &[Duration]) -> u64 {
    u64::try_from(samples.len()).unwrap_or(u64::MAX).saturating_add(1)
}

/// One landmark after the other looks at sites nobody has seen yet; then each site goes to the others.
fn order_of_visits(sites: usize) -> impl Iterator<Item = (usize, usize)> {
    let others = (0..sites).flat_map(|site| (1..LANDMARKS).map(move |prober| (site, prober)));
    (0..sites).map(|site| (site, 0)).chain(others)
}

/// Every address has a site; the others go by Zipf's law.
fn spread(seed: u64) -> anyhow::Result<Vec<Vec<usize>>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let weights = (1..=u32::try_from(ADDRESSES)?).map(|rank| 1.0 / f64::from(rank));
    let zipf = WeightedIndex::new(weights)?;
    let mut addresses: Vec<Vec<usize>> = (0..ADDRESSES).map(|site| vec![site]).collect();
    for site in ADDRESSES..SITES {
        addresses[zipf.sample(&mut rng)].push(site);
    }
    Ok(addresses)
}

fn place(address: usize) -> anyhow::Result<Place> {
    let address = IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(address)?));
    Ok(Place { address, port: 443, scheme: Scheme::Https, metric: Metric::Ttfb })
}
