//! The file `client.toml`, which tells commands how to reach the scheduler.
//!
//! `DIR/client.toml` contains the scheduler's URL and the operator's token, and is rewritten at
//! each start. The operator may add a section with default output options.

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::app::data_dir::{DataDir, write_atomically};
use crate::app::operator_token::held;
use crate::config::{self, ConfigError};
use crate::wake::Wakes;

/// The name of the [`ClientFile`] in the data directory.
pub const CLIENT_FILE: &str = "client.toml";
/// Interval at which the data directory is checked for a new token of the operator.
const TOKEN_LOOK: Duration = Duration::from_secs(10);

/// The data that a command needs to connect to a scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientFile {
    /// The URL of this scheduler, or a list with the URLs of all schedulers of its database. The
    /// scheme is http on loopback, https otherwise.
    #[serde(with = "one_or_more")]
    pub scheduler: Vec<String>,
    /// The certificate of the scheduler's authority, PEM; `None` without TLS. The path is relative
    /// to the folder of the file, so that a copy of the folder works elsewhere.
    pub ca: Option<PathBuf>,
    pub token: String,
    /// The operator writes this section. A scheduler that rewrites the file keeps the section as it
    /// is.
    #[serde(default, skip_serializing)]
    pub defaults: Defaults,
}

/// The output options of commands, used if neither a flag nor the environment sets them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Defaults {
    pub format: Option<DefaultFormat>,
    /// Whether tables show all columns.
    pub wide: Option<bool>,
    pub color: Option<DefaultColor>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DefaultFormat {
    Table,
    Json,
    Csv,
}

impl DefaultFormat {
    /// The value of `--format`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Json => "json",
            Self::Csv => "csv",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DefaultColor {
    Auto,
    Always,
    Never,
}

impl DefaultColor {
    /// The value of `--color`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        }
    }
}

/// Serialises one URL as a string, and several as a list.
mod one_or_more {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMore {
        One(String),
        More(Vec<String>),
    }

    pub(super) fn serialize<S: Serializer>(urls: &[String], serializer: S) -> Result<S::Ok, S::Error> {
        match urls {
            [one] => one.serialize(serializer),
            more => more.serialize(serializer),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
        let read = OneOrMore::deserialize(deserializer);
        match read.map_err(|_| serde::de::Error::custom("scheduler must be a URL or a list of URLs"))? {
            OneOrMore::One(one) => Ok(vec![one]),
            OneOrMore::More(more) => Ok(more),
        }
    }
}

impl ClientFile {
    /// Adds other schedulers, which commands try if this one does not answer.
    #[must_use]
    pub fn with(&self, others: &[String]) -> Self {
        Self { scheduler: self.scheduler.iter().chain(others).cloned().collect(), ..self.clone() }
    }

    pub fn write(&self, data_dir: &Path) -> anyhow::Result<PathBuf> {
        let path = data_dir.join(CLIENT_FILE);
        let beside = |ca: &PathBuf| ca.strip_prefix(data_dir).unwrap_or(ca).to_owned();
        let file = Self { ca: self.ca.as_ref().map(beside), ..self.clone() };
        let text = toml::to_string(&file).context("write the client's settings")? + &sections(&path);
        write_atomically(&path, 0o600, text.as_bytes())?;
        Ok(path)
    }

    /// Reads the section of defaults. If this user cannot read the file, there are no defaults. A
    /// command that needs the other parts of the file reports the error itself.
    pub fn defaults(data_dir: &Path) -> Result<Defaults, ConfigError> {
        #[derive(Deserialize)]
        struct Sections {
            #[serde(default)]
            defaults: Defaults,
        }
        let path = data_dir.join(CLIENT_FILE);
        let Ok(text) = std::fs::read_to_string(&path) else { return Ok(Defaults::default()) };
        config::parsed(&path, &text).map(|Sections { defaults }| defaults)
    }

    /// Reads the file from a data directory; `None` if it is missing.
    pub fn read(data_dir: &Path) -> anyhow::Result<Option<Self>> {
        let path = data_dir.join(CLIENT_FILE);
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                let file: Self = config::parsed(&path, &text)?;
                Ok(Some(Self { ca: file.ca.map(|ca| data_dir.join(ca)), ..file }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
        }
    }
}

/// The sections of an existing `client.toml`, unchanged and with their comments.
fn sections(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.find("\n[").map(|at| format!("\n{}", &text[at + 1..])).unwrap_or_default()
}

/// Rewrites `client.toml` when the set of other schedulers changes, or when a new token has been
/// copied into the data directory.
pub async fn keep_client_file(wakes: &Wakes, client: &ClientFile, data_dir: &DataDir) -> Infallible {
    let mut others = wakes.others_watched();
    let mut look = tokio::time::interval(TOKEN_LOOK);
    let mut written = client.with(&others.borrow_and_update());
    loop {
        tokio::select! {
            changed = others.changed() => if changed.is_err() {
                std::future::pending::<()>().await;
            },
            _ = look.tick() => {}
        }
        let mut known = client.with(&others.borrow_and_update());
        // If the token's file cannot be read now, the previous token is kept.
        known.token = held(data_dir.path()).ok().flatten().unwrap_or_else(|| written.token.clone());
        if known == written {
            continue;
        }
        match known.write(data_dir.path()) {
            Ok(_) => written = known,
            Err(error) => {
                let error = format!("{error:#}");
                tracing::warn!(
                    error,
                    "client.toml could not be written: commands do not learn of other schedulers or of a new token"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn the_client_file_is_read_as_written() {
        let base = tempfile::tempdir().unwrap();
        let dir = DataDir::lock(&base.path().join("d")).unwrap();
        assert_eq!(ClientFile::read(dir.path()).unwrap(), None);
        for ca in [None, Some(PathBuf::from("/x/ca.pem")), Some(dir.path().join("tls/ca.pem"))] {
            let scheduler = vec!["https://127.0.0.1:7171".to_owned()];
            let file = ClientFile { scheduler, ca, token: "t".to_owned(), defaults: Defaults::default() };
            file.write(dir.path()).unwrap();
            assert_eq!(ClientFile::read(dir.path()).unwrap(), Some(file.clone()));
            let more = ClientFile { scheduler: vec!["https://a:1".to_owned(), "https://b:2".to_owned()], ..file };
            more.write(dir.path()).unwrap();
            assert_eq!(ClientFile::read(dir.path()).unwrap(), Some(more));
        }
        let path = dir.path().join(CLIENT_FILE);
        let section = "\n[defaults]\nformat = \"json\"   # for scripts\nwide = true\n";
        std::fs::write(&path, std::fs::read_to_string(&path).unwrap() + section).unwrap();
        let read = ClientFile::read(dir.path()).unwrap().unwrap();
        assert_eq!((read.defaults.format, read.defaults.wide), (Some(DefaultFormat::Json), Some(true)));
        assert_eq!(ClientFile::defaults(dir.path()).unwrap(), read.defaults);
        ClientFile { token: "u".to_owned(), ..read }.write(dir.path()).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("token = \"u\"") && text.ends_with(section), "{text}");
        let copy = base.path().join("copy");
        std::fs::create_dir(&copy).unwrap();
        std::fs::copy(dir.path().join(CLIENT_FILE), copy.join(CLIENT_FILE)).unwrap();
        assert_eq!(ClientFile::read(&copy).unwrap().unwrap().ca, Some(copy.join("tls/ca.pem")), "beside the copy");
    }
}
