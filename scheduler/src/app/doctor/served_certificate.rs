//! The function `served` reads the certificate that a server presents over TLS.

use std::io;
use std::path::Path;
use std::sync::Arc;

use landfall_proto::foreign_server;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::app::tls::DOMAIN;

/// Why no valid certificate was served.
#[derive(Debug)]
pub(super) enum Unserved {
    /// The certificate is not valid now. Contains the reason.
    Outdated(String),
    /// The server is not a scheduler that uses this data directory. Contains the reason for this conclusion.
    Stranger(String),
    /// The file of the authority cannot be used, so the server was not asked. Contains the reason.
    NoAuthority(String),
    Failed(String),
}

/// Connects to a server over TLS. Returns the server's certificate if the authority in the file
/// `ca` signed it.
pub(super) async fn served(host: &str, port: u16, ca: &Path) -> Result<CertificateDer<'static>, Unserved> {
    let failed = |what: String| Unserved::Failed(what);
    let ca_file = ca.display();
    let pem = tokio::fs::read(ca).await.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Unserved::Stranger(format!("no scheduler has made {ca_file} yet")),
        _ => Unserved::NoAuthority(format!("read {ca_file}: {error}")),
    })?;
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(&pem);
    let trusted = authority.ok().is_some_and(|authority| roots.add(authority).is_ok());
    if !trusted {
        return Err(Unserved::NoAuthority(format!("{ca_file} contains no certificate")));
    }
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from(DOMAIN).expect("a valid name");
    let stream = TcpStream::connect((host, port)).await.map_err(|error| failed(error.to_string()))?;
    let connected = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    let stream = connected.map_err(|error| refused(&error))?;
    let leaf = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).cloned();
    leaf.ok_or_else(|| failed("it sent no certificate".to_owned()))
}

fn refused(error: &io::Error) -> Unserved {
    match foreign_server::of_error(error) {
        Some(foreign) if foreign.is_outdated() => Unserved::Outdated(foreign.to_string()),
        Some(foreign) => Unserved::Stranger(foreign.to_string()),
        None => Unserved::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_authority_that_cannot_be_read_says_nothing_about_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let of = async |ca: &Path| served("127.0.0.1", 1, ca).await.unwrap_err();
        assert!(matches!(of(folder.path()).await, Unserved::NoAuthority(_)));
        assert!(matches!(of(&folder.path().join("ca.pem")).await, Unserved::Stranger(_)));
        std::fs::write(folder.path().join("ca.pem"), "no certificate").unwrap();
        assert!(matches!(of(&folder.path().join("ca.pem")).await, Unserved::NoAuthority(_)));
    }
}
