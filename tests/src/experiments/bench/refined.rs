//! Measures the speed of the refined tier: of electing landmarks, fitting a map, and predicting the
//! round trip from every agent to a site.
//!
//! Times are processor time of one thread, so that other work on the machine has little effect.
//! Each figure is the median of several repetitions.

use std::hint::black_box;

use anyhow::Context;
use landfall_scheduler::gnp::{Refined, RefinedSwitches, elect_held_out};
use landfall_scheduler::model::{AgentId, Rtt};
use landfall_scheduler::simulate::Draw;

use super::line::{Line, median};
use super::matrices::{PLANETLAB, matrix};
use super::speed::{processor_time, spent};

const AGENTS: usize = 30;
const LANDMARKS: usize = 9;
const SEED: u64 = 0;
const ROUNDS: usize = 5;

pub(super) fn run() -> anyhow::Result<Vec<Line>> {
    let Some(matrix) = matrix(PLANETLAB)? else { return Ok(vec![Line::skipped(PLANETLAB)]) };
    let draw = Draw::new(&matrix, AGENTS, SEED)?;
    let (mesh, nominees) = (draw.mesh(), draw.nominees());
    let (mut making, mut rates) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let began = processor_time()?;
        let elected = elect_held_out(&mesh, &nominees, LANDMARKS, SEED).context("elect")?;
        let landmarks: Vec<AgentId> = elected.into_iter().map(|elected| elected.agent).collect();
        let map = Refined::new(&mesh, &landmarks, &RefinedSwitches::default(), SEED).context("make the map")?;
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
