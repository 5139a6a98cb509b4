//! Measures the tun grade: the lateness of single packets and of many simultaneous packets, the
//! packets per second that the router forwards, and the time to set up and remove the network. The
//! figures are valid only on a quiet machine, so the idle time is printed.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpCongestion;
use tokio::net::TcpSocket;

use super::{Line, median};
use crate::evidence::machine::CpuTime;
use crate::world::layout::{Layout, PAPER};
use crate::world::scenario::{Link, Scenario};
use crate::world::sites::CONGESTION_CONTROL;
use crate::world::too_busy;
use crate::world::tun::{Network, missing};
use crate::world::wan::Lane;

const ROUNDS: usize = 5;
/// Numbers of agents for which the setup is measured. With the namespace of the servers, there are
/// 8 and 31 namespaces.
const FLEETS: [usize; 2] = [7, 30];
const ROUND_TRIPS_MS: [f64; 5] = [1.0, 10.0, 50.0, 100.0, 300.0];
const ECHOES: usize = 40;
/// Numbers of simultaneous connections.
const CROWDS: [usize; 2] = [50, 800];
/// Number of sites that accept the connections.
const SITES: usize = 50;
const PORT: u16 = 4000;
const PATIENCE: Duration = Duration::from_secs(5);
/// Sizes of bodies in bytes, each with the round trips in milliseconds of the paths over which it
/// is transferred.
const BODIES: [(usize, [f64; 4]); 2] = [(50_000, [10.0, 50.0, 100.0, 200.0]), (2_000_000, [10.0, 50.0, 100.0, 200.0])];
const BODIES_EACH: usize = 7;
/// Size in bytes of each datagram of the flood.
const DATAGRAM: usize = 200;
const FLOOD: Duration = Duration::from_secs(3);
/// Maximum error of single echoes in milliseconds.
const MAX_ECHO_ERROR_MS: f64 = 1.0;

pub(super) fn run() -> anyhow::Result<Vec<Line>> {
    if let Some(reason) = missing() {
        return Ok(vec![Line::plain(format!("skipped: {reason}"), "")]);
    }
    let began = CpuTime::now();
    let mut lines = Vec::new();
    for agents in FLEETS {
        lines.extend(setting_up(agents)?);
    }
    lines.extend(echoes()?);
    // `crowds` runs in another thread, because it blocks on its own runtime. In a thread of the
    // lab's runtime, this would panic.
    lines.extend(std::thread::spawn(crowds).join().map_err(|_| anyhow::anyhow!("the crowds panicked"))??);
    for (bytes, round_trips_ms) in BODIES {
        lines.extend(downloads(bytes, &round_trips_ms)?);
    }
    lines.push(flood()?);
    let idle = CpuTime::now().zip(began).map_or(0.0, |(now, began)| now.idle_since(began));
    lines.push(Line::plain("the machine's idle share meanwhile", format!("{idle:.2}")));
    lines.extend(too_busy(idle).map(|reason| Line::plain(format!("VOID: {reason}"), "")));
    Ok(lines)
}

/// The paper's layout, without packet loss.
fn scenario(agents: usize) -> anyhow::Result<Scenario> {
    let mut scenario = Layout::parse(PAPER, "paper.toml")?.scenario(Some(agents), None)?;
    scenario.mesh.iter_mut().chain(&mut scenario.paths).flatten().for_each(|link| link.loss = 0.0);
    Ok(scenario)
}

fn setting_up(agents: usize) -> anyhow::Result<[Line; 2]> {
    let scenario = scenario(agents)?;
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let network = Network::start(&scenario)?;
        up.push(began.elapsed().as_secs_f64());
        let began = Instant::now();
        network.end();
        down.push(began.elapsed().as_secs_f64());
    }
    let namespaces = agents + 1;
    Ok([
        Line::plain(format!("{namespaces} namespaces set up, s"), format!("{:.3}", median(up))),
        Line::plain(format!("{namespaces} namespaces taken down, s"), format!("{:.3}", median(down))),
    ])
}

