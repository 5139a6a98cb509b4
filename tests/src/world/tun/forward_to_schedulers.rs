//! Forwards agents' connections to the schedulers, which listen on the host's loopback without TLS.
//!
//! In every agent's namespace, the lab listens on 127.0.0.1 at the scheduler's port, so that the
//! address in the agent's configuration is valid. The lab passes the bytes through the router to a
//! listener in the servers' namespace, and from there to the host. Because the router carries the
//! bytes, its delays and cuts apply to the agents' connections, too.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::namespace::NetNamespace;
use crate::world::site_servers::listen;

/// Time limit for a connection through the network. The time limit of agents is shorter.
const CONNECT: Duration = Duration::from_secs(30);
/// Delay after a failed accept. Probably no file descriptor is free; one may become free during the
/// delay.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// The next stage of a forwarded connection.
#[derive(Debug, Clone)]
struct NextHop {
    /// The namespace from which to connect.
    from: NetNamespace,
    address: SocketAddr,
    /// Whether `address` is on the host's loopback. If so, each agent has its own source address,
    /// as in the rootless grade. If the source address were 127.0.0.1, a connection to the port of
    /// a stopped scheduler could connect to itself.
    host: bool,
}

/// Forwards a port on every agent's loopback to the same port on the host's loopback, until
/// `shutdown` is cancelled. Fails if the port is in use in a namespace.
pub(super) fn forward_to_schedulers(
    port: u16,
    schedulers: Ipv4Addr,
    core: &NetNamespace,
    agents: &[NetNamespace],
    tasks: &TaskTracker,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    let (gate, local) = (SocketAddr::new(schedulers.into(), port), SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
    let start = |namespace: &NetNamespace, address: SocketAddr, next: NextHop| -> anyhow::Result<()> {
        let listener = namespace.run(move || listen(address))?.with_context(|| format!("listen on {address}"))?;
        let serve = serve(listener, next, tasks.clone(), shutdown.clone());
        tasks.spawn(shutdown.clone().run_until_cancelled_owned(serve));
        Ok(())
    };
    start(core, gate, NextHop { from: NetNamespace::HOST, address: local, host: true })?;
    for agent in agents {
        start(agent, local, NextHop { from: agent.clone(), address: gate, host: false })?;
    }
    Ok(())
}

async fn serve(listener: TcpListener, next: NextHop, tasks: TaskTracker, shutdown: CancellationToken) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let next = next.clone();
                tasks.spawn(shutdown.clone().run_until_cancelled_owned(async move {
                    if let Err(error) = pass_on(stream, peer.ip(), &next).await {
                        tracing::debug!(error = format!("{error:#}"), "a forwarded connection ended");
                    }
                }));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection to a scheduler was not accepted");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Passes bytes in both directions until one side closes its connection, and then closes the other
/// connection. Agents and schedulers never close only one direction.
async fn pass_on(mut near: TcpStream, peer: IpAddr, next: &NextHop) -> anyhow::Result<()> {
    let socket = next.from.run(TcpSocket::new_v4)?.context("make a socket")?;
    if next.host {
        let source = on_loopback(peer).context("the agent has no IPv4 address")?;
        socket.bind(SocketAddr::new(source.into(), 0)).with_context(|| format!("bind {source}"))?;
    }
    let connected = tokio::time::timeout(CONNECT, socket.connect(next.address)).await.context("connect in time")?;
    let mut far = connected.with_context(|| format!("connect to {}", next.address))?;
    near.set_nodelay(true).context("set nodelay")?;
    far.set_nodelay(true).context("set nodelay")?;
    let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.split(), far.split());
    tokio::select! {
        passed = tokio::io::copy(&mut near_in, &mut far_out) => passed.context("pass bytes on")?,
        passed = tokio::io::copy(&mut far_in, &mut near_out) => passed.context("pass bytes back")?,
    };
    Ok(())
}

/// The loopback address (127.x.x.x) with the last three octets of `address`; `None` for IPv6.
fn on_loopback(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V4(address) = address else { return None };
    let [_, second, third, fourth] = address.octets();
    Some(Ipv4Addr::new(127, second, third, fourth))
}
