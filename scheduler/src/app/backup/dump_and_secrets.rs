//! What a backup contains: the database, which `pg_dump` and `pg_restore` write and read through
//! pipes, and the secrets of the data directory.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

use anyhow::{Context, bail, ensure};
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;
use url::{Url, form_urlencoded};

use crate::app::certificate_authority::fingerprint;
use crate::app::data_dir::write_atomically;
use crate::app::postgres::Tool;
use crate::machine::secret::{SecretHash, hex};

/// The name of the dump in a backup.
pub(super) const DUMP: &str = "database.dump";
/// The Postgres schema that contains Landfall's tables.
const SCHEMA: &str = "public";
/// At level 1, compression uses a third of a core. The default level uses six times as much
/// processor time, and its output is only a tenth smaller.
const COMPRESSION: &str = "--compress=1";
/// The dump runs at lower priority than the scheduler.
const NICENESS: &str = "10";
/// Maximum time to wait for a lock on a table. While a dump waits for a transaction that alters the
/// table, all later queries of the table must wait too.
const LOCK_PATIENCE: &str = "--lock-wait-timeout=60s";
/// Gives Postgres more memory to build indexes. Commits do not wait for the disk, because the
/// operator can repeat the restore if the machine fails.
const OF_RESTORES: &str = "-c maintenance_work_mem=256MB -c synchronous_commit=off";

