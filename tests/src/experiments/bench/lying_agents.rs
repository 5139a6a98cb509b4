//! Lying agents and their false reports.

use std::collections::BTreeSet;

use landfall_scheduler::gnp::Mesh;
use landfall_scheduler::model::{AgentId, Rtt};
use landfall_scheduler::simulate::Draw;
use rand::rngs::ChaCha8Rng;
use rand::seq::{IteratorRandom, SliceRandom};
use rand::{RngExt, SeedableRng};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Lie {
    Times(f64),
    Plus(f64),
    Zero,
    Random,
    Colluding,
}

impl Lie {
    /// The lies that do not change over time, with their names.
    pub(super) const ALL: [(&'static str, Self); 6] = [
        ("x2", Self::Times(2.0)),
        ("x10", Self::Times(10.0)),
        ("+500 ms", Self::Plus(500.0)),
        ("zero", Self::Zero),
        ("random", Self::Random),
        ("colluding", Self::Colluding),
    ];
}

/// The agents of a seed. Some are landmarks, and some of the landmarks are liars.
pub(super) struct LyingFleet<'a> {
    pub(super) draw: &'a Draw<'a>,
    pub(super) landmarks: &'a [AgentId],
    pub(super) seed: u64,
    lie: Lie,
    pub(super) liars: BTreeSet<AgentId>,
    /// The agent whose location the colluding liars claim as their own.
    alibi: Option<AgentId>,
}

impl<'a> LyingFleet<'a> {
    pub(super) fn new(draw: &'a Draw<'a>, landmarks: &'a [AgentId], seed: u64, lie: Lie, liars: usize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x7157);
        let mut order = landmarks.to_vec();
        order.shuffle(&mut rng);
        order.truncate(liars);
        let honest = (0..draw.agents()).map(|i| draw.agent_id(i)).filter(|agent| !landmarks.contains(agent));
        Self { draw, landmarks, seed, lie, liars: order.into_iter().collect(), alibi: honest.choose(&mut rng) }
    }

    /// The round trip that an agent reports for a target. `honest` is the measured round trip.
    /// `alibi` is the round trip from the location that colluders claim.
    fn reported(&self, agent: AgentId, target: u64, honest: Rtt, alibi: Option<Rtt>) -> Rtt {
        if !self.liars.contains(&agent) {
            return honest;
        }
        let millis = honest.as_millis_f64();
        let said = match self.lie {
            Lie::Times(factor) => millis * factor,
            Lie::Plus(more) => millis + more,
            Lie::Zero => 0.001,
            Lie::Colluding => return alibi.unwrap_or(honest),
            Lie::Random => {
                let salt = agent.get().unsigned_abs().wrapping_mul(0x9e37_79b9).wrapping_add(target);
                let mut rng = ChaCha8Rng::seed_from_u64(self.seed.wrapping_mul(0x85eb_ca6b).wrapping_add(salt));
                rng.random_range(0.0..1000_f64.ln()).exp()
            }
        };
        Rtt::try_from_millis_f64(said).unwrap_or(honest)
    }

    pub(super) fn mesh(&self) -> Mesh {
        let honest = self.draw.mesh();
        let mut mesh = Mesh::new();
        let near = Rtt::try_from_millis_f64(1.0).ok();
        for i in 0..self.draw.agents() {
            for j in 0..self.draw.agents() {
                let (a, b) = (self.draw.agent_id(i), self.draw.agent_id(j));
                let Some(rtt) = honest.measured(a, b) else { continue };
                // Colluders claim to be close to each other and to the agent whose location they
                // claim.
                let alibi = self.alibi.and_then(|alibi| {
                    if b == alibi || self.liars.contains(&b) { near } else { honest.measured(alibi, b) }
                });
                mesh.insert(a, b, self.reported(a, b.get().unsigned_abs(), rtt, alibi));
            }
        }
        mesh
    }

    pub(super) fn measured(&self, site: usize) -> Vec<(AgentId, Rtt)> {
        let alibi = self.alibi.and_then(|alibi| self.draw.measured(site, &[alibi]).pop()).map(|(_, rtt)| rtt);
        let target = 1_000_000 + u64::try_from(site).unwrap_or(0);
        let honest = self.draw.measured(site, self.landmarks);
        honest.into_iter().map(|(agent, rtt)| (agent, self.reported(agent, target, rtt, alibi))).collect()
    }
}
