//! Prepares an embedding for locating hosts by the agents' measurements, and places hosts also with
//! any switches of the plain map.

use std::fmt::Debug;

use crate::gnp::objective::{Anchor, Loss, rms_relative_error, softening};
use crate::gnp::{Embedding, Placement, PlainSwitches};
use crate::model::{AgentId, Rtt};

use super::host_cost::{Anchorage, PRIOR, PRIOR_REACH};
use super::nearest_agents::{Nearest, RaggedCoordinates};
use super::search_and_starts::{SimplexError, Solver, StopRule, minimise, restart_cost};

/// Maximum number of dimensions in which a host can be placed.
const MOST_DIMENSIONS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LocateError {
    /// No measurement came from an agent that has a place in this embedding.
    #[error("none of the {measured} measurements is from an agent placed in the embedding")]
    NothingMeasured { measured: usize },
    #[error("hosts are placed in at most {most} dimensions, the embedding has {dimensions}")]
    TooManyDimensions {
        dimensions: usize,
        /// Maximum number of dimensions.
        most: usize,
    },
    #[error("place the host")]
    Solver(#[source] SimplexError),
}

impl Embedding {
    /// Locates a host with the simplex, from measurements by located agents. Fewer measurements
    /// than dimensions suffice, because the prior (a preference for places near agents) determines
    /// what the measurements leave open.
    pub fn locate(&self, measured: &[(AgentId, Rtt)]) -> Result<Placement, LocateError> {
        self.locator()?.locate(measured, Solver::Simplex)
    }

    /// Prepares this embedding for placing many hosts.
    pub fn locator(&self) -> Result<Locator<'_>, LocateError> {
        let dimensions = self.dimensions();
        let anchorage: Box<dyn AnyAnchorage> = match dimensions {
            1 => self.anchorage::<2>(),
            2 => self.anchorage::<3>(),
            3 => self.anchorage::<4>(),
            4 => self.anchorage::<5>(),
            5 => self.anchorage::<6>(),
            6 => self.anchorage::<7>(),
            7 => self.anchorage::<8>(),
            8 => self.anchorage::<9>(),
            9..=16 => self.anchorage::<17>(),
            17..=MOST_DIMENSIONS => self.anchorage::<{ MOST_DIMENSIONS + 1 }>(),
            _ => return Err(LocateError::TooManyDimensions { dimensions, most: MOST_DIMENSIONS }),
        };
        Ok(Locator { embedding: self, agents: self.agents().keys().copied().collect(), anchorage })
    }

    fn anchorage<const N: usize>(&self) -> Box<dyn AnyAnchorage> {
        let coordinates = self.agents().values().map(|placement| placement.coordinate.as_slice());
        Box::new(Anchorage::<N>::new(coordinates, self.dimensions(), self.scale(), restart_cost(self.fit_error())))
    }
}

/// An embedding prepared for placing many hosts; threads may share it.
#[derive(Debug)]
pub struct Locator<'a> {
    embedding: &'a Embedding,
    /// All located agents, in ascending order. An agent has the same index in `anchorage`.
    agents: Vec<AgentId>,
    anchorage: Box<dyn AnyAnchorage>,
}

