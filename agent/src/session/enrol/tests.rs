use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use data_encoding::HEXLOWER;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use sha2::{Digest, Sha256};
use tonic::transport::Identity;

use super::error::EnrolError;
use super::token_exchange::connect;
use super::written_files::write_atomically;
use super::*;
use crate::config::{Config, FILE, SchedulerUrl};
use crate::session::endpoint::DOMAIN;
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
