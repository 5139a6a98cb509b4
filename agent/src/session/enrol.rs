//! Enrols an agent: exchanges the one-time token at the first scheduler that responds, and finds
//! the scheduler's certificate authority by the fingerprint that the operator passed.
//!
//! The scheduler has its own certificate authority, which the agent does not know yet. So the
//! operator passes the authority's fingerprint together with the token. In a first handshake the
//! agent only reads the certificates that the scheduler presents; it trusts none of them and sends
//! nothing. The certificate with the fingerprint (SHA-256) that the operator passed belongs to the
//! authority. The second connection trusts only this authority.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use data_encoding::HEXLOWER;
use landfall_proto::v1::agent_service_client::AgentServiceClient;
use landfall_proto::v1::{EnrolRequest, EnrolResponse};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use sha2::{Digest, Sha256};
use tonic::transport::Channel;

use super::enrolment_files::{CA_FILE, CREDENTIAL_FILE, EnrolError, Enrolment, ExistingSettings, write_atomically};
use super::opening::{self, CONNECT_TIMEOUT, DOMAIN, endpoint};
use crate::config::{Config, FILE, SchedulerUrl};

/// Time limit for the scheduler's response, which comes only after a commit to the scheduler's
/// database.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

pub async fn enrol(enrolment: &Enrolment) -> Result<(PathBuf, Config), EnrolError> {
    let file = enrolment.dir.join(FILE);
    if file.exists() && !enrolment.force {
        return Err(EnrolError::Enrolled(enrolment.dir.clone()));
    }
    let schedulers = SchedulerUrl::parse_all(&enrolment.schedulers)?;
    // A token works only once, so everything else that can fail is tried first.
    std::fs::create_dir_all(&enrolment.dir)
        .map_err(|source| EnrolError::Write { path: enrolment.dir.clone(), source })?;
    let existing = ExistingSettings::read(&file)?;
    let with_ca = schedulers.iter().any(|scheduler| scheduler.tls);
    // Check the configuration before using the token. Placeholders replace the scheduler's
    // response.
    let unknown = EnrolResponse { name: "-".into(), city: "-".into(), carrier: "-".into(), ..EnrolResponse::default() };
    existing.with(enrolment, with_ca, &unknown)?;
    let (scheduler, ca, channel) = reach(&schedulers, enrolment.ca_fingerprint.as_deref()).await?;
    let request = EnrolRequest { token: enrolment.token.trim().to_owned() };
    let mut client = AgentServiceClient::new(channel);
    let response = tokio::time::timeout(ANSWER_TIMEOUT, client.enrol(request)).await.map_err(|_| {
        let reason = format!("no answer within {ANSWER_TIMEOUT:?}; if the token was used, ask for another");
        EnrolError::Connect { scheduler: scheduler.url.to_string(), reason }
    })?;
    let response = match response {
        Ok(response) => response.into_inner(),
        // A status with a source was not sent by the scheduler. The client made it because the
        // connection broke.
        Err(status) if std::error::Error::source(&status).is_some() => {
            let reason = opening::why_broken(scheduler, &status).await;
            return Err(EnrolError::Connect { scheduler: scheduler.url.to_string(), reason });
        }
        Err(status) => return Err(EnrolError::Refused(status.message().to_owned())),
    };
    let (text, config) = existing.with(enrolment, ca.is_some(), &response)?;
    if let Some(ca) = &ca {
        write_atomically(&enrolment.dir.join(CA_FILE), ca.as_bytes(), 0o644)?;
    }
    write_atomically(&enrolment.dir.join(CREDENTIAL_FILE), response.credential.as_bytes(), 0o600)?;
    write_atomically(&file, text.as_bytes(), existing.mode())?;
    Ok((file, config))
}