impl Locator<'_> {
    /// Places one host, as [`Embedding::locate`] does.
    pub fn locate(&self, measured: &[(AgentId, Rtt)], solver: Solver) -> Result<Placement, LocateError> {
        let by_landmarks = !self.embedding.switches().mesh;
        let number = |&(agent, rtt): &(AgentId, Rtt)| {
            let counts = !by_landmarks || self.embedding.landmarks().contains(&agent);
            Some((self.agents.binary_search(&agent).ok().filter(|_| counts)?, rtt))
        };
        let mut known: Vec<(usize, Rtt)> = measured.iter().filter_map(number).collect();
        if known.is_empty() {
            return Err(LocateError::NothingMeasured { measured: measured.len() });
        }
        // The measurements are sorted, so that the rounding of sums does not depend on the order of
        // `measured`.
        known.sort_unstable();
        let known: Vec<(usize, f64)> = known.into_iter().map(|(agent, rtt)| (agent, rtt.as_millis_f64())).collect();
        let (coordinate, fit_error) = match self.embedding.switches() == PlainSwitches::default() {
            true => self.anchorage.place(&known, solver)?,
            false => place_host_with_switches(self.embedding, &known).map_err(LocateError::Solver)?,
        };
        Ok(Placement { epoch: self.embedding.epoch(), coordinate, fit_error })
    }

    /// Returns the three nearest agents of each site. `coordinates` is the concatenation of the
    /// sites' coordinates in this embedding. Each coordinate has one component per dimension, then
    /// the height; in milliseconds.
    pub fn nearest(&self, coordinates: &[f64]) -> Result<Vec<Nearest>, RaggedCoordinates> {
        let each = self.embedding.dimensions() + 1;
        if !coordinates.len().is_multiple_of(each) {
            return Err(RaggedCoordinates { there: coordinates.len(), each });
        }
        Ok(self.anchorage.nearest(coordinates, &self.agents))
    }
}

/// Object-safe form of `Anchorage<N>`, because the number `N` of components is known only at run
/// time.
trait AnyAnchorage: Debug + Send + Sync {
    /// Returns the coordinate and the fit error of a host. `measured` contains pairs of an agent's
    /// index and a round trip in milliseconds.
    fn place(&self, measured: &[(usize, f64)], solver: Solver) -> Result<(Vec<f64>, f64), LocateError>;

    fn nearest(&self, coordinates: &[f64], agents: &[AgentId]) -> Vec<Nearest>;
}

impl<const N: usize> AnyAnchorage for Anchorage<N> {
    fn place(&self, measured: &[(usize, f64)], solver: Solver) -> Result<(Vec<f64>, f64), LocateError> {
        let host = self.host(measured);
        let mut point = solver.place(&host).map_err(LocateError::Solver)?;
        point[N - 1] = point[N - 1].abs();
        let mut coordinate = point[..self.dimensions].to_vec();
        coordinate.push(point[N - 1]);
        Ok((coordinate, host.fit_error(&point)))
    }

    fn nearest(&self, coordinates: &[f64], agents: &[AgentId]) -> Vec<Nearest> {
        let sites = coordinates.chunks_exact(self.dimensions + 1);
        sites.map(|coordinate| self.nearest_three(coordinate, agents)).collect()
    }
}

/// Maximum number of anchors at which the search with any switches starts, the nearest first.
const MOST_ANCHORS: usize = 9;

/// The starts of a search with any switches: the coordinates of the nearest anchors.
fn nearest_anchors<'a>(anchors: &[Anchor<'a>]) -> impl Iterator<Item = &'a [f64]> {
    let mut nearest: Vec<Anchor<'a>> = anchors.to_vec();
    nearest.sort_by(|a, b| a.measured.total_cmp(&b.measured));
    nearest.into_iter().take(MOST_ANCHORS).map(|anchor| anchor.coordinate)
}

/// The step length of the first simplex, as a share of the map's scale (the median distance).
const STEP: f64 = 0.1;
/// The stopping rule allows many steps, because Ng and Zhang's cost is flat near its minimum.
const STOP: StopRule = StopRule { steps: 1_000, tolerance: 1e-5 };

#[derive(Debug, Clone, Copy)]
pub(in crate::gnp) struct Descent {
    pub(in crate::gnp) loss: Loss,
    /// Whether hosts have a height. If false, all heights are zero.
    pub(in crate::gnp) height: bool,
    /// The map's scale, in milliseconds.
    pub(in crate::gnp) scale: f64,
}

impl Descent {
    pub(in crate::gnp) fn of(switches: PlainSwitches, scale: f64) -> Self {
        let PlainSwitches { log, robust, height, .. } = switches;
        Self { loss: Loss { log, robust }, height, scale }
    }

