//! TLS connections for the server. Each handshake runs as its own async task, so that a slow
//! handshake does not delay other connections.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Maximum number of concurrent handshakes; further connections wait in the kernel's queue.
const HANDSHAKES: usize = 1024;
/// Maximum duration of one handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The connections from `accepted` that complete a TLS handshake. Other connections are dropped.
/// The listener's errors are passed on.
pub fn over_tls(
    accepted: impl Stream<Item = io::Result<TcpStream>>,
    config: Arc<ServerConfig>,
) -> impl Stream<Item = io::Result<TlsStream<TcpStream>>> {
    let acceptor = TlsAcceptor::from(config);
    let shaken = accepted.map(move |accepted| {
        let acceptor = acceptor.clone();
        tokio::spawn(async move { io::Result::Ok(handshake(&acceptor, accepted?).await) })
    });
    // If a handshake's async task was dropped or panicked, only that connection is lost.
    shaken.buffer_unordered(HANDSHAKES).filter_map(async |shaken| shaken.ok().and_then(io::Result::transpose))
}

/// Returns `None` if the handshake failed.
async fn handshake(acceptor: &TlsAcceptor, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a TLS handshake failed");
            None
        }
        Err(_) => None,
    }
}