/// Connects to the first scheduler that responds. Returns this scheduler and its authority (PEM).
async fn reach<'a>(
    schedulers: &'a [SchedulerUrl],
    fingerprint: Option<&str>,
) -> Result<(&'a SchedulerUrl, Option<String>, Channel), EnrolError> {
    let mut failed = EnrolError::NoFingerprint;
    for scheduler in schedulers {
        let connected = async {
            let ca = match (fingerprint, scheduler.tls) {
                (_, false) => None,
                (None, true) => return Err(EnrolError::NoFingerprint),
                (Some(fingerprint), true) => Some(pinned_authority(scheduler, fingerprint).await?),
            };
            Ok((ca.clone(), connect(scheduler, ca.as_deref()).await?))
        };
        match connected.await {
            Ok((ca, channel)) => return Ok((scheduler, ca, channel)),
            // If this scheduler cannot be reached, another may respond. Only the operator can
            // fix any other error.
            Err(error @ EnrolError::Connect { .. }) => failed = error,
            Err(error) => return Err(error),
        }
    }
    Err(failed)
}

pub(super) async fn connect(scheduler: &SchedulerUrl, ca: Option<&str>) -> Result<Channel, EnrolError> {
    let failed = |error: tonic::transport::Error| EnrolError::Connect {
        scheduler: scheduler.url.to_string(),
        reason: opening::why_unreached(&error),
    };
    endpoint(scheduler, ca).map_err(failed)?.connect().await.map_err(failed)
}

/// The certificate (PEM) with this fingerprint, among those that the scheduler presents.
async fn pinned_authority(scheduler: &SchedulerUrl, fingerprint: &str) -> Result<String, EnrolError> {
    let wanted = normalise(fingerprint).ok_or(EnrolError::BadFingerprint)?;
    let presented = presented_chain(scheduler).await?;
    let authority = presented.iter().find(|der| HEXLOWER.encode(&Sha256::digest(der)) == wanted);
    let authority = authority.ok_or_else(|| EnrolError::WrongFingerprint(scheduler.url.to_string()))?;
    Ok(pem::encode(&pem::Pem::new("CERTIFICATE", authority.to_vec())))
}

fn normalise(fingerprint: &str) -> Option<String> {
    let text = fingerprint.trim().to_ascii_lowercase();
    let text = text.strip_prefix("sha256:").unwrap_or(&text).replace(':', "");
    (text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(text)
}

/// Performs a TLS handshake only to read the presented certificates. Sends nothing over the
/// connection.
async fn presented_chain(scheduler: &SchedulerUrl) -> Result<Vec<CertificateDer<'static>>, EnrolError> {
    let failed = |reason: String| EnrolError::Connect { scheduler: scheduler.url.to_string(), reason };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let collector = Arc::new(CertificateCollector { provider: Arc::clone(&provider), seen: Mutex::default() });
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(&collector) as Arc<dyn ServerCertVerifier>)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let look = async {
        let host = scheduler.url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let port = scheduler.url.port_or_known_default().unwrap_or(443);
        let stream = tokio::net::TcpStream::connect((host, port)).await?;
        let name = ServerName::try_from(DOMAIN).expect("a constant host name");
        tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.map(drop)
    };
    match tokio::time::timeout(CONNECT_TIMEOUT, look).await {
        Err(_) => return Err(failed(format!("no answer within {CONNECT_TIMEOUT:?}"))),
        Ok(Err(error)) => return Err(failed(opening::why_unreached(&error))),
        Ok(Ok(())) => {}
    }
    let seen = collector.seen.lock().map(|mut seen| std::mem::take(&mut *seen));
    Ok(seen.unwrap_or_default())
}

/// Records the presented certificates without verifying them.
#[derive(Debug)]
struct CertificateCollector {
    provider: Arc<CryptoProvider>,
    /// The presented chain. The chain needs a lock because rustls passes only a shared reference.
    seen: Mutex<Vec<CertificateDer<'static>>>,
}