    /// Minimises `cost` by the simplex, from `start`; `step` is a share of the scale.
    pub(in crate::gnp) fn minimise(
        self,
        cost: impl Fn(&[f64]) -> f64,
        start: &[f64],
        step: f64,
        stop: StopRule,
    ) -> Result<Vec<f64>, SimplexError> {
        let step = step * self.scale;
        if self.height {
            return Ok(minimise(cost, start, step, stop)?.point);
        }
        let level = |place: &[f64]| [place, &[0.0]].concat();
        let dimensions = start.len().saturating_sub(1);
        let found = minimise(|place| cost(&level(place)), &start[..dimensions], step, stop)?;
        Ok(level(&found.point))
    }
}

/// Returns the coordinate of the host whose measured distances are in `anchors`. The prior keeps
/// the host near the coordinates in `agents`. If `agents` is `None`, there is no prior.
pub(in crate::gnp) fn place_with_switches(
    anchors: &[Anchor<'_>],
    agents: Option<&[&[f64]]>,
    descent: Descent,
) -> Result<Vec<f64>, SimplexError> {
    let softening = softening(descent.scale);
    let cost = |host: &[f64]| {
        descent.loss.of(host, anchors, softening) + agents.map_or(0.0, |agents| prior(host, agents, descent.scale))
    };
    let mut best: Option<(f64, Vec<f64>)> = None;
    for start in nearest_anchors(anchors) {
        let mut found = descent.minimise(cost, start, STEP, STOP)?;
        if let Some(height) = found.last_mut() {
            *height = height.abs();
        }
        let lower = cost(&found);
        if best.as_ref().is_none_or(|(least, _)| lower < *least) {
            best = Some((lower, found));
        }
    }
    Ok(best.map(|(_, point)| point).unwrap_or_default())
}

/// Returns the coordinate and the fit error of a host, with any switches. `measured` contains
/// pairs of an agent's index and a round trip in milliseconds.
fn place_host_with_switches(embedding: &Embedding, measured: &[(usize, f64)]) -> Result<(Vec<f64>, f64), SimplexError> {
    let agents: Vec<&[f64]> = embedding.agents().values().map(|placement| placement.coordinate.as_slice()).collect();
    let anchors: Vec<Anchor<'_>> =
        measured.iter().map(|&(agent, measured)| Anchor { coordinate: agents[agent], measured }).collect();
    let near = embedding.switches().prior.then_some(agents.as_slice());
    let coordinate = place_with_switches(&anchors, near, Descent::of(embedding.switches(), embedding.scale()))?;
    let fit_error = rms_relative_error(&coordinate, &anchors);
    Ok((coordinate, fit_error))
}

fn prior(host: &[f64], agents: &[&[f64]], scale: f64) -> f64 {
    let dimensions = host.len().saturating_sub(1);
    let square = |agent: &&[f64]| -> f64 { host[..dimensions].iter().zip(*agent).map(|(a, b)| (a - b).powi(2)).sum() };
    let nearest = agents.iter().map(square).fold(f64::INFINITY, f64::min);
    let reach = PRIOR_REACH * scale;
    PRIOR * (nearest / (reach * reach)).ln_1p()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::{ProptestConfig, any, prop_assert, proptest};
    use rand::rngs::ChaCha8Rng;
    use rand::{RngExt, SeedableRng};

    use crate::gnp::locate::search_and_starts::RESTART;
    use crate::gnp::mesh_and_distance::distance;
    use crate::gnp::{elect, fit, is_coordinate};
    use crate::model::EmbeddingEpoch;
    use crate::simulate::{Draw, Matrix};

    use super::*;

    const BOTH: [Solver; 2] = [Solver::Simplex, Solver::LevenbergMarquardt];

    fn cost(map: &Embedding, measured: &[(AgentId, Rtt)], placed: &Placement) -> f64 {
        let coordinates = map.agents().values().map(|placement| placement.coordinate.as_slice());
        let anchorage = Anchorage::<9>::new(coordinates, map.dimensions(), map.scale(), RESTART);
        let number = |agent: &AgentId| map.agents().keys().position(|other| other == agent).unwrap();
        let known: Vec<(usize, f64)> =
            measured.iter().map(|(agent, rtt)| (number(agent), rtt.as_millis_f64())).collect();
        anchorage.host(&known).cost(&anchorage.widen(&placed.coordinate))
    }

    /// A map of twelve agents, eight of them landmarks, in a box with sides of 200 ms.
    fn synthetic(dimensions: usize, seed: u64) -> (Embedding, ChaCha8Rng) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let agents = (0..12).map(|i| {
            let mut coordinate: Vec<f64> = (0..dimensions).map(|_| rng.random_range(0.0..200.0)).collect();
            coordinate.push(rng.random_range(1.0..6.0));
            (AgentId::new(i), Placement { epoch: EmbeddingEpoch::new(1), coordinate, fit_error: 0.0 })
        });
        let agents = agents.collect();
        let landmarks = (0..8).map(AgentId::new).collect();
        (Embedding::from_parts(EmbeddingEpoch::new(1), dimensions, landmarks, agents, 0.0).unwrap(), rng)
    }

    /// Returns the round trips from the first eight agents to a host, each with a relative error of
    /// at most `noise`.
    fn measure(map: &Embedding, host: &[f64], noise: f64, rng: &mut ChaCha8Rng) -> Vec<(AgentId, Rtt)> {
        let one = |(&agent, placement): (&AgentId, &Placement)| {
            let true_millis = distance(host, &placement.coordinate);
            (agent, Rtt::try_from_millis_f64(true_millis * (1.0 + rng.random_range(-noise..=noise))).unwrap())
        };
        map.agents().iter().map(one).take(8).collect()
    }

    #[test]
    fn both_solvers_reach_the_same_cost_on_maps_that_exist() {
        for (dimensions, seed) in [(2, 1), (3, 2), (5, 3), (8, 4)] {
            let (map, mut rng) = synthetic(dimensions, seed);
            let locator = map.locator().unwrap();
            let (mut simplex, mut bulk) = (0.0, 0.0);
            for _ in 0..40 {
                let host: Vec<f64> = (0..=dimensions).map(|_| rng.random_range(0.0..100.0)).collect();
                let measured = measure(&map, &host, 0.2, &mut rng);
                let [one, other] =
                    BOTH.map(|solver| cost(&map, &measured, &locator.locate(&measured, solver).unwrap()));
                simplex += one;
                bulk += other;
            }
            // The costs may differ by 0.001 squared log errors per measurement, which is the square
            // of an error of about 3 %. There are 320 measurements: eight of each of 40 hosts.
            let apart = (simplex - bulk).abs() / 320.0;
            assert!(apart < 1e-3, "{dimensions}-D: simplex {simplex}, bulk {bulk}");
        }
    }

    #[test]
    fn both_solvers_agree_on_planetlab() {
        let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/planetlab490.matrix.csv.gz"));
        if !file.exists() {
            println!("skipped: the measured matrix of PlanetLab is not there");
            return;
        }
        let matrix = Matrix::read(file).unwrap();
        let draw = Draw::new(&matrix, 30, 0).unwrap();
        let elected = elect(&draw.mesh(), &draw.nominees(), 9, 0).unwrap();
        let landmarks: Vec<AgentId> = elected.into_iter().map(|elected| elected.agent).collect();
        let map = fit(EmbeddingEpoch::new(1), &draw.mesh(), &landmarks, 8, 0).unwrap();
        let locator = map.locator().unwrap();
        let mut errors = [Vec::new(), Vec::new()];
        let mut costs = [0.0; 2];
        for site in 0..200 {
            let measured = draw.measured(site, &landmarks);
            for ((solver, errors), sum) in BOTH.into_iter().zip(&mut errors).zip(&mut costs) {
                let placed = locator.locate(&measured, solver).unwrap();
                *sum += cost(&map, &measured, &placed);
                for agent in (0..30).filter(|&agent| !landmarks.contains(&draw.agent_id(agent))) {
                    let Some(truth) = draw.truth(site, agent) else { continue };
                    let other = map.placement(draw.agent_id(agent)).unwrap();
                    errors.push((map.predict(&placed, other).unwrap().as_millis_f64() - truth).abs() / truth);
                }
            }
        }
        let [simplex, bulk] = errors.map(|mut errors| {
            errors.sort_by(f64::total_cmp);
            (errors[errors.len() / 2], errors[errors.len() * 9 / 10])
        });
        println!("simplex {simplex:?}, bulk {bulk:?}, costs {costs:?}");
        assert!(within(0.03, costs[0], costs[1]), "{costs:?}");
        // These tolerances are for one seed. Over ten seeds, the errors of the two solvers differ
        // by less than 1 % (docs/evaluation/accuracy.md).
        assert!(within(0.02, simplex.0, bulk.0) && within(0.08, simplex.1, bulk.1), "{simplex:?} {bulk:?}");
        for (median, ninetieth) in [simplex, bulk] {
            assert!(median <= 0.1 && ninetieth <= 0.4, "{median} {ninetieth}");
        }
    }

    fn within(part: f64, a: f64, b: f64) -> bool {
        (a - b).abs() <= part * a.max(b)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn both_solvers_place_a_host_by_however_few_equal_or_extreme_measurements(
            dimensions in 1_usize..12,
            seed in any::<u64>(),
            micros in proptest::collection::vec(
                proptest::prop_oneof![1_i64..600_000_000, proptest::strategy::Just(1), proptest::strategy::Just(600_000_000)],
                1..10,
            ),
        ) {
            let (map, _) = synthetic(dimensions, seed);
            let measured: Vec<(AgentId, Rtt)> =
                (0..).map(AgentId::new).zip(micros.into_iter().map(|us| Rtt::try_from_micros(us).unwrap())).collect();
            let locator = map.locator().unwrap();
            for solver in BOTH {
                let placed = locator.locate(&measured, solver).unwrap();
                prop_assert!(is_coordinate(&placed.coordinate, dimensions), "{solver:?} {placed:?}");
                prop_assert!(placed.fit_error.is_finite() && placed.fit_error >= 0.0, "{solver:?} {placed:?}");
                let mut backwards = measured.clone();
                backwards.reverse();
                prop_assert!(placed == locator.locate(&backwards, solver).unwrap());
            }
        }
    }

    #[test]
    fn agents_that_all_lie_at_one_place_place_a_host_all_the_same() {
        let placement = || Placement { epoch: EmbeddingEpoch::new(1), coordinate: vec![0.0; 4], fit_error: 0.0 };
        let agents = (0..5).map(|i| (AgentId::new(i), placement())).collect();
        let map = Embedding::from_parts(EmbeddingEpoch::new(1), 3, vec![AgentId::new(0)], agents, 0.0).unwrap();
        let measured: Vec<(AgentId, Rtt)> =
            (0..5).map(|i| (AgentId::new(i), Rtt::try_from_micros(20_000).unwrap())).collect();
        for solver in BOTH {
            let placed = map.locator().unwrap().locate(&measured, solver).unwrap();
            assert!(is_coordinate(&placed.coordinate, 3), "{placed:?}");
            assert!(placed.fit_error < 0.2, "{solver:?} {placed:?}");
        }
    }

    #[test]
    fn more_dimensions_than_a_place_has_are_refused_with_both_numbers() {
        let (map, _) = synthetic(65, 1);
        let refusal = map.locate(&[]).unwrap_err().to_string();
        assert_eq!(refusal, "hosts are placed in at most 64 dimensions, the embedding has 65");
    }
}
