//! The operator's token, and the file `client.toml`, which tells commands how to reach the
//! scheduler: makes, reads and replaces the token, and writes and reads the file.
//!
//! The token is in `DIR/operator-token` (mode 0600); the database stores only its hash.
//! `DIR/client.toml` contains the scheduler's URL and the token, and is rewritten at each start.
//! The operator may add a section with default output options.

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use futures_util::FutureExt as _;
use serde::{Deserialize, Serialize};

use crate::app::data_dir::{DataDir, write_atomically};
use crate::config::{self, ConfigError};
use crate::machine::secret::{Secret, SecretHash};
use crate::model::words;
use crate::store::{self, Db, settings};
use crate::wake::Wakes;

const TOKEN_FILE: &str = "operator-token";

/// Which secrets are used if the database and the data directory have different ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precedence {
    /// The data directory's secrets, because the operator requested it.
    Operator,
    /// The data directory's secrets, because it contains the database. A token that
    /// `landfall operator rotate` replaced does not become valid again.
    DataDir,
    /// The database's secrets, because other schedulers may use the same database.
    Database,
}

/// Returns the operator's token, which is made at the first start.
///
/// # Errors
/// When the file or the database cannot be used, or when this data directory lacks the token that
/// another scheduler of the database made.
pub async fn token(db: &Db, data_dir: &DataDir, precedence: Precedence) -> anyhow::Result<String> {
    let path = data_dir.path().join(TOKEN_FILE);
    let known = held(data_dir.path())?;
    let mut conn = db.read("read the operator's token").await.context("reach the database")?;
    let tokens = settings::operator_tokens(&mut conn).await.context("read the operator's token")?;
    drop(conn);
    let former = known.as_ref().and_then(|token| tokens.former(&SecretHash::of(token)));
    if let (Some(token), Some(former)) = (&known, former)
        && precedence != Precedence::Operator
    {
        tracing::warn!(
            "the operator's token in {} was replaced at {}: copy operator-token from the data directory in which \
             `landfall operator rotate` ran; until then commands with this directory are refused",
            data_dir.path().display(),
            store::minute(&former.replaced_at)
        );
        return Ok(token.clone());
    }
    let token = match known {
        Some(token) => token,
        // The database already has the hash of a token, so it would refuse a new token.
        None if tokens.in_force.is_some() && precedence == Precedence::Database => return Err(foreign_token(data_dir)),
        None => {
            let made = Secret::generate().context("make the operator's token")?.reveal().to_owned();
            // The file is written before the database stores the hash. Otherwise a crash could
            // leave only the hash, and nobody would know the token.
            write_atomically(&path, 0o600, format!("{made}\n").as_bytes())?;
            made
        }
    };
    let hash = SecretHash::of(&token);
    let in_force = db
        .tx("claim the operator's token", |tx| {
            async move { settings::claim_operator_token_hash(tx, &hash).await }.boxed()
        })
        .await
        .context("store the operator's token")?;
    if in_force != hash {
        if precedence == Precedence::Database {
            return Err(foreign_token(data_dir));
        }
        tracing::warn!("the database had another operator's token, which is void from now on");
        db.tx("set the operator's token", |tx| {
            async move { settings::set_operator_token_hash(tx, &hash).await }.boxed()
        })
        .await
        .context("store the operator's token")?;
    }
    Ok(token)
}

/// Reads the token from a data directory; `None` if there is none.
pub fn held(data_dir: &Path) -> anyhow::Result<Option<String>> {
    let path = data_dir.join(TOKEN_FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|token| !token.is_empty())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
    }
}

fn foreign_token(data_dir: &DataDir) -> anyhow::Error {
    anyhow::anyhow!(
        "another scheduler set up this database, and {} does not contain its secrets: copy operator-token and the \
         folder tls (if there is one) from that scheduler's data directory into this one and start again; if they are \
         lost, --replace-secrets makes new ones",
        data_dir.path().display()
    )
}

/// A new token that will replace the present one. The new token is first written to a separate
/// file, so that it is not lost if the command fails after the database has stored the token's
/// hash.
#[derive(Debug)]
pub struct Successor {
    token: Secret,
    /// The file that contains only the token.
    file: PathBuf,
    /// The file that contains the new token until the database stores the token's hash.
    beside: PathBuf,
    /// A folder with a `client.toml` into which the token must be written too.
    folder: Option<PathBuf>,
}

impl Successor {
    /// Makes a random token and writes it to a file beside the file of the present token. The
    /// present token is in `token_file` if given, else in `folder`.
    pub fn draw(folder: &Path, token_file: Option<&Path>) -> anyhow::Result<Self> {
        let token = Secret::generate().context("make the operator's token")?;
        let file = token_file.map_or_else(|| folder.join(TOKEN_FILE), Path::to_owned);
        let mut beside = file.clone().into_os_string();
        beside.push(".next");
        let beside = PathBuf::from(beside);
        write_atomically(&beside, 0o600, format!("{}\n", token.reveal()).as_bytes())?;
        Ok(Self { token, file, beside, folder: token_file.is_none().then(|| folder.to_owned()) })
    }

