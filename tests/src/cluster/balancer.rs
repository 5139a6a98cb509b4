//! A haproxy before two Postgres servers that the lab started, which the lab turns to one or the
//! other.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::process::Command;

use super::postgres::SharedPostgres;
use super::process::{Process, until};
use crate::machine::free_port;

const PROGRAM: &str = "/usr/sbin/haproxy";
const PATIENCE: Duration = Duration::from_secs(20);

/// A running haproxy. Dropping it kills the process.
#[derive(Debug)]
pub struct Balancer {
    _process: Process,
    commands: PathBuf,
    url: String,
}

impl Balancer {
    /// Why no haproxy can be started here; `None` if it can.
    pub fn missing() -> Option<&'static str> {
        (!Path::new(PROGRAM).exists()).then_some("haproxy is not installed")
    }

    /// Starts a haproxy that leads to the first server.
    pub async fn start(first: &SharedPostgres, second: &SharedPostgres, folder: &Path) -> anyhow::Result<Self> {
        let port = free_port()?;
        let commands = folder.join("haproxy.sock");
        let socket = |server: &SharedPostgres| server.directory().join("run/.s.PGSQL.5432").display().to_string();
        let text = format!(
            "global\n  stats socket {} level admin\n\
             defaults\n  mode tcp\n  timeout connect 2s\n  timeout client 1h\n  timeout server 1h\n\
             listen database\n  bind 127.0.0.1:{port}\n  server first unix@{}\n  server second unix@{} disabled\n",
            commands.display(),
            socket(first),
            socket(second),
        );
        let config = folder.join("haproxy.cfg");
        std::fs::write(&config, text).with_context(|| format!("write {}", config.display()))?;
        let mut command = Command::new(PROGRAM);
        command.arg("-db").arg("-f").arg(&config);
        let mut process = Process::spawn("haproxy", command, folder)?;
        let listening = until("haproxy to listen", PATIENCE, async || {
            process.ensure_running()?;
            Ok(TcpStream::connect(("127.0.0.1", port)).await.ok().map(drop))
        });
        listening.await?;
        let url = format!("postgres://postgres@127.0.0.1:{port}/landfall");
        Ok(Self { _process: process, commands, url })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Leads new connections to the second server, and leaves the others as they are.
    pub async fn turn(&self) -> anyhow::Result<()> {
        for command in ["set server database/second state ready\n", "set server database/first state maint\n"] {
            let mut stream = UnixStream::connect(&self.commands).await.context("connect to haproxy")?;
            stream.write_all(command.as_bytes()).await.context("command haproxy")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.context("read haproxy's answer")?;
            ensure!(answer.trim().is_empty(), "haproxy: {}", answer.trim());
        }
        Ok(())
    }
}