fn echoes() -> anyhow::Result<Vec<Line>> {
    let mut scenario = scenario(1)?;
    for (link, rtt_ms) in scenario.paths[0].iter_mut().zip(ROUND_TRIPS_MS) {
        link.rtt_ms = rtt_ms;
    }
    let network = Network::start(&scenario)?;
    let mut lines = Vec::new();
    for (site, rtt_ms) in ROUND_TRIPS_MS.into_iter().enumerate() {
        let answering = echo(&network, site)?;
        let socket = network.agent(0).run(|| UdpSocket::bind((Lane::TUN.agent(0), 0)))??;
        socket.connect((Lane::TUN.site(site), PORT))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut errors = Vec::new();
        for _ in 0..ECHOES {
            let began = Instant::now();
            socket.send(&[1; 8])?;
            socket.recv(&mut [0; 8]).context("wait for an echo")?;
            errors.push(began.elapsed().as_secs_f64() * 1e3 - rtt_ms);
        }
        socket.send(&[])?;
        answering.join().map_err(|_| anyhow::anyhow!("the echo panicked"))??;
        let [p50, p95] = quantiles(errors);
        lines.push(Line::plain(format!("echo minus {rtt_ms} ms, p50, ms"), format!("{p50:.3}")));
        lines.push(Line::at_most(format!("echo minus {rtt_ms} ms, p95, ms"), p95, MAX_ECHO_ERROR_MS));
    }
    Ok(lines)
}

/// Starts a server that echoes every datagram. An empty datagram ends the server.
fn echo(network: &Network, site: usize) -> anyhow::Result<std::thread::JoinHandle<std::io::Result<()>>> {
    let socket = network.core().run(move || UdpSocket::bind((Lane::TUN.site(site), PORT)))??;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(std::thread::spawn(move || {
        let mut packet = [0; 64];
        loop {
            let (length, from) = socket.recv_from(&mut packet)?;
            if length == 0 {
                return Ok(());
            }
            socket.send_to(&packet[..length], from)?;
        }
    }))
}

fn crowds() -> anyhow::Result<Vec<Line>> {
    let scenario = scenario(30)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut lines = Vec::new();
    for crowd in CROWDS {
        let network = Network::start(&scenario)?;
        let listeners: Vec<std::io::Result<TcpListener>> =
            network.core().run(|| (0..SITES).map(|site| TcpListener::bind((Lane::TUN.site(site), PORT))).collect())?;
        let _listeners = listeners.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut errors = Vec::new();
        for _ in 0..ROUNDS {
            let handshakes = (0..crowd).map(|number| handshake(&network, &scenario, number));
            let handshakes = handshakes.collect::<anyhow::Result<Vec<_>>>()?;
            let all = runtime
                .block_on(async { futures_util::future::join_all(handshakes.into_iter().map(tokio::spawn)).await });
            for error in all {
                errors.push(error??);
            }
        }
        let [p50, p95] = quantiles(errors);
        lines.push(Line::plain(format!("connect error of {crowd} at once, p50, ms"), format!("{p50:.3}")));
        lines.push(Line::plain(format!("connect error of {crowd} at once, p95, ms"), format!("{p95:.3}")));
        let late = network.lateness().quantile(0.99);
        lines.push(Line::plain(format!("the router's lateness of {crowd} at once, p99"), format!("{late:.1?}")));
    }
    Ok(lines)
}

/// Measures the error of a handshake in milliseconds. The socket is created in advance, so that all
/// handshakes begin at the same time.
fn handshake(
    network: &Network,
    scenario: &Scenario,
    number: usize,
) -> anyhow::Result<impl Future<Output = anyhow::Result<f64>> + use<>> {
    let (agent, site) = (number % scenario.agents.len(), number % SITES);
    let socket = network.agent(agent).run(TcpSocket::new_v4)??;
    let rtt = scenario.paths[agent][site].rtt();
    let address = SocketAddr::new(Lane::TUN.site(site).into(), PORT);
    Ok(async move {
        let began = Instant::now();
        let _stream = tokio::time::timeout(PATIENCE, socket.connect(address)).await??;
        Ok((began.elapsed().as_secs_f64() - rtt.as_secs_f64()) * 1e3)
    })
}

