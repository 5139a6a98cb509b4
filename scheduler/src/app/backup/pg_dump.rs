//! Runs `pg_dump` and `pg_restore` with pipes, so that no dump is stored in a temporary file.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::process::{ChildStdout, Command, Stdio};

use anyhow::{Context, bail, ensure};
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;
use url::{Url, form_urlencoded};

use crate::app::postgres::Tool;

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
