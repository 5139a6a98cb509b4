//! A scheduler process of a cluster, which can be killed, and restarted at the same address. Also a
//! collector of the traces that schedulers and agents send, which accepts every request and stores
//! nothing.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use landfall_scheduler::app::token_and_client_file::{CLIENT_FILE, ClientFile};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;

use super::process::{Process, until};

/// The contact URL in the user agent of all agents.
pub const CONTACT_URL: &str = "https://lab.test/crawler";
/// Time limit for a scheduler to start. Starting may include initialising a database.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// The name of the file with the operator's token in a data directory.
const TOKEN_FILE: &str = "operator-token";

#[derive(Debug, Clone)]
pub struct SchedulerOptions {
    pub binary: PathBuf,
    pub data_dir: PathBuf,
    pub config: PathBuf,
    /// The URL of a shared database; `None` if the scheduler has a private database.
    pub database_url: Option<String>,
    pub logs: PathBuf,
}

#[derive(Debug)]
pub struct SchedulerNode {
    options: SchedulerOptions,
    name: String,
    address: SocketAddr,
    process: Process,
}

impl SchedulerNode {
    /// Starts a scheduler on a free loopback port, and waits until it answers.
    pub async fn start(name: &str, options: SchedulerOptions) -> anyhow::Result<Self> {
        let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let process = spawn(name, &options, anywhere)?;
        let mut node = Self { options, name: name.to_owned(), address: anywhere, process };
        node.await_started().await?;
        let told = ClientFile::read(&node.options.data_dir)?.context("the scheduler wrote no client.toml")?;
        let own = told.scheduler.first().context("the scheduler's client.toml names none")?;
        let address = own.trim_start_matches("http://");
        node.address = address.parse().with_context(|| format!("{address} is not the scheduler's address"))?;
        Ok(node)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn data_dir(&self) -> &Path {
        &self.options.data_dir
    }

    /// The process id; `None` if the process has ended.
    pub fn pid(&self) -> Option<Pid> {
        self.process.pid()
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    pub(super) fn log(&self) -> &Path {
        self.process.log()
    }

    pub fn tail(&self) -> String {
        self.process.tail()
    }

    /// Asks the scheduler whether it is ready. Returns the whole response.
    pub async fn readiness(&self) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(self.address).await.context("connect to the scheduler")?;
        let request = "GET /health/ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.context("ask")?;
        let mut response = String::new();
        stream.read_to_string(&mut response).await.context("read the answer")?;
        Ok(response)
    }

    /// Restarts the scheduler at the same address. The function does not wait until the scheduler
    /// answers.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.process = spawn(&self.name, &self.options, self.address)?;
        Ok(())
    }

    /// Restarts the scheduler at the same address with another data directory, and waits until it
    /// answers.
    pub(super) async fn move_to(&mut self, data_dir: PathBuf) -> anyhow::Result<()> {
        self.options.data_dir = data_dir;
        self.restart()?;
        self.await_started().await
    }

    /// Restarts the scheduler at the same address after its data directory was replaced, and waits
    /// until it answers.
    pub(super) async fn begin_again(&mut self) -> anyhow::Result<()> {
        let told = self.options.data_dir.join(CLIENT_FILE);
        // The scheduler writes client.toml when it is ready for requests, and `await_started` waits
        // for this file. The client.toml of the previous run would end the wait too early, so it is
        // removed.
        match std::fs::remove_file(&told) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("remove {}", told.display()));
            }
            _ => {}
        }
        self.restart()?;
        self.await_started().await
    }

    /// Copies the operator's token to another scheduler's data directory. The token must be copied
    /// before the other scheduler first starts.
    pub fn introduce(&self, data_dir: &Path) -> anyhow::Result<()> {
        // The scheduler requires that only its user can enter the directory.
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(data_dir).context("make a data directory")?;
        // The scheduler recognises its data directory by the file landfall.lock.
        std::fs::File::create(data_dir.join("landfall.lock")).context("make a data directory")?;
        let token = self.options.data_dir.join(TOKEN_FILE);
        std::fs::copy(&token, data_dir.join(TOKEN_FILE)).with_context(|| format!("copy {}", token.display()))?;
        Ok(())
    }

    async fn await_started(&mut self) -> anyhow::Result<()> {
        let client_file = self.options.data_dir.join(CLIENT_FILE);
        let process = &mut self.process;
        let started = until("the scheduler to start", START_PATIENCE, async || {
            process.ensure_running()?;
            Ok(client_file.exists().then_some(()))
        });
        started.await.with_context(|| self.tail())
    }
}

fn spawn(name: &str, options: &SchedulerOptions, listen: SocketAddr) -> anyhow::Result<Process> {
    ensure!(listen.ip().is_loopback(), "the lab's schedulers listen on loopback, not on {listen}");
    let mut command = Command::new(&options.binary);
    command.arg("--data-dir").arg(&options.data_dir);
    match &options.database_url {
        Some(url) => command.args(["serve", "--database-url", url]),
        None => command.arg("up"),
    };
    command.args(["--listen", &listen.to_string(), "--contact-url", CONTACT_URL]);
    command.arg("--config").arg(&options.config);
    Process::spawn(name, command, &options.logs)
}

/// Starts a collector, which calls `take` for every request until the runtime ends. Returns its
/// address.
pub async fn collector(take: impl Fn(&Parts, &Bytes) + Clone + Send + 'static) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await.context("listen as a collector")?;
    let address = listener.local_addr().context("read the collector's address")?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let take = take.clone();
            let service = service_fn(move |request| accept(request, take.clone()));
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    Ok(address)
}

async fn accept(
    request: Request<Incoming>,
    take: impl Fn(&Parts, &Bytes),
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    // If the client disconnects while it sends a body, ignore the request.
    if let Ok(body) = body.collect().await {
        take(&head, &body.to_bytes());
    }
    Ok(Response::new(Full::from("{}")))
}
