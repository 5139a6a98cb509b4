//! Writes the files of an enrolment, with their permissions and owner, and updates `agent.toml`:
//! sets the values that came with the credential, and leaves everything else as the operator wrote
//! it. Also defines the values with which an operator enrols an agent, and why an enrolment failed.

use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt};
use std::path::{Path, PathBuf};

use landfall_proto::v1::EnrolResponse;
use toml_edit::{DocumentMut, Item, Value};

use crate::config::{BadSchedulerUrl, Config, ConfigError};
use crate::disk::folder;

/// What an operator passes to `landfall-agent enrol`.
#[derive(Debug, Clone)]
pub struct Enrolment {
    /// URLs of schedulers. The agent enrols at the first that responds, and stores all the URLs.
    pub schedulers: Vec<String>,
    pub token: String,
    /// SHA-256 of the authority's certificate (DER), in hexadecimal.
    pub ca_fingerprint: Option<String>,
    pub dir: PathBuf,
    pub contact_url: Option<String>,
    /// Whether to replace an existing enrolment. Other settings in `agent.toml` are kept.
    pub force: bool,
}

pub(super) const CREDENTIAL_FILE: &str = "credential";
pub(super) const CA_FILE: &str = "ca.pem";
/// All users may read the file, because it contains no secret.
const MODE: u32 = 0o644;

/// The settings that were in the folder before the enrolment.
pub(super) struct ExistingSettings {
    file: PathBuf,
    /// The file's text and mode; `None` if there is no file.
    found: Option<(String, u32)>,
}

impl ExistingSettings {
    pub(super) fn read(file: &Path) -> Result<Self, EnrolError> {
        let failed = |source| EnrolError::Config(ConfigError::Read { path: file.to_owned(), source });
        let found = match std::fs::read_to_string(file) {
            Ok(text) => Some((text, std::fs::metadata(file).map_err(failed)?.permissions().mode() & 0o777)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        Ok(Self { file: file.to_owned(), found })
    }

    pub(super) fn mode(&self) -> u32 {
        self.found.as_ref().map_or(MODE, |(_, mode)| *mode)
    }

    /// The text of the file after the enrolment, and the configuration in it.
    pub(super) fn with(
        &self,
        enrolment: &Enrolment,
        with_ca: bool,
        response: &EnrolResponse,
    ) -> Result<(String, Config), EnrolError> {
        let (text, config) = match &self.found {
            Some((text, _)) => self.edited(text, enrolment, with_ca, response)?,
            None => {
                // A new file also shows the defaults.
                let (_, config) = self.edited("", enrolment, with_ca, response)?;
                (toml::to_string(&config).expect("a configuration is representable in TOML"), config)
            }
        };
        config.validate()?;
        Ok((text, config))
    }

    fn edited(
        &self,
        text: &str,
        enrolment: &Enrolment,
        with_ca: bool,
        response: &EnrolResponse,
    ) -> Result<(String, Config), ConfigError> {
        // Parse the unchanged file first, so that errors name the right lines. The file may lack
        // settings that are set below.
        let before = Config::parse(&self.file, text);
        let mut document: DocumentMut = match text.parse() {
            Ok(document) => document,
            Err(error) => {
                let error: toml_edit::TomlError = error;
                let reason = error.message().to_owned();
                return Err(before.err().unwrap_or(ConfigError::Parse { path: self.file.clone(), reason }));
            }
        };
        let scheduler = match &enrolment.schedulers[..] {
            [one] => Value::from(one),
            more => more.iter().collect(),
        };
        let some = |text: &str| (!text.is_empty()).then(|| Value::from(text));
        set(&mut document, "scheduler", Some(scheduler));
        set(&mut document, "ca", with_ca.then(|| Value::from(CA_FILE)));
        set(&mut document, "credential", Some(Value::from(CREDENTIAL_FILE)));
        set(&mut document, "name", Some(Value::from(&response.name)));
        set(&mut document, "city", Some(Value::from(&response.city)));
        set(&mut document, "carrier", Some(Value::from(&response.carrier)));
        set(&mut document, "country", some(&response.country));
        if let Some(contact_url) = &enrolment.contact_url {
            set(&mut document, "contact_url", Some(Value::from(contact_url)));
        }
        let text = document.to_string();
        match Config::parse(&self.file, &text) {
            Ok(config) => Ok((text, config)),
            Err(after) => Err(before.err().unwrap_or(after)),
        }
    }
}

/// Sets or removes a key. Comments around the key stay. If the value is the same as before, its
/// spelling stays too.
fn set(document: &mut DocumentMut, key: &str, value: Option<Value>) {
    let Some(mut value) = value else {
        document.remove(key);
        return;
    };
    if let Some(old) = document.get(key).and_then(Item::as_value) {
        if plain(old) == plain(&value) {
            return;
        }
        *value.decor_mut() = old.decor().clone();
    }
    document[key] = Item::Value(value);
}

/// The content of a string or a list of strings, however it is spelled in TOML.
fn plain(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::Array(array) => array.iter().map(Value::as_str).collect(),
        one => one.as_str().map(|text| vec![text]),
    }
}

/// Writes a file atomically, and syncs the file and its folder. The token cannot be used again, so
/// the file must not be lost.
pub(super) fn write_atomically(path: &Path, content: &[u8], mode: u32) -> Result<(), EnrolError> {
    let failed = |source| EnrolError::Write { path: path.to_owned(), source };
    let temporary = path.with_extension("new");
    // Delete an old temporary file first, or the new file would keep the old file's permissions.
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(mode).open(&temporary).map_err(failed)?;
    let dir = path.parent().unwrap_or(Path::new("."));
    folder::leave_to_owner(&file, dir).map_err(failed)?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(failed)?;
    folder::rename(&temporary, path).map_err(failed)
}

#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    #[error(transparent)]
    Scheduler(#[from] BadSchedulerUrl),
    /// An https URL was given without the fingerprint of the scheduler's authority.
    #[error("an https scheduler requires --ca-fingerprint")]
    NoFingerprint,
    #[error("--ca-fingerprint must be 64 hexadecimal digits")]
    BadFingerprint,
    #[error(
        "{0} does not present a certificate with that fingerprint: it is another scheduler, or someone intercepts the \
         connection"
    )]
    WrongFingerprint(String),
    #[error("connect to the scheduler at {scheduler}: {reason}")]
    Connect { scheduler: String, reason: String },
    #[error("the scheduler refused the token: {0}")]
    Refused(String),
    #[error("{0} already contains an enrolled agent; --force replaces its credential and keeps the other settings")]
    Enrolled(PathBuf),
    #[error("write {path}")]
    Write { path: PathBuf, source: std::io::Error },
    /// The existing and the new settings together form an invalid configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
}
