//! What every request of the agent needs, prober's and crawler's alike. Made once and shared, so that the trust anchors
//! and the resolver's cache exist once in the process.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::crawl::RobotsCache;
use crate::net::dns::Resolver;
use crate::net::guard::Guard;
use crate::net::user_agent::{Product, UserAgent};

#[derive(Debug, Clone)]
pub struct Context {
    pub guard: Guard,
    pub resolver: Resolver,
    pub user_agent: UserAgent,
    /// The source address of every connection; the system's choice when absent.
    pub bind: Option<IpAddr>,
    /// Whom TLS trusts; offers no ALPN.
    pub tls: Arc<rustls::ClientConfig>,
    pub robots: Arc<RobotsCache>,
}

impl Context {
    /// The same for requests that carry a name of somebody's own.
    #[must_use]
    pub fn named(&self, product: &Product) -> Self {
        Self { user_agent: self.user_agent.clone().named(product), ..self.clone() }
    }
}

/// What a [`Context`] is made of, the user agent aside: that may come with the welcome.
#[derive(Debug, Clone)]
pub struct Means {
    pub guard: Guard,
    pub resolver: Resolver,
    pub bind: Option<IpAddr>,
    pub tls: Arc<rustls::ClientConfig>,
    pub robots: Arc<RobotsCache>,
    /// The configured user agent, which goes before the scheduler's.
    pub user_agent: Option<UserAgent>,
}

impl Means {
    pub fn context(&self, user_agent: UserAgent) -> Context {
        Context {
            guard: self.guard.clone(),
            resolver: self.resolver.clone(),
            user_agent,
            bind: self.bind,
            tls: Arc::clone(&self.tls),
            robots: Arc::clone(&self.robots),
        }
    }

    /// The context of a crawl that may have a contact and a name of its own; `usual`: that of all others.
    pub(crate) fn context_of(
        &self,
        usual: Arc<Context>,
        user_agent: Option<UserAgent>,
        product: Option<Product>,
    ) -> Arc<Context> {
        let context = user_agent.map_or(usual, |user_agent| Arc::new(self.context(user_agent)));
        match product {
            Some(product) => Arc::new(context.named(&product)),
            None => context,
        }
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
    /// A certificate in it is no trust anchor, or there is none.
    #[error("{0} holds no usable CA certificate")]
    NoAnchor(PathBuf),
    #[error("configure TLS")]
    Config(#[source] rustls::Error),
}

/// The TLS configuration of every request: the public web's roots, and `extra_ca` (PEM) beside them.
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
