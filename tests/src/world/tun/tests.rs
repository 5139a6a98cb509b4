//! Tests of the emulated network, with real sockets in real namespaces.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::*;
use crate::world::addresses::Lane;
use crate::world::scenario::{Layout, SMALL, Scenario};

/// The port of all servers in the tests.
const PORT: u16 = 4000;
/// Time limit for an answer, far longer than any round trip in the tests.
const PATIENCE: Duration = Duration::from_secs(3);

fn scenario(change: impl FnOnce(&mut Scenario)) -> Scenario {
    let mut scenario = Layout::parse(SMALL, "small.toml").unwrap().scenario(None, None).unwrap();
    scenario.mesh.iter_mut().chain(&mut scenario.paths).flatten().for_each(|link| link.loss = 0.0);
    change(&mut scenario);
    scenario
}

/// Starts a network. If this machine does not support the tun grade, the reason is printed, and the
/// result is `None`.
fn network(scenario: &Scenario) -> Option<Network> {
    if let Some(reason) = missing() {
        eprintln!("skipped: {reason}");
        return None;
    }
    Some(Network::start(scenario).unwrap())
}

/// Starts a server that echoes datagrams, and ends when no datagram has arrived for [`PATIENCE`].
fn echo(namespace: &NetNamespace, address: Ipv4Addr) -> std::thread::JoinHandle<()> {
    let socket = namespace.run(move || UdpSocket::bind((address, PORT))).unwrap().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    std::thread::spawn(move || {
        let mut packet = [0_u8; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut packet) {
            // Sending may fail because of a cut.
            let _ = socket.send_to(&packet[..length], from);
        }
    })
}

/// A socket in an agent's namespace that is connected to an echo server.
fn asker(network: &Network, agent: usize, echo: Ipv4Addr) -> UdpSocket {
    let address = Lane::TUN.agent(agent);
    let socket = network.agent(agent).run(move || UdpSocket::bind((address, 0))).unwrap().unwrap();
    socket.connect((echo, PORT)).unwrap();
    socket
}

/// Sends a datagram, and returns the time until its echo arrives; `None` if no echo arrives in
/// time. Late echoes of earlier datagrams are ignored.
fn ask(socket: &UdpSocket, patience: Duration) -> Option<Duration> {
    static ASKED: AtomicU64 = AtomicU64::new(0);
    let question = ASKED.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let start = Instant::now();
    socket.send(&question).unwrap();
    let mut answer = [0_u8; 8];
    while let Some(left) = patience.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
        socket.set_read_timeout(Some(left)).unwrap();
        match socket.recv(&mut answer) {
            Ok(_) if answer == question => return Some(start.elapsed()),
            Ok(_) => {}
            Err(error) => assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}"),
        }
    }
    None
}

/// The shortest of 20 round trips. Longer round trips are due to the load of the machine.
fn best(socket: &UdpSocket) -> Duration {
    (0..20).map(|_| ask(socket, PATIENCE).unwrap()).min().unwrap()
}

#[test]
fn datagrams_and_handshakes_take_the_scenarios_round_trip() {
    let scenario = scenario(|_| {});
    let Some(network) = network(&scenario) else { return };
    let mut echoes = vec![echo(network.core(), Lane::TUN.site(7)), echo(network.agent(1), Lane::TUN.agent(1))];
    for (agent, target, link) in
        [(3, Lane::TUN.site(7), scenario.paths[3][7]), (0, Lane::TUN.agent(1), scenario.mesh[0][1])]
    {
        let took = best(&asker(&network, agent, target));
        println!("{took:?} for {:?}", link.rtt());
        assert!(took >= link.rtt(), "{took:?} for {:?}", link.rtt());
        assert!(took < link.rtt() + Duration::from_millis(20), "{took:?} for {:?}", link.rtt());
    }
    let listener = network.core().run(|| TcpListener::bind((Lane::TUN.site(7), PORT))).unwrap().unwrap();
    let handshake = || {
        let address = SocketAddr::new(Lane::TUN.site(7).into(), PORT);
        let start = Instant::now();
        network.agent(3).run(move || TcpStream::connect_timeout(&address, PATIENCE)).unwrap().unwrap();
        start.elapsed()
    };
    let took = (0..10).map(|_| handshake()).min().unwrap();
    let rtt = scenario.paths[3][7].rtt();
    assert!(took >= rtt && took < rtt + Duration::from_millis(20), "{took:?} for {rtt:?}");
    drop(listener);
    network.end();
    assert!(network.agent(0).run(|| ()).is_err(), "the namespaces are gone");
    echoes.drain(..).for_each(|echo| echo.join().unwrap());
}