/// Measures transfer rates over different distances at 50 Mbit/s and 0.01 % loss. As on the
/// Internet, transfers over shorter distances must be faster.
fn downloads(bytes: usize, round_trips_ms: &[f64]) -> anyhow::Result<Vec<Line>> {
    let mut scenario = scenario(1)?;
    scenario.agent_bytes_per_s = 50e6 / 8.0;
    let mut lines = Vec::new();
    for &rtt_ms in round_trips_ms {
        scenario.paths[0][0] = Link { rtt_ms, loss: 1e-4 };
        let network = Network::start(&scenario)?;
        let listener = network.core().run(|| TcpListener::bind((Lane::TUN.site(0), PORT)))??;
        setsockopt(&listener, TcpCongestion, &OsString::from(CONGESTION_CONTROL))?;
        let server = std::thread::spawn(move || -> std::io::Result<()> {
            for _ in 0..BODIES_EACH {
                let (mut stream, _) = listener.accept()?;
                stream.read_exact(&mut [0])?;
                stream.write_all(&vec![0; bytes])?;
            }
            Ok(())
        });
        let mut rates = Vec::new();
        for _ in 0..BODIES_EACH {
            let address = SocketAddr::new(Lane::TUN.site(0).into(), PORT);
            let mut stream = network.agent(0).run(move || TcpStream::connect_timeout(&address, PATIENCE))??;
            let began = Instant::now();
            stream.write_all(&[0])?;
            let body = std::io::copy(&mut stream, &mut std::io::sink())?;
            anyhow::ensure!(body == u64::try_from(bytes)?, "{body} of {bytes} bytes came");
            rates.push(f64::from(u32::try_from(bytes)?) * 8e-6 / began.elapsed().as_secs_f64());
        }
        server.join().map_err(|_| anyhow::anyhow!("the server panicked"))??;
        let what = format!("Mbit/s of a body of {} KB at {rtt_ms} ms, median of {BODIES_EACH}", bytes / 1000);
        lines.push(Line::plain(what, format!("{:.2}", median(rates))));
    }
    Ok(lines)
}

/// Measures how many packets from two agents the router forwards per second.
fn flood() -> anyhow::Result<Line> {
    let mut scenario = scenario(2)?;
    scenario.agent_bytes_per_s = 1e9;
    let network = Network::start(&scenario)?;
    let receiver = network.core().run(|| UdpSocket::bind((Lane::TUN.site(0), PORT)))??;
    let end = Instant::now() + FLOOD;
    let mut threads = Vec::new();
    for agent in 0..2 {
        let socket = network.agent(agent).run(move || UdpSocket::bind((Lane::TUN.agent(agent), 0)))??;
        socket.connect((Lane::TUN.site(0), PORT))?;
        threads.push(std::thread::spawn(move || {
            while Instant::now() < end {
                // Sending fails when the queue of the router is full, which is intended.
                let _ = socket.send(&[0; DATAGRAM]);
            }
        }));
    }
    threads.into_iter().for_each(|thread| drop(thread.join()));
    let carried = network.traffic().carried.load(Ordering::Relaxed);
    drop(receiver);
    let rate = f64::from(u32::try_from(carried)?) / FLOOD.as_secs_f64();
    Ok(Line::plain("packets/s of two agents that send all they can", format!("{rate:.0}")))
}

fn quantiles(mut values: Vec<f64>) -> [f64; 2] {
    values.sort_by(f64::total_cmp);
    [50, 95].map(|percent| values.get((values.len() * percent).div_ceil(100) - 1).copied().unwrap_or(0.0))
}
