//! How fast the refined tier is: making a map, electing its landmarks, and telling every agent's distance to a site.
//!
//! In processor time of one thread, so that other work on the machine disturbs it little; medians of the rounds.

use std::hint::black_box;
use std::path::Path;

use anyhow::Context;
use landfall_scheduler::gnp::{Ingredients, Refined, elect_held_out};
use landfall_scheduler::model::{AgentId, Rtt};
use landfall_scheduler::simulate::{Draw, Matrix};

use super::Line;
use super::speed::{median, processor_time, spent};

const MATRIX: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/planetlab490.matrix.csv.gz");
const AGENTS: usize = 30;
const LANDMARKS: usize = 9;
const SEED: u64 = 0;
const ROUNDS: usize = 5;

/// Runs the section.
pub(super) fn run() -> anyhow::Result<Vec<Line>> {
    let file = Path::new(MATRIX);
    if !file.exists() {
        return Ok(vec![Line::plain("skipped: the measured matrix of PlanetLab is not there", "")]);
    }
    let matrix = Matrix::read(file)?;
    let draw = Draw::new(&matrix, AGENTS, SEED)?;
    let (mesh, nominees) = (draw.mesh(), draw.nominees());
    let (mut making, mut rates) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let began = processor_time()?;
        let elected = elect_held_out(&mesh, &nominees, LANDMARKS, SEED).context("elect")?;
        let landmarks: Vec<AgentId> = elected.into_iter().map(|elected| elected.agent).collect();
        let map = Refined::new(&mesh, &landmarks, &Ingredients::default(), SEED).context("make the map")?;
        making.push(spent(began)?);
        let sites: Vec<Vec<(AgentId, Rtt)>> = (0..draw.sites()).map(|site| draw.measured(site, &landmarks)).collect();
        let began = processor_time()?;
        for site in &sites {
            let posterior = map.locate(site)?;
            for &agent in map.agents() {
                black_box(posterior.predict(agent));
            }
        }
        rates.push(f64::from(u32::try_from(sites.len())?) / spent(began)?);
    }
    Ok(vec![
        Line::at_most("elect by held-out agents and make the map of 30 agents, one core, s", median(making), 2.0),
        Line::at_least("refined: hosts/s on one core, each against 30 agents", median(rates), 2_000.0),
    ])
}
