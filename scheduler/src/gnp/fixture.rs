//! Synthetic networks for the tests of `gnp`.

use std::fmt::Debug;

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::model::{AgentId, EmbeddingEpoch, Rtt};

use super::mesh_and_distance::distance;
use super::{Embedding, Mesh, Nominee, fit};

/// The epoch of the maps that [`fitted`] returns.
pub(super) const EPOCH: EmbeddingEpoch = EmbeddingEpoch::new(7);

pub(super) fn agent<N: TryInto<i64, Error: Debug>>(number: N) -> AgentId {
    AgentId::new(number.try_into().unwrap())
}

pub(super) fn rtt(millis: f64) -> Rtt {
    Rtt::try_from_millis_f64(millis).unwrap()
}

/// Random points in a box with sides of 200 ms, with heights of 1 to 6 ms.
pub(super) fn hosts(count: usize, dimensions: usize, seed: u64) -> Vec<Vec<f64>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut host = || {
        let mut point: Vec<f64> = (0..dimensions).map(|_| rng.random_range(0.0..200.0)).collect();
        point.push(rng.random_range(1.0..6.0));
        point
    };
    (0..count).map(|_| host()).collect()
}

/// The mesh of agents at these points, numbered from 0, with every distance multiplied by `factor`.
pub(super) fn mesh_of(hosts: &[Vec<f64>], factor: f64) -> Mesh {
    let mut mesh = Mesh::new();
    for (i, a) in hosts.iter().enumerate() {
        for (j, b) in hosts.iter().enumerate() {
            mesh.insert(agent(i), agent(j), rtt(factor * distance(a, b)));
        }
    }
    mesh
}

/// The map of agents at these points. The first agents are landmarks, and every distance is
/// multiplied by `factor`.
pub(super) fn fitted(hosts: &[Vec<f64>], landmarks: usize, dimensions: usize, seed: u64, factor: f64) -> Embedding {
    let landmarks: Vec<AgentId> = (0..landmarks).map(agent).collect();
    fit(EPOCH, &mesh_of(hosts, factor), &landmarks, dimensions, seed).unwrap()
}

/// The mesh of agents on a line, numbered from 1. `apart` is added to the distance of each pair.
/// `places` and `apart` are in milliseconds.
pub(super) fn line(places: &[f64], apart: f64) -> Mesh {
    let mut mesh = Mesh::new();
    for (i, a) in (1..).zip(places) {
        for (j, b) in (1..).zip(places).filter(|&(j, _)| j != i) {
            mesh.insert(agent(i), agent(j), rtt((a - b).abs() + apart));
        }
    }
    mesh
}

/// Nominees numbered from 1, with these cities and carriers.
pub(super) fn nominees(of: &[(&str, &str)]) -> Vec<Nominee> {
    let nominee = |(number, &(city, carrier)): (i64, &(&str, &str))| Nominee {
        agent: agent(number),
        city: city.to_owned(),
        carrier: carrier.to_owned(),
    };
    (1..).zip(of).map(nominee).collect()
}