    pub fn hash(&self) -> SecretHash {
        self.token.hash()
    }

    /// The path of the file that contains the new token until the database stores the token's hash.
    pub fn beside(&self) -> &Path {
        &self.beside
    }

    /// Deletes the file of the new token.
    pub fn forget(self) -> anyhow::Result<()> {
        std::fs::remove_file(&self.beside).with_context(|| format!("remove {}", self.beside.display()))
    }

    /// Replaces the former token with the new one in all files that contain it, and returns these
    /// files. After an error, the new token is still in the file that `beside` returns.
    pub fn adopt(self) -> anyhow::Result<Vec<PathBuf>> {
        let client = self.folder.as_deref().map(ClientFile::read).transpose()?.flatten();
        let mut files = Vec::new();
        // A copied `client.toml` has no token file beside it. If there is a token file, it is
        // replaced first, because the scheduler reads this file.
        let alone = client.is_some() && !self.file.exists();
        if !alone {
            std::fs::rename(&self.beside, &self.file).with_context(|| format!("replace {}", self.file.display()))?;
            files.push(self.file.clone());
        }
        if let (Some(folder), Some(client)) = (&self.folder, client) {
            files.push(ClientFile { token: self.token.reveal().to_owned(), ..client }.write(folder)?);
        }
        if alone {
            self.forget()?;
        }
        Ok(files)
    }
}

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

words!(
    /// The value of `--format`.
    DefaultFormat {
        Table = "table",
        Json = "json",
        Csv = "csv",
    }
);

words!(
    /// The value of `--color`.
    DefaultColor {
        Auto = "auto",
        Always = "always",
        Never = "never",
    }
);

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
    use std::os::unix::fs::PermissionsExt;

    use sqlx::PgPool;

    use super::*;

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_second_scheduler_must_be_given_the_secrets_of_the_first(pool: PgPool) {
        let db = Db::of(pool.clone());
        use Precedence::{DataDir as Own, Database as Shared};
        let base = tempfile::tempdir().unwrap();
        let first = DataDir::lock(&base.path().join("first")).unwrap();
        let second = DataDir::lock(&base.path().join("second")).unwrap();
        let made = token(&db, &first, Shared).await.unwrap();
        assert_eq!(made.len(), 64);
        let refused = token(&db, &second, Shared).await.unwrap_err().to_string();
        assert!(refused.contains("copy operator-token") && refused.contains("second"), "{refused}");
        assert!(!second.path().join(TOKEN_FILE).exists(), "nothing is left in the way of a copy");
        assert_eq!(token(&db, &first, Shared).await.unwrap(), made);
        std::fs::copy(first.path().join(TOKEN_FILE), second.path().join(TOKEN_FILE)).unwrap();
        assert_eq!(token(&db, &second, Shared).await.unwrap(), made);
        // With a private database, the data directory's secrets are used.
        std::fs::remove_file(second.path().join(TOKEN_FILE)).unwrap();
        assert_ne!(token(&db, &second, Own).await.unwrap(), made);
        assert!(token(&db, &first, Shared).await.is_err());
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_token_that_was_replaced_is_not_put_in_force_again_by_a_start(pool: PgPool) {
        let db = Db::of(pool.clone());
        use Precedence::{DataDir as Own, Database as Shared};
        let base = tempfile::tempdir().unwrap();
        let dir = DataDir::lock(&base.path().join("d")).unwrap();
        let old = token(&db, &dir, Own).await.unwrap();
        let scheduler = vec!["http://127.0.0.1:1".to_owned()];
        let client = ClientFile { scheduler, ca: None, token: old.clone(), defaults: Defaults::default() };
        client.write(dir.path()).unwrap();
        let elsewhere = base.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        client.write(&elsewhere).unwrap();

        let successor = Successor::draw(&elsewhere, None).unwrap();
        assert_eq!(std::fs::metadata(successor.beside()).unwrap().permissions().mode() & 0o777, 0o600);
        let mut conn = pool.acquire().await.unwrap();
        let (known, new) = (SecretHash::of(&old), successor.hash());
        let replaced = settings::replace_operator_token(&mut conn, &known, &new, Duration::ZERO).await.unwrap();
        assert!(replaced.is_some());
        let again = settings::replace_operator_token(&mut conn, &known, &new, Duration::ZERO).await.unwrap();
        assert_eq!(again, None, "the former one replaces nothing");
        assert_eq!(successor.adopt().unwrap(), [elsewhere.join(CLIENT_FILE)]);
        assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 1, "nothing is left beside");
        let adopted = ClientFile::read(&elsewhere).unwrap().unwrap();
        assert_eq!((SecretHash::of(&adopted.token), adopted.scheduler), (new, client.scheduler));

        for precedence in [Own, Shared] {
            assert_eq!(token(&db, &dir, precedence).await.unwrap(), old, "it starts nevertheless");
            assert_eq!(settings::operator_tokens(&mut conn).await.unwrap().in_force, Some(new));
        }
        token(&db, &dir, Precedence::Operator).await.unwrap();
        assert_eq!(settings::operator_tokens(&mut conn).await.unwrap().in_force, Some(known), "the operator says so");
    }

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
