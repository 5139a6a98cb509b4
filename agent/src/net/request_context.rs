//! The context that every request of the prober and the crawler needs, with the trusted certificate
//! authorities and versions of TLS. The context is shared, so that the process has only one set of
//! trust anchors and one resolver cache.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::net::dns::Resolver;
use crate::net::guard::Guard;
use crate::net::user_agent::{Product, UserAgent};

#[derive(Debug, Clone)]
pub struct RequestContext {
    pub guard: Guard,
    pub resolver: Resolver,
    pub user_agent: UserAgent,
    /// The source address of every connection; if `None`, the system chooses.
    pub bind: Option<IpAddr>,
    /// The TLS configuration with the trust anchors, without ALPN.
    pub tls: Arc<rustls::ClientConfig>,
}

impl RequestContext {
    /// The same context with a user agent that begins with this product name.
    #[must_use]
    pub fn named(&self, product: &Product) -> Self {
        Self { user_agent: self.user_agent.clone().named(product), ..self.clone() }
    }
}

/// The parts of a [`RequestContext`] that are known before a session opens. The final user agent is
/// not known yet, because the scheduler may send one.
#[derive(Debug, Clone)]
pub struct RequestBase {
    pub guard: Guard,
    pub resolver: Resolver,
    pub bind: Option<IpAddr>,
    pub tls: Arc<rustls::ClientConfig>,
    /// The configured user agent, which takes precedence over the scheduler's.
    pub user_agent: Option<UserAgent>,
}

impl RequestBase {
    pub fn context(&self, user_agent: UserAgent) -> RequestContext {
        RequestContext {
            guard: self.guard.clone(),
            resolver: self.resolver.clone(),
            user_agent,
            bind: self.bind,
            tls: Arc::clone(&self.tls),
        }
    }

    /// The context of a crawl whose policy may set a contact URL and a product name. `usual` is the
    /// context for policies that set neither a contact URL nor a product name.
    pub(crate) fn context_of(
        &self,
        usual: Arc<RequestContext>,
        user_agent: Option<UserAgent>,
        product: Option<&Product>,
    ) -> Arc<RequestContext> {
        if user_agent.is_none() && product.is_none() {
            return usual;
        }
        Arc::new(self.context(UserAgent::of_crawl(&usual.user_agent, user_agent, product)))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("read the CA certificates in {path}")]
    ExtraCa {
        path: PathBuf,
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// The file contains no certificate, or an invalid one.
    #[error("{0} contains no usable CA certificate")]
    NoAnchor(PathBuf),
    #[error("configure TLS")]
    Config(#[source] rustls::Error),
}

/// The TLS configuration of every request. The configuration trusts the certificate authorities of
/// the public web, and the authorities in `extra_ca` (PEM).
pub fn tls_config(extra_ca: Option<&Path>) -> Result<Arc<rustls::ClientConfig>, TlsError> {
    let mut roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = extra_ca {
        let wrong = |source| TlsError::ExtraCa { path: path.to_owned(), source };
        let certificates = CertificateDer::pem_file_iter(path).map_err(wrong)?;
        let certificates = certificates.collect::<Result<Vec<_>, _>>().map_err(wrong)?;
        let (added, ignored) = roots.add_parsable_certificates(certificates);
        if added == 0 || ignored > 0 {
            return Err(TlsError::NoAnchor(path.to_owned()));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Config)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
