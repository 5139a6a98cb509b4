//! Does to the scheduler's port what strangers do: opens streams, holds sockets, guesses secrets and
//! hangs up, on real sockets. Others must not notice.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs::{File, read_to_string};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use landfall_scheduler::app::server_certificate::{DOMAIN, install_crypto, prepare};
use landfall_scheduler::config::PortConfig;
use landfall_scheduler::grpc::listen;
use landfall_scheduler::grpc::port::Port;
use sqlx::{ConnectOptions as _, PgPool};
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::serving::{Serving, client_file, landfall, until};

/// Time limit of every wait.
const PATIENCE: Duration = Duration::from_secs(60);
const WATCH: &str = "/grpc.health.v1.Health/Watch";
const ENROL: &str = "/landfall.v1.AgentService/Enrol";
const STATUS: &str = "/landfall.v1.StatusService/ShowStatus";
/// A gRPC message without fields.
const EMPTY: &[u8] = &[0; 5];

/// A scheduler process on loopback, without TLS.
struct Scheduler {
    process: Serving,
    address: String,
    token: String,
    home: tempfile::TempDir,
}

impl Scheduler {
    /// Starts a scheduler that may open so many files.
    fn start(pool: &PgPool, descriptors: u64) -> Self {
        let url = pool.connect_options().to_url_lossy().to_string();
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_owned();
        let args = ["serve", "--database-url", &url, "--data-dir", "one", "--listen", "127.0.0.1:0"];
        let served = landfall(&home, &args);
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("ulimit -n {descriptors}; exec \"$@\"")).arg("sh");
        command.arg(served.get_program()).args(served.get_args()).current_dir(&home).env("HOME", &home);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(home.join("log")).unwrap());
        let process = Serving(command.spawn().unwrap());
        until("it serves", || !client_file(&home, "one").is_empty());
        let file = client_file(&home, "one");
        let value = |key: &str| file.lines().find_map(|line| line.strip_prefix(key)).unwrap().replace('"', "");
        let (address, token) = (value("scheduler = ").replace("http://", ""), value("token = "));
        Self { process, address, token, home: folder }
    }

    fn log(&self) -> String {
        read_to_string(self.home.path().join("log")).unwrap()
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends a request by HTTP/1.1, with a body of this type. Returns the whole answer.
    fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> String {
        let mut stream = self.connect();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
            self.address,
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Makes a call of gRPC. Returns the whole answer.
    fn call(&self, path: &str, secret: &str, headers: &str) -> String {
        let headers =
            format!("content-type: application/grpc\r\nte: trailers\r\nauthorization: Bearer {secret}\r\n{headers}");
        self.ask("POST", path, &headers, EMPTY)
    }

    /// The value of a metric.
    fn metric(&self, name: &str) -> u64 {
        let text = self.ask("GET", "/metrics", "", b"");
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {text}"));
        line.trim().parse().unwrap()
    }

    /// The processor time that the process has used.
    fn used(&self) -> Duration {
        let stat = read_to_string(format!("/proc/{}/stat", self.process.0.id())).unwrap();
        let ticks = stat.rsplit(") ").next().unwrap().split(' ').skip(11).take(2);
        Duration::from_millis(ticks.map(|ticks| ticks.parse::<u64>().unwrap() * 10).sum())
    }
}

/// A connection by HTTP/2, frame by frame.
struct Frames(TcpStream);

impl Frames {
    fn open(scheduler: &Scheduler) -> Self {
        let mut frames = Self(scheduler.connect());
        frames.0.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        frames.send(4, 0, 0, b"");
        frames
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        self.0.write_all(&[&head, payload].concat()).unwrap();
    }

    /// Begins a call: headers that are not indexed and not compressed.
    fn begin(&mut self, stream: u32, path: &str) {
        let mut block = vec![0x83, 0x86];
        for (name, value) in
            [(":path", path), (":authority", "localhost"), ("content-type", "application/grpc"), ("te", "trailers")]
        {
            block.extend([0, u8::try_from(name.len()).unwrap()]);
            block.extend(name.as_bytes());
            block.push(u8::try_from(value.len()).unwrap());
            block.extend(value.as_bytes());
        }
        self.send(1, 4, stream, &block);
    }

    /// The kind, stream and payload of the next frame.
    fn next(&mut self) -> (u8, u32, Vec<u8>) {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).unwrap();
        let mut payload = vec![0; usize::try_from(u32::from_be_bytes([0, head[0], head[1], head[2]])).unwrap()];
        self.0.read_exact(&mut payload).unwrap();
        (head[3], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload)
    }
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn one_connection_gets_few_streams_and_the_rest_are_refused(pool: PgPool) {
    let scheduler = Scheduler::start(&pool, 1024);
    let mut frames = Frames::open(&scheduler);
    let most = loop {
        if let (4, _, settings) = frames.next()
            && let Some(most) = settings.chunks(6).find(|setting| setting[..2] == [0, 3])
        {
            break u32::from_be_bytes([most[2], most[3], most[4], most[5]]);
        }
    };
    assert_eq!(most, PortConfig::default().streams);
    frames.send(4, 1, 0, b"");
    for number in 0..2 * most {
        frames.begin(2 * number + 1, WATCH);
        frames.send(0, 1, 2 * number + 1, EMPTY);
    }
    let (mut answered, mut refused) = (BTreeSet::new(), BTreeSet::new());
    while answered.len() + refused.len() < usize::try_from(2 * most).unwrap() {
        match frames.next() {
            (1, stream, _) => drop(answered.insert(stream)),
            (3, stream, _) => drop(refused.insert(stream)),
            (7, _, reason) => panic!("{reason:?}"),
            _ => {}
        }
    }
    assert_eq!((answered.last(), refused.first()), (Some(&(2 * most - 1)), Some(&(2 * most + 1))));
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn an_enrolment_whose_request_does_not_end_or_is_too_large_ends(pool: PgPool) {
    let scheduler = Scheduler::start(&pool, 1024);
    let mut frames = Frames::open(&scheduler);
    frames.begin(1, ENROL);
    frames.begin(3, ENROL);
    // Announces two million bytes, and sends five.
    frames.send(0, 0, 3, &[0, 0, 0x1e, 0x84, 0x80, 10, 10, 10, 10, 10]);
    let mut ended = Vec::new();
    while ended.len() < 2 {
        if let (1, stream, _) = frames.next() {
            ended.push(stream);
        }
    }
    ended.sort_unstable();
    assert_eq!(ended, [1, 3]);
    assert_eq!(scheduler.metric("landfall_port_refused_total{cause=\"body\"}"), 2);
    let large = scheduler.ask("POST", ENROL, "content-type: application/grpc\r\n", &[10; 5000]);
    assert!(large.contains("grpc-status: 8"), "{large}");
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn a_stranger_who_asks_for_nothing_is_cut_off_even_after_the_preface(pool: PgPool) {
    let scheduler = Scheduler::start(&pool, 1024);
    let mut frames = Frames::open(&scheduler);
    let mut all = Vec::new();
    match frames.0.read_to_end(&mut all) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
    assert_eq!(scheduler.metric("landfall_port_refused_total{cause=\"idle\"}"), 1);
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn wrong_secrets_of_every_kind_are_slowed_counted_and_logged_once(pool: PgPool) {
    let scheduler = Scheduler::start(&pool, 1024);
    assert!(scheduler.call(STATUS, &scheduler.token, "").contains("200 OK"));
    let session = "/landfall.v1.AgentService/Check";
    let began = Instant::now();
    let wrong = |path: &str| (0..10).filter(|_| scheduler.call(path, "wrong", "").contains("grpc-status: 16")).count();
    assert_eq!((wrong(STATUS), wrong(session)), (10, 10));
    assert!(scheduler.ask("POST", ENROL, "content-type: application/grpc\r\n", EMPTY).contains("grpc-status: 5"));
    assert!(began.elapsed() > Duration::from_secs(4), "sixteen at once, the others wait: {:?}", began.elapsed());
    let began = Instant::now();
    assert!(scheduler.call(STATUS, &scheduler.token, "").contains("200 OK"));
    assert!(began.elapsed() < Duration::from_secs(2), "a known token does not wait: {:?}", began.elapsed());
    for (cause, times) in [("operator-token", 10), ("credential", 10), ("enrolment-token", 1)] {
        assert_eq!(scheduler.metric(&format!("landfall_port_refused_total{{cause=\"{cause}\"}}")), times, "{cause}");
        assert_eq!(scheduler.log().matches(&format!("cause=\"{cause}\"")).count(), 1, "{}", scheduler.log());
    }
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn an_expired_deadline_is_told_as_one(pool: PgPool) {
    let scheduler = Scheduler::start(&pool, 1024);
    for deadline in ["1n", "1u", "100u", "300u", "1m"].iter().cycle().take(100) {
        let answer = scheduler.call(STATUS, &scheduler.token, &format!("grpc-timeout: {deadline}\r\n"));
        let in_time = answer.contains("grpc-status: 0") || !answer.contains("grpc-status: ");
        assert!(answer.contains("grpc-status: 4") || in_time, "{deadline}: {answer}");
        assert!(!in_time || !deadline.ends_with('n'), "{answer}");
    }
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn without_descriptors_the_scheduler_neither_spins_nor_stops(pool: PgPool) {
    let scheduler = Scheduler::start(&pool, 64);
    let held: Vec<TcpStream> = (0..200).map(|_| scheduler.connect()).collect();
    until("none is free", || scheduler.log().contains("cause=\"accept\"") || scheduler.log().contains("\"crowded\""));
    let (began, used) = (Instant::now(), scheduler.used());
    until("it answers", || scheduler.ask("GET", "/health/ready", "", b"").contains("200 OK"));
    until("five seconds are over", || began.elapsed() > Duration::from_secs(5));
    let used = scheduler.used() - used;
    assert!(used < began.elapsed() / 4, "{used:?} of {:?}", began.elapsed());
    drop(held);
    until("it answers", || scheduler.ask("GET", "/health/ready", "", b"").contains("200 OK"));
    let log = scheduler.log();
    assert!(log.matches("cause=\"accept\"").count() <= 2 && log.matches("cause=\"crowded\"").count() <= 2, "{log}");
}

#[tokio::test]
async fn thousands_of_silent_sockets_keep_no_client_out() {
    install_crypto();
    let dir = tempfile::tempdir().unwrap();
    let today = std::fs::metadata("/proc/self").unwrap().modified().unwrap().into();
    let prepared = prepare(dir.path(), &["127.0.0.1".to_owned()], today).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let (_, health) = tonic_health::server::health_reporter();
    let config = PortConfig { strangers: 100, peer_strangers: 50, ..PortConfig::default() };
    let (routes, port) = (Routes::new(health).into_axum_router(), Arc::new(Port::new(config)));
    let _serving = tokio::spawn(listen(listener, Some(prepared.config), routes, port, CancellationToken::new()));

    let mut silent = Vec::new();
    for number in 0..800_u16 {
        let socket = TcpSocket::new_v4().unwrap();
        let last = u8::try_from(number % 4).unwrap() + 1;
        socket.bind(SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
        silent.push(socket.connect(address).await.unwrap());
    }
    let pem = Certificate::from_pem(std::fs::read(dir.path().join("tls/ca.pem")).unwrap());
    let tls = ClientTlsConfig::new().ca_certificate(pem).domain_name(DOMAIN);
    let began = Instant::now();
    let client = Endpoint::from_shared(format!("https://{address}")).unwrap().tls_config(tls).unwrap();
    let mut client = HealthClient::new(client.connect().await.unwrap());
    client.check(HealthCheckRequest::default()).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}
