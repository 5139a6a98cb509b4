//! Recognises a server that is not a scheduler of the fleet, and says why. Judges by the types of
//! errors and by the server's first bytes, never by the wording of an error message.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use rustls::CertificateError;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::transport::Uri;

use crate::error_causes::causes;

/// The first bytes that an HTTP/2 client sends: the preface, and an empty SETTINGS frame.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Maximum time for the answer to `GREETING`. A server that needs longer counts as a busy
/// scheduler.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a server that answers is not a scheduler of this fleet, or cannot be trusted to be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForeignServer {
    /// The server answers in plaintext.
    NoTls,
    /// The server's certificate was not signed by the expected authority.
    OtherAuthority,
    /// The server's certificate has expired by this machine's clock.
    Expired,
    /// The server's certificate is not yet valid by this machine's clock.
    NotYetValid,
    /// The server's certificate is for another name.
    OtherName,
    /// The server refuses a TLS session.
    NoTlsSession,
    /// The server does not use HTTP/2.
    NoGrpc,
}

impl ForeignServer {
    /// Whether the server may be a scheduler of this fleet, whose certificate is not valid now.
    pub const fn is_outdated(self) -> bool {
        matches!(self, Self::Expired | Self::NotYetValid)
    }

    /// A sentence that says why `server`, such as "the server at https://a:7600", is not used.
    pub fn sentence(self, server: &str) -> String {
        if self.is_outdated() {
            format!("{server} cannot be trusted: {self}")
        } else {
            format!("{server} is not a scheduler of this fleet: {self}")
        }
    }
}

impl fmt::Display for ForeignServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoTls => "it does not speak TLS: is it http://, or another port?",
            Self::OtherAuthority => "its certificate is of another authority",
            Self::Expired => "its certificate has expired by this machine's clock",
            Self::NotYetValid => "its certificate is not valid yet by this machine's clock",
            Self::OtherName => "its certificate is for another name",
            Self::NoTlsSession => "it refuses this TLS session",
            Self::NoGrpc => "it does not speak gRPC: is it https://, or another port?",
        })
    }
}

/// Finds, from a connection error, why the server is not a scheduler of this fleet; `None` if the
/// network failed.
pub fn of_error(error: &(dyn Error + 'static)) -> Option<ForeignServer> {
    let mut tls = None;
    let failed = causes(error).any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>();
        // An IO error does not list the error that it wraps among its sources.
        let inner: Option<&(dyn Error + 'static)> = io.and_then(std::io::Error::get_ref).map(|inner| inner as _);
        tls = inner.unwrap_or(cause).downcast_ref::<rustls::Error>().cloned();
        tls.is_some() || io.is_some()
    });
    match tls {
        Some(rustls::Error::InvalidMessage(_)) => Some(ForeignServer::NoTls),
        Some(rustls::Error::InvalidCertificate(why)) => Some(invalid_certificate(&why)),
        Some(_) => Some(ForeignServer::NoTlsSession),
        None => (!failed).then_some(ForeignServer::NoGrpc),
    }
}

fn invalid_certificate(why: &CertificateError) -> ForeignServer {
    use CertificateError::{
        Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet, NotValidYetContext,
    };
    match why {
        Expired | ExpiredContext { .. } => ForeignServer::Expired,
        NotValidYet | NotValidYetContext { .. } => ForeignServer::NotYetValid,
        NotValidForName | NotValidForNameContext { .. } => ForeignServer::OtherName,
        _ => ForeignServer::OtherAuthority,
    }
}