impl ServerCertVerifier for CertificateCollector {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Ok(mut seen) = self.seen.lock() {
            *seen = std::iter::once(leaf).chain(rest).map(|der| der.clone().into_owned()).collect();
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::Path;

    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use tonic::transport::Identity;

    use super::*;
    use crate::testing::scheduler::{CREDENTIAL, TOKEN, TestScheduler};

    /// A scheduler with its own authority, and the authority's fingerprint.
    async fn tls_scheduler() -> (TestScheduler, String) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec![DOMAIN.to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
        let chain = format!("{}{}", leaf.pem(), authority.pem());
        let scheduler = TestScheduler::start(Some(Identity::from_pem(chain, key.serialize_pem()))).await;
        (scheduler, HEXLOWER.encode(&Sha256::digest(authority.der())))
    }

    fn enrolment(scheduler: String, fingerprint: Option<String>, dir: &Path) -> Enrolment {
        Enrolment {
            schedulers: vec![scheduler],
            token: TOKEN.to_owned(),
            ca_fingerprint: fingerprint,
            dir: dir.to_owned(),
            contact_url: None,
            force: false,
        }
    }

    #[tokio::test]
    async fn an_agent_enrols_over_tls_by_the_fingerprint_and_can_load_what_was_written() {
        let (scheduler, fingerprint) = tls_scheduler().await;
        let dir = tempfile::tempdir().unwrap();
        let spelled = fingerprint.to_uppercase();
        let wanted = enrolment(format!("https://{}", scheduler.addr), Some(spelled), dir.path());
        let (file, _) = enrol(&wanted).await.unwrap();
        let config = Config::load(&file).unwrap();
        assert_eq!((config.name.as_str(), config.country.as_str()), ("harbin-cernet", "CN"));
        assert_eq!(std::fs::read_to_string(&config.credential).unwrap(), CREDENTIAL);
        let mode = std::fs::metadata(&config.credential).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let ca = std::fs::read_to_string(config.ca.unwrap()).unwrap();
        let url = SchedulerUrl::parse(&wanted.schedulers[0]).unwrap();
        assert!(connect(&url, Some(&ca)).await.is_ok(), "the written authority is trusted");

        let again = enrol(&wanted).await.unwrap_err();
        assert!(matches!(again, EnrolError::Enrolled(_)), "{again}");
        assert!(enrol(&Enrolment { force: true, ..wanted }).await.is_ok());
    }