#[test]
fn the_scenarios_share_of_packets_is_lost() {
    const SENT: usize = 1000;
    let scenario = scenario(|scenario| scenario.paths[2][5].loss = 0.2);
    let Some(network) = network(&scenario) else { return };
    let echo = echo(network.core(), Lane::TUN.site(5));
    let socket = asker(&network, 2, Lane::TUN.site(5));
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut answered = 0_usize;
    let mut packet = [0_u8; 16];
    for _ in 0..SENT / 100 {
        (0..100).for_each(|_| assert_eq!(socket.send(b"landfall").unwrap(), 8));
        while socket.recv(&mut packet).is_ok() {
            answered += 1;
        }
    }
    // The loss is 0.2 in each direction, so 64 % of the datagrams return. The bounds are four
    // standard deviations from the expected number.
    assert!((580..=700).contains(&answered), "{answered} of {SENT}");
    assert_eq!(network.traffic().overrun.load(Ordering::Relaxed), 0);
    drop(network);
    echo.join().unwrap();
}

#[test]
fn an_agent_is_cut_off_and_healed_while_packets_flow() {
    let scenario = scenario(|_| {});
    let Some(network) = network(&scenario) else { return };
    let rtt = scenario.paths[2][5].rtt();
    let echoes = [echo(network.core(), Lane::TUN.site(5)), echo(network.agent(2), Lane::TUN.agent(2))];
    let (out, others) = (asker(&network, 2, Lane::TUN.site(5)), asker(&network, 4, Lane::TUN.site(5)));
    for cut in [CutDirection::Both, CutDirection::Towards, CutDirection::From] {
        network.cuts().cut(2, cut);
        assert_eq!(ask(&out, rtt * 3), None, "{cut:?}");
        assert!(ask(&others, PATIENCE).is_some(), "{cut:?}: another agent is not touched");
        network.cuts().heal(2);
        // Datagrams that were sent during the cut are lost, so the first answer is that of the new
        // datagram.
        let after = ask(&out, PATIENCE).unwrap();
        assert!(after >= rtt, "{cut:?}: {after:?}");
    }
    drop(network);
    echoes.into_iter().for_each(|echo| echo.join().unwrap());
}

#[test]
fn a_download_fills_the_access_link_and_no_more() {
    // 1 MB takes 0.42 s at 2.5 MB/s, including headers. A much shorter time would mean that the
    // link does not limit the rate.
    const BYTES: usize = 1_000_000;
    let scenario = scenario(|scenario| scenario.paths[2][5].rtt_ms = 20.0);
    let Some(network) = network(&scenario) else { return };
    let listener = network.core().run(|| TcpListener::bind((Lane::TUN.site(5), PORT))).unwrap().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&vec![7; BYTES]).unwrap();
    });
    let address = SocketAddr::new(Lane::TUN.site(5).into(), PORT);
    let mut stream = network.agent(2).run(move || TcpStream::connect_timeout(&address, PATIENCE)).unwrap().unwrap();
    let start = Instant::now();
    let mut body = Vec::new();
    stream.read_to_end(&mut body).unwrap();
    let took = start.elapsed();
    server.join().unwrap();
    assert_eq!(body.len(), BYTES);
    println!("{BYTES} bytes in {took:?}; {:?}", network.traffic());
    assert!(took >= Duration::from_millis(380), "{took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn an_agent_reaches_a_running_scheduler_on_its_loopback_unless_its_link_is_cut() {
    let scenario = scenario(|_| {});
    let Some(network) = network(&scenario) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (tasks, shutdown) = (TaskTracker::new(), CancellationToken::new());
    let scheduler = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = scheduler.local_addr().unwrap();
    let context = runtime.enter();
    network.forward(address.port(), &tasks, &shutdown).unwrap();
    network.forward(address.port(), &tasks, &shutdown).unwrap();
    drop(context);
    let connect = || network.agent(3).run(move || TcpStream::connect_timeout(&address, PATIENCE)).unwrap().unwrap();
    let start = Instant::now();
    let mut near = connect();
    let (mut far, peer) = scheduler.accept().unwrap();
    assert_eq!(peer.ip(), Ipv4Addr::new(127, 1, 0, 4));
    far.write_all(b"welcome").unwrap();
    let mut said = [0_u8; 7];
    near.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"welcome");
    let (took, rtt) = (start.elapsed(), scenario.mesh[0][3].rtt());
    assert!(took >= rtt * 3 / 2, "{took:?} for a handshake and half of {rtt:?}");

    network.cuts().cut(3, CutDirection::Both);
    far.write_all(b"anybody").unwrap();
    near.set_read_timeout(Some(rtt * 4)).unwrap();
    assert!(near.read(&mut said).is_err(), "nothing passes a cut");
    network.cuts().heal(3);
    near.set_read_timeout(Some(PATIENCE * 4)).unwrap();
    near.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"anybody", "the kernel sent it again");

    drop((far, scheduler));
    assert_eq!(near.read(&mut said).unwrap(), 0, "the scheduler's end is the connection's");
    let mut refused = connect();
    refused.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(matches!(refused.read(&mut said), Ok(0) | Err(_)));
    let back = TcpListener::bind(address).unwrap();
    let mut near = connect();
    back.accept().unwrap().0.write_all(b"back").unwrap();
    near.read_exact(&mut said[..4]).unwrap();
    shutdown.cancel();
}

