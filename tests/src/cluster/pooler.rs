//! A pgbouncer before a Postgres that the lab started.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpStream;
use tokio::process::Command;

use super::postgres::SharedPostgres;
use super::process::{Process, until};
use crate::machine::free_port;

const PROGRAM: &str = "/usr/sbin/pgbouncer";
const PATIENCE: Duration = Duration::from_secs(20);

/// A running pgbouncer. Dropping it kills the process.
#[derive(Debug)]
pub struct Pooler {
    _process: Process,
    url: String,
}

impl Pooler {
    /// Why no pgbouncer can be started here; `None` if it can.
    pub fn missing() -> Option<&'static str> {
        (!Path::new(PROGRAM).exists()).then_some("pgbouncer is not installed")
    }

    /// Starts a pgbouncer with these lines in its configuration.
    pub async fn start(postgres: &SharedPostgres, name: &str, lines: &str) -> anyhow::Result<Self> {
        let folder = postgres.directory();
        let port = free_port()?;
        let socket = folder.join("run");
        let text = format!(
            "[databases]\nlandfall = host={} dbname=landfall user=postgres\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
             default_pool_size = 60\n{lines}\n",
            socket.display()
        );
        let config: PathBuf = folder.join(format!("{name}.ini"));
        std::fs::write(&config, text).with_context(|| format!("write {}", config.display()))?;
        let mut command = Command::new(PROGRAM);
        if nix::unistd::geteuid().is_root() {
            command.args(["--user", "postgres"]);
        }
        command.arg(&config);
        let mut process = Process::spawn(name, command, folder)?;
        let listening = until("pgbouncer to listen", PATIENCE, async || {
            process.ensure_running()?;
            Ok(TcpStream::connect(("127.0.0.1", port)).await.ok().map(drop))
        });
        listening.await?;
        Ok(Self { _process: process, url: format!("postgres://postgres@127.0.0.1:{port}/landfall") })
    }

    pub fn url(&self) -> &str {
        &self.url
    }
}