/// Environment variables that tell the programs how to connect. Command lines are not used for
/// this, because every user can read them.
#[derive(Debug, Clone)]
pub(super) struct Libpq(Vec<(&'static str, OsString)>);

impl Libpq {
    pub(super) fn of(options: &PgConnectOptions) -> Self {
        let host =
            options.get_socket().map_or_else(|| options.get_host().into(), |socket| socket.clone().into_os_string());
        let mut variables = vec![
            ("PGHOST", host),
            ("PGPORT", options.get_port().to_string().into()),
            ("PGUSER", options.get_username().into()),
            ("PGDATABASE", options.get_database().unwrap_or(options.get_username()).into()),
            ("PGAPPNAME", "landfall backup".into()),
        ];
        // sqlx provides the password and the TLS options only as parts of a URL.
        let url = options.to_url_lossy();
        variables.extend(password(&url).map(|password| ("PGPASSWORD", password.into())));
        for (key, value) in url.query_pairs() {
            let name = match &*key {
                "sslmode" => "PGSSLMODE",
                "sslrootcert" => "PGSSLROOTCERT",
                "sslcert" => "PGSSLCERT",
                "sslkey" => "PGSSLKEY",
                _ => continue,
            };
            variables.push((name, value.into_owned().into()));
        }
        Self(variables)
    }

    fn command(&self, tool: &Tool) -> Command {
        let mut command = Command::new("nice");
        command.args(["-n", NICENESS]).arg(&tool.program).args(["--no-password", "--no-owner", "--no-privileges"]);
        command.arg(format!("--schema={SCHEMA}"));
        let kept = ["PATH", "HOME"].into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        command.env_clear().envs(kept).env("LC_ALL", "C").envs(self.0.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// Checks that Landfall's tables are in the schema that is dumped and restored.
pub(super) fn ensure_schema(schema: Option<&str>) -> anyhow::Result<()> {
    let found = schema.unwrap_or("(none)");
    ensure!(
        found == SCHEMA,
        "the tables of this database's user are in the schema {found}, but a backup contains only the schema {SCHEMA}"
    );
    Ok(())
}

fn password(url: &Url) -> Option<String> {
    // The decoder is made for form data, in which a plus means a blank, so pluses are encoded
    // first.
    let encoded = format!("p={}", url.password()?.replace('+', "%2B"));
    form_urlencoded::parse(encoded.as_bytes()).next().map(|(_, password)| password.into_owned())
}

/// Dumps the snapshot. The function `take` reads the dump.
pub(super) fn dump(
    tool: &Tool,
    libpq: &Libpq,
    snapshot: &str,
    take: impl FnOnce(&mut ChildStdout) -> io::Result<u64>,
) -> anyhow::Result<u64> {
    let (said, errors) = said()?;
    let mut command = libpq.command(tool);
    command.args(["--format=custom", COMPRESSION, LOCK_PATIENCE]).arg(format!("--snapshot={snapshot}"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
    let mut child = command.spawn().context("start pg_dump")?;
    let mut output = child.stdout.take().context("read from pg_dump")?;
    let taken = take(&mut output);
    // Closes the pipe, so that `pg_dump` ends if it is still writing.
    drop(output);
    let status = child.wait().context("wait for pg_dump")?;
    let length = taken.context("write the backup")?;
    if !status.success() {
        bail!("pg_dump failed: {}", last_words(said));
    }
    Ok(length)
}

/// Restores a dump into an empty database, in one transaction.
pub(super) fn restore(tool: &Tool, libpq: &Libpq, dump: &mut impl Read) -> anyhow::Result<()> {
    let (said, errors) = said()?;
    let mut command = libpq.command(tool);
    command.env("PGOPTIONS", OF_RESTORES).args(["--format=custom", "--single-transaction", "--dbname"]);
    // `pg_restore` connects to a database only if `--dbname` is given. The name of the database is
    // no secret.
    command.args(libpq.0.iter().find(|(name, _)| *name == "PGDATABASE").map(|(_, value)| value));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(errors);
    let mut child = command.spawn().context("start pg_restore")?;
    let mut input = child.stdin.take().context("write to pg_restore")?;
    let fed = io::copy(dump, &mut input);
    drop(input);
    let status = child.wait().context("wait for pg_restore")?;
    // The message of `pg_restore` is more precise than the error of the broken pipe in `fed`.
    if !status.success() {
        bail!("pg_restore failed: {}", last_words(said));
    }
    fed.map(drop).context("read the backup")
}

/// A temporary file for a program's error messages. A pipe could fill up and block the program.
fn said() -> anyhow::Result<(File, Stdio)> {
    let file = tempfile::tempfile().context("make a temporary file")?;
    let errors = file.try_clone().context("share a temporary file")?;
    Ok((file, errors.into()))
}

/// The first line that reports an error; if there is none, the last line.
fn last_words(mut said: File) -> String {
    let mut text = Vec::new();
    // If the file cannot be read, the error message is only less precise.
    drop(said.seek(SeekFrom::Start(0)).and_then(|_| said.take(1 << 16).read_to_end(&mut text)));
    let text = String::from_utf8_lossy(&text);
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    let words = lines().find(|line| line.contains("error:")).or_else(|| lines().next_back()).unwrap_or("(no output)");
    words.to_owned()
}

const TOKEN: &str = "operator-token";
const CA: &str = "tls/ca.pem";
/// The files and their modes, in the order of writing. The authority's key is written before its
/// certificate, because an authority with a certificate is considered complete.
const FILES: [(&str, u32); 3] = [(TOKEN, 0o600), ("tls/ca.key", 0o600), (CA, 0o644)];

/// The contents of the secret files by file name.
#[derive(Debug, Default)]
pub(super) struct Secrets {
    files: Vec<(&'static str, u32, Vec<u8>)>,
}

impl Secrets {
    /// Collects the secrets. The function `read` returns the content of a file by name.
    pub(super) fn collect(mut read: impl FnMut(&str) -> anyhow::Result<Option<Vec<u8>>>) -> anyhow::Result<Self> {
        let mut files = Vec::new();
        for (name, mode) in FILES {
            if let Some(content) = read(name)? {
                files.push((name, mode, content));
            }
        }
        Ok(Self { files })
    }

    /// The secrets of a data directory. Some or all may be missing.
    pub(super) fn of(data_dir: &Path) -> anyhow::Result<Self> {
        Self::collect(|name| {
            let path = data_dir.join(name);
            match fs::read(&path) {
                Ok(content) => Ok(Some(content)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
            }
        })
    }

    pub(super) fn files(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        self.files.iter().map(|(name, _, content)| (*name, content.as_slice()))
    }

    fn text(&self, name: &str) -> Option<String> {
        self.files().find(|(known, _)| *known == name).map(|(_, content)| String::from_utf8_lossy(content).into_owned())
    }

    /// SHA-256 of the operator's token, hexadecimal.
    pub(super) fn operator_token(&self) -> Option<String> {
        let token = self.text(TOKEN)?;
        Some(token.trim()).filter(|token| !token.is_empty()).map(|token| hex(SecretHash::of(token).as_bytes()))
    }

    /// SHA-256 of the authority's certificate, hexadecimal.
    pub(super) fn authority(&self) -> Option<String> {
        self.text(CA).and_then(|pem| fingerprint(&pem))
    }

    pub(super) fn write(&self, data_dir: &Path) -> anyhow::Result<()> {
        for (name, mode, content) in &self.files {
            let path = data_dir.join(name);
            if let Some(folder) = path.parent() {
                let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
                made.with_context(|| format!("make {}", folder.display()))?;
            }
            write_atomically(&path, *mode, content)?;
        }
        Ok(())
    }

    /// Fails if a data directory has secrets that differ from those of the backup.
    pub(super) fn ensure_theirs(&self, token: Option<&str>, ca: Option<&str>, data_dir: &Path) -> anyhow::Result<()> {
        let differs = |own: Option<String>, theirs: Option<&str>| {
            own.is_some_and(|own| theirs.is_some_and(|theirs| own != theirs))
        };
        for (what, differs) in [(TOKEN, differs(self.operator_token(), token)), ("tls", differs(self.authority(), ca))]
        {
            if differs {
                bail!(
                    "{} differs from the backup's: it belongs to another fleet, or was replaced since; choose another \
                     directory with --data-dir, or move {what} away to use the backup's",
                    data_dir.join(what).display()
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_told_without_its_password_on_a_command_line() {
        let url = "postgres://u:p%2Bx%20%40@db.test:5433/landfall?sslmode=require";
        let libpq = Libpq::of(&url.parse().unwrap());
        let told =
            |name: &str| libpq.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_str().unwrap());
        assert_eq!(told("PGPASSWORD"), Some("p+x @"));
        assert_eq!((told("PGHOST"), told("PGPORT"), told("PGUSER")), (Some("db.test"), Some("5433"), Some("u")));
        assert_eq!((told("PGDATABASE"), told("PGSSLMODE")), (Some("landfall"), Some("require")));
        let tool = Tool { program: "/x/pg_dump".into(), major: 15 };
        assert!(!format!("{:?}", libpq.command(&tool).get_args().collect::<Vec<_>>()).contains("p+x"));
    }
}
