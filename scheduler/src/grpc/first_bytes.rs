//! Closes connections that do not begin a request in time.
//!
//! A connection may use HTTP/1 or HTTP/2. The server can distinguish the two only after it has
//! received as many bytes as HTTP/2's preface contains. Without a time limit, a client that sends
//! fewer bytes would keep its connection forever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tonic::transport::server::Connected;

/// Maximum time from the opening of the connection, or from the end of the TLS handshake, until the
/// preface is complete.
const PATIENCE: Duration = Duration::from_secs(10);
/// Length of HTTP/2's preface (RFC 9113 section 3.4). No HTTP/1.1 request is shorter, because each
/// contains a `Host` header.
const PREFACE: usize = 24;

/// A connection with a time limit for its first bytes.
#[derive(Debug)]
pub(super) struct FirstBytes<S> {
    stream: S,
    /// The time limit, and the number of bytes read so far; `None` when enough bytes have arrived.
    begins: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S> FirstBytes<S> {
    pub(super) fn of(stream: S) -> Self {
        Self::within(stream, PATIENCE)
    }

    fn within(stream: S, patience: Duration) -> Self {
        Self { stream, begins: Some((Box::pin(sleep(patience)), 0)) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FirstBytes<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, begins } = &mut *self;
        let before = buffer.filled().len();
        let read = Pin::new(stream).poll_read(context, buffer);
        if let Some((limit, arrived)) = begins {
            *arrived += buffer.filled().len() - before;
            if *arrived >= PREFACE {
                *begins = None;
            } else if read.is_pending() {
                ready!(limit.as_mut().poll(context));
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FirstBytes<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

impl<S: Connected> Connected for FirstBytes<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn half_a_preface_ends_the_connection_and_a_slow_body_does_not() {
        const SHORT: Duration = Duration::from_millis(50);
        let (mut client, server) = duplex(64);
        let mut server = FirstBytes::within(server, SHORT);
        client.write_all(b"PRI * HTTP/2.0").await.unwrap();
        assert_eq!(server.read_to_end(&mut Vec::new()).await.unwrap_err().kind(), io::ErrorKind::TimedOut);

        let (mut client, server) = duplex(64);
        let mut server = FirstBytes::within(server, SHORT);
        client.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut buffer = [0; 64];
        assert!(server.read(&mut buffer).await.unwrap() >= PREFACE);
        assert!(tokio::time::timeout(4 * SHORT, server.read(&mut buffer)).await.is_err(), "it goes on");
    }
}
