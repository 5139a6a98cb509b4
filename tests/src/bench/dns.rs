//! What the agent's cache of names saves: the same names resolved again and again, with and without it.
//!
//! The name server stands on loopback and answers 20 ms late, as one in the same country does. Each run resolves 200 names in 20
//! rounds, 16 at once, as many as an agent crawls sites; runs with and without the cache take turns, each with a resolver of its
//! own, and medians are printed. The resolver is the agent's own.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use futures::stream::{self, StreamExt, TryStreamExt};
use landfall_agent::dns::Resolver;
use tokio::net::UdpSocket;

use super::Line;
use super::speed::median;
use crate::names::{Hosts, answer};

const NAMES: u32 = 200;
const ROUNDS: u32 = 20;
const AT_ONCE: usize = 16;
const RUNS: usize = 7;
/// How late the name server answers.
const DELAY: Duration = Duration::from_millis(20);
/// How many times as fast the cache has to make it: with nothing but the first round left, twenty.
const LEAST_GAIN: f64 = 10.0;

/// Runs the section.
pub(super) fn run() -> anyhow::Result<Vec<Line>> {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(measure()))
}

/// A run: how long it took, and what the name server was asked.
struct Run {
    seconds: f64,
    asked: u32,
}

async fn measure() -> anyhow::Result<Vec<Line>> {
    let server = Server::start().await?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        with.push(server.resolve_all(&Resolver::new(Some(server.address))?).await?);
        without.push(server.resolve_all(&Resolver::without_cache(Some(server.address))?).await?);
    }
    let gain = with.iter().zip(&without).map(|(with, without)| without.seconds / with.seconds).collect();
    let mut lines = Vec::new();
    for (name, runs) in [("with the cache", &with), ("without", &without)] {
        let lookups = f64::from(NAMES * ROUNDS);
        let rate = median(runs.iter().map(|run| lookups / run.seconds).collect());
        lines.push(Line::plain(format!("{name}: lookups/s, {AT_ONCE} at once"), format!("{rate:.0}")));
        let asked = median(runs.iter().map(|run| f64::from(run.asked) / lookups).collect());
        lines.push(Line::plain(format!("{name}: questions to the name server for a lookup"), format!("{asked:.3}")));
    }
    lines.push(Line::at_least("with the cache, times as many lookups/s", median(gain), LEAST_GAIN));
    Ok(lines)
}

/// A name server that answers late.
struct Server {
    address: SocketAddr,
    asked: Arc<AtomicU32>,
}

impl Server {
    async fn start() -> anyhow::Result<Self> {
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.context("bind the name server")?);
        let server = Self { address: socket.local_addr()?, asked: Arc::default() };
        let asked = Arc::clone(&server.asked);
        let hosts: Hosts = (0..NAMES).map(|number| (host(number), Ipv4Addr::new(127, 2, 0, 1))).collect();
        tokio::spawn(async move {
            let mut question = [0_u8; 512];
            loop {
                // An earlier answer to a port that has closed comes back here as an error; the socket lives on.
                let Ok((length, from)) = socket.recv_from(&mut question).await else { continue };
                asked.fetch_add(1, Ordering::Relaxed);
                let Some(answer) = answer(&question[..length], &hosts) else { continue };
                let socket = Arc::clone(&socket);
                tokio::spawn(async move {
                    tokio::time::sleep(DELAY).await;
                    // Who asked will ask again.
                    drop(socket.send_to(&answer, from).await);
                });
            }
        });
        Ok(server)
    }

    async fn resolve_all(&self, resolver: &Resolver) -> anyhow::Result<Run> {
        let before = self.asked.load(Ordering::Relaxed);
        let started = Instant::now();
        for _ in 0..ROUNDS {
            let lookups = stream::iter(0..NAMES).map(|number| async move { resolver.resolve(&host(number)).await });
            lookups.buffer_unordered(AT_ONCE).try_collect::<Vec<_>>().await?;
        }
        let seconds = started.elapsed().as_secs_f64();
        Ok(Run { seconds, asked: self.asked.load(Ordering::Relaxed).saturating_sub(before) })
    }
}

fn host(number: u32) -> String {
    format!("www.site-{number}.test")
}