/// Finds out why the server at a plaintext URL is not a scheduler, from its first bytes on a
/// separate connection. Returns `None` if the server uses HTTP/2, sends nothing, or cannot be
/// reached. The error of a failed call is not enough. If the tokio task that drives the connection
/// notices the connection's end before the call does, the error does not contain the cause.
pub async fn greeted(scheduler: &Uri) -> Option<ForeignServer> {
    let (Some("http"), Some(host)) = (scheduler.scheme_str(), scheduler.host()) else { return None };
    let port = scheduler.port_u16().unwrap_or(80);
    let answer = tokio::time::timeout(PATIENCE, answer(host.trim_matches(['[', ']']), port)).await.ok()?.ok()?;
    let frame: &[u8; 9] = match answer.as_slice().try_into() {
        Ok(frame) => frame,
        Err(_) => return (!answer.is_empty()).then_some(ForeignServer::NoGrpc),
    };
    // A server's first frame must be a SETTINGS frame, which has six bytes per setting and belongs
    // to stream 0.
    let [_, _, length, 4, 0, 0, 0, 0, 0] = frame else { return Some(ForeignServer::NoGrpc) };
    (length % 6 != 0).then_some(ForeignServer::NoGrpc)
}

/// The first bytes of the answer: at most nine, the length of an HTTP/2 frame header.
async fn answer(host: &str, port: u16) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect((host, port)).await?;
    // An error is ignored: a server may answer and close the connection before it has read the
    // whole greeting.
    drop(stream.write_all(GREETING).await);
    let mut answer = Vec::new();
    let read = stream.take(9).read_to_end(&mut answer).await;
    if answer.is_empty() { read.map(|_| answer) } else { Ok(answer) }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::UnixTime;
    use tokio::net::TcpListener;

    use super::*;

    async fn who_answers(with: &'static [u8]) -> Option<ForeignServer> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(with).await.unwrap();
        };
        tokio::join!(greeted(&uri), serve).0
    }

    fn of_certificate(why: CertificateError) -> Option<ForeignServer> {
        let error = std::io::Error::other(rustls::Error::InvalidCertificate(why));
        of_error(&error)
    }

    #[test]
    fn what_is_wrong_with_a_certificate_is_told() {
        assert_eq!(of_certificate(CertificateError::UnknownIssuer), Some(ForeignServer::OtherAuthority));
        assert_eq!(of_certificate(CertificateError::Expired), Some(ForeignServer::Expired));
        assert_eq!(of_certificate(CertificateError::NotValidYet), Some(ForeignServer::NotYetValid));
        assert_eq!(of_certificate(CertificateError::NotValidForName), Some(ForeignServer::OtherName));
        let (time, not_after) =
            (UnixTime::since_unix_epoch(Duration::from_secs(2)), UnixTime::since_unix_epoch(Duration::from_secs(1)));
        assert_eq!(
            ForeignServer::Expired.sentence("it"),
            "it cannot be trusted: its certificate has expired by this machine's clock"
        );
        assert_eq!(
            ForeignServer::OtherName.sentence("it"),
            "it is not a scheduler of this fleet: its certificate is for another name"
        );
        assert_eq!(of_certificate(CertificateError::ExpiredContext { time, not_after }), Some(ForeignServer::Expired));
    }

    #[tokio::test]
    async fn who_answers_is_told_by_its_first_bytes() {
        assert_eq!(who_answers(b"HTTP/1.1 400 Bad Request\r\n\r\n").await, Some(ForeignServer::NoGrpc));
        // This is a TLS alert, which is shorter than an HTTP/2 frame header.
        assert_eq!(who_answers(b"\x15\x03\x03\0\x02\x02\x0a").await, Some(ForeignServer::NoGrpc));
        assert_eq!(who_answers(b"220 mail.example ESMTP\r\n").await, Some(ForeignServer::NoGrpc));
        assert_eq!(who_answers(b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x64").await, None);
        assert_eq!(who_answers(b"\0\0\0\x04\0\0\0\0\0").await, None);
        assert_eq!(who_answers(b"").await, None, "whoever disconnects says nothing of itself");
        assert_eq!(greeted(&"http://127.0.0.1:1".parse().unwrap()).await, None, "nobody listens");
    }
}