    #[test]
    fn files_written_by_root_belong_to_the_folders_owner() {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: only root can give a folder away");
            return;
        }
        let (user, group) = (4242, 4243);
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(user), Some(group)).unwrap();
        let file = dir.path().join("credential");
        write_atomically(&file, b"secret", 0o600).unwrap();
        let written = std::fs::metadata(&file).unwrap();
        assert_eq!((written.uid(), written.gid(), written.mode() & 0o777), (user, group, 0o600));
    }

    #[tokio::test]
    async fn a_wrong_fingerprint_is_refused_and_nothing_written() {
        let (scheduler, fingerprint) = tls_scheduler().await;
        let dir = tempfile::tempdir().unwrap();
        let url = format!("https://{}", scheduler.addr);
        let other = fingerprint.replace(|c: char| c.is_ascii_digit(), "f");
        let error = enrol(&enrolment(url.clone(), Some(other), dir.path())).await.unwrap_err();
        assert!(matches!(error, EnrolError::WrongFingerprint(_)), "{error}");
        let error = enrol(&enrolment(url.clone(), None, dir.path())).await.unwrap_err();
        assert!(matches!(error, EnrolError::NoFingerprint), "{error}");
        let error = enrol(&enrolment(url, Some("abc".to_owned()), dir.path())).await.unwrap_err();
        assert!(matches!(error, EnrolError::BadFingerprint), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_stale_token_is_reported_in_one_sentence() {
        let scheduler = TestScheduler::start(None).await;
        let dir = tempfile::tempdir().unwrap();
        let mut wanted = enrolment(format!("http://{}", scheduler.addr), None, dir.path());
        wanted.token = "stale".to_owned();
        let error = enrol(&wanted).await.unwrap_err().to_string();
        assert_eq!(error, "the scheduler refused the token: this token was used or has expired");
        assert!(!dir.path().join(FILE).exists());
    }

    #[tokio::test]
    async fn plaintext_off_loopback_and_an_absent_scheduler_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = enrol(&enrolment("http://192.0.2.1:7171".to_owned(), None, dir.path())).await.unwrap_err();
        assert!(error.to_string().contains("plaintext is refused"), "{error}");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let error = enrol(&enrolment(url.clone(), None, dir.path())).await.unwrap_err().to_string();
        assert!(error.contains(&url) && error.contains("refused"), "{error}");
    }

    #[tokio::test]
    async fn enrolling_again_keeps_the_operators_settings_and_comments() {
        let scheduler = TestScheduler::start(None).await;
        let url = format!("http://{}", scheduler.addr);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        let before = "\
# Rack 7, second from below.
scheduler = 'https://old.example.org:7171' # the old one
ca = \"ca.pem\"
credential = 'credential'
name   = \"sydney\"  # as in the inventory
city = 'Sydney'
carrier = 'Telstra'
country = 'AU'
capacity = 40
allow_net = [
    '10.0.0.0/8', # the lab
]

# Never on the public address.
[beacon]
listen = '127.0.0.1:7180'

[store]
folder = '/srv/pages'
";
        std::fs::write(&file, before).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        let wanted = Enrolment { force: true, ..enrolment(url.clone(), None, dir.path()) };
        let (_, config) = enrol(&wanted).await.unwrap();
        assert_eq!((config.name.as_str(), config.capacity), ("harbin-cernet", 40));
        let after = before
            .replace("'https://old.example.org:7171'", &format!("\"{url}\""))
            .replace("ca = \"ca.pem\"\n", "")
            .replace("\"sydney\"", "\"harbin-cernet\"")
            .replace("'Sydney'", "\"Harbin\"")
            .replace("'Telstra'", "\"CERNET\"")
            .replace("'AU'", "\"CN\"");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), after);
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        let contact_url = Some("https://example.org/us".to_owned());
        let (_, config) = enrol(&Enrolment { contact_url: contact_url.clone(), ..wanted }).await.unwrap();
        assert_eq!(config.contact_url, contact_url);
        assert_eq!(config.store.unwrap().folder, Path::new("/srv/pages"));
    }

    #[tokio::test]
    async fn an_invalid_file_is_refused_before_the_token_is_spent() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        // The mistakes must be found before any connection is made. No server listens on port 1, so an
        // attempt to connect would fail with another error.
        let wanted = Enrolment { force: true, ..enrolment("http://127.0.0.1:1".to_owned(), None, dir.path()) };
        let least = "scheduler = 'http://127.0.0.1:1'\nname = 'a'\ncity = 'b'\ncarrier = 'c'\n";
        for (more, expected) in [
            ("[beacon\n", "agent.toml: line 5: "),
            ("capacty = 4\n", "agent.toml: line 5: unknown field `capacty`"),
            ("capacity = 'many'\n", "agent.toml: line 5: "),
            ("capacity = 0\n", "capacity: 0 is not in 1 to 10000"),
        ] {
            let text = format!("{least}{more}");
            std::fs::write(&file, &text).unwrap();
            let error = enrol(&wanted).await.unwrap_err();
            assert!(matches!(error, EnrolError::Config(_)) && error.to_string().contains(expected), "{error}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
        // The file may lack the settings that the enrolment writes.
        std::fs::write(&file, "capacity = 4\n").unwrap();
        let error = enrol(&wanted).await.unwrap_err();
        assert!(matches!(error, EnrolError::Connect { .. }), "{error}");
    }
}