#[test]
fn processes_run_in_their_namespace_and_end_with_it() {
    let scenario = scenario(|_| {});
    let Some(network) = network(&scenario) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let _context = runtime.enter();
    let namespace = network.agent(1).clone();
    let mut command = namespace.command("sleep");
    command.arg("600").kill_on_drop(true);
    let mut child = namespace.run(move || command.spawn()).unwrap().unwrap();
    let namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/net")).unwrap();
    assert_ne!(namespace(&child.id().unwrap().to_string()), namespace("self"));
    drop(network);
    let ended = runtime.block_on(async { tokio::time::timeout(PATIENCE, child.wait()).await });
    assert!(!ended.unwrap().unwrap().success());
}

/// Environment variable of the process that the test kills.
const TO_BE_KILLED: &str = "LANDFALL_LAB_TO_BE_KILLED";

/// Starts a network and a process in its namespace, prints the process id, and waits until the lab
/// is killed.
fn wait_to_be_killed() {
    let network = Network::start(&scenario(|_| {})).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let _context = runtime.enter();
    let namespace = network.agent(0).clone();
    let mut command = namespace.command("sleep");
    command.arg("600");
    let child = namespace.run(move || command.spawn()).unwrap().unwrap();
    println!("\nprocess {}", child.id().unwrap());
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn a_killed_lab_leaves_neither_processes_nor_namespaces() {
    if std::env::var_os(TO_BE_KILLED).is_some() {
        return wait_to_be_killed();
    }
    if let Some(reason) = missing() {
        eprintln!("skipped: {reason}");
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "world::tun::tests::a_killed_lab_leaves_neither_processes_nor_namespaces", "--nocapture"]);
    let mut lab = command.env(TO_BE_KILLED, "1").stdout(Stdio::piped()).spawn().unwrap();
    let said = BufReader::new(lab.stdout.take().unwrap());
    let mut lines = said.lines().map(Result::unwrap);
    let pid = lines.find_map(|line| Some(line.strip_prefix("process ")?.to_owned())).unwrap();
    let namespace = std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
    assert_ne!(namespace, std::fs::read_link("/proc/self/ns/net").unwrap());
    assert!(inhabitants(&namespace).contains(&pid));
    lab.kill().unwrap();
    lab.wait().unwrap();
    let start = Instant::now();
    while !inhabitants(&namespace).is_empty() {
        assert!(start.elapsed() < PATIENCE, "{:?} outlive their lab", inhabitants(&namespace));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The ids of all processes that have a thread in a namespace.
fn inhabitants(namespace: &PathBuf) -> Vec<String> {
    let processes =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let inside = |pid: &String| {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        threads
            .into_iter()
            .any(|thread| std::fs::read_link(thread.path().join("ns/net")).is_ok_and(|net| net == *namespace))
    };
    processes.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())).filter(inside).collect()
}
