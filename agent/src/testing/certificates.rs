//! Certificates of web servers.

use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

use super::request_context::context;
use crate::net::request_context::RequestContext;
use crate::net::tls::tls_config;

/// A self-signed certificate for `127.0.0.1`.
pub(crate) struct TestCertificate {
    pem: String,
    config: rustls::ServerConfig,
}

impl TestCertificate {
    pub(crate) fn new() -> Self {
        Self::made(|_| {})
    }

    /// A certificate that was valid in the past.
    pub(crate) fn expired() -> Self {
        Self::made(|params| {
            params.not_before = rcgen::date_time_ymd(2019, 1, 1);
            params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        })
    }

    /// A TLS acceptor that offers these protocols through ALPN.
    pub(crate) fn acceptor(&self, protocols: &[&str]) -> TlsAcceptor {
        let mut config = self.config.clone();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Arc::new(config).into()
    }

    /// A context that may connect to loopback and trusts this certificate.
    pub(crate) fn trusting(&self) -> RequestContext {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &self.pem).unwrap();
        RequestContext { tls: tls_config(Some(file.path())).unwrap(), ..context(&["127.0.0.0/8"]) }
    }

    fn made(change: impl FnOnce(&mut CertificateParams)) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        change(&mut params);
        let certificate = params.self_signed(&key).unwrap();
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], private)
            .unwrap();
        Self { pem: certificate.pem(), config }
    }
}
