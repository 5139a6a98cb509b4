//! Finds the programs of Postgres and the system user that runs them, and names the reasons why the
//! private Postgres is not available.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow};
use nix::unistd::{Gid, Uid, User};

/// The oldest major version that works: the log of events needs `pg_current_xact_id`.
pub(crate) const OLDEST_MAJOR: u32 = 13;
/// The folder of Debian's Postgres servers.
const DEBIAN: &str = "/usr/lib/postgresql";

/// One installed server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Binaries {
    dir: PathBuf,
    major: String,
}

impl Binaries {
    fn of_server(dir: PathBuf) -> Option<Self> {
        if !dir.join("initdb").is_file() {
            return None;
        }
        Self::with(dir, "postgres")
    }

    /// The programs in a folder; `None` if the folder does not contain `program`.
    fn with(dir: PathBuf, program: &str) -> Option<Self> {
        let major = major_of(&run(&dir.join(program), "--version")?)?;
        Some(Self { dir, major })
    }

    pub(super) fn major(&self) -> &str {
        &self.major
    }

    pub(super) fn initdb(&self) -> PathBuf {
        self.dir.join("initdb")
    }

    pub(super) fn postgres(&self) -> PathBuf {
        self.dir.join("postgres")
    }
}

/// A client program of Postgres, such as `pg_dump`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tool {
    pub program: PathBuf,
    pub major: u32,
}

/// Finds the oldest program of this name that has at least this major version. The oldest program
/// is preferred, because older programs cannot read the archives of newer programs. The client
/// package is enough; the server need not be installed.
///
/// # Errors
/// When no program is found, or only older programs.
pub fn tool(name: &str, at_least: u32) -> anyhow::Result<Tool> {
    fitting(found(|dir| Binaries::with(dir, name)), name, at_least)
}

fn fitting(found: Vec<Binaries>, name: &str, at_least: u32) -> anyhow::Result<Tool> {
    let mut tools: Vec<Tool> = found
        .into_iter()
        .filter_map(|binaries| Some(Tool { program: binaries.dir.join(name), major: binaries.major.parse().ok()? }))
        .collect();
    tools.sort_by_key(|tool| tool.major);
    let newest = tools.last().map(|tool| tool.major);
    let fits = tools.into_iter().find(|tool| tool.major >= at_least);
    fits.ok_or_else(|| {
        let problem = match newest {
            Some(newest) => format!("is of Postgres {newest}, but Postgres {at_least} is needed"),
            None => format!("is not installed (looked in {LOOKED_IN})"),
        };
        anyhow!("{name} {problem}: install Debian's package postgresql-client-{at_least}, or a newer one")
    })
}

/// All installed servers in order of preference: Debian's (newest first), then the one in PATH,
/// then the one that `pg_config` names.
pub(super) fn installed() -> Vec<Binaries> {
    found(Binaries::of_server)
}

fn found(look: impl Fn(PathBuf) -> Option<Binaries>) -> Vec<Binaries> {
    let mut found: Vec<Binaries> = std::fs::read_dir(DEBIAN)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| look(entry.path().join("bin")))
        .collect();
    found.sort_by_key(|binaries| std::cmp::Reverse(binaries.major.parse::<u32>().unwrap_or(0)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    found.extend(std::env::split_paths(&path).filter(|dir| dir.is_absolute()).filter_map(&look));
    if let Some(dir) = run(Path::new("pg_config"), "--bindir") {
        found.extend(look(PathBuf::from(dir.trim())));
    }
    found
}

/// The server to use for a new cluster.
pub(super) fn newest(installed: Vec<Binaries>) -> Result<Binaries, PostgresError> {
    installed.into_iter().next().ok_or(PostgresError::NotInstalled)
}

/// The server to use for an existing cluster, which must have the same major version.
pub(super) fn of_version(installed: Vec<Binaries>, made_by: &str, data_dir: &Path) -> Result<Binaries, PostgresError> {
    if installed.is_empty() {
        return Err(PostgresError::NotInstalled);
    }
    let mut majors: Vec<String> = installed.iter().map(|binaries| binaries.major.clone()).collect();
    majors.dedup();
    let found = installed.into_iter().find(|binaries| binaries.major == made_by);
    Ok(found.with_context(|| {
        format!(
            "the data directory {} was made by Postgres {made_by}, but only Postgres {} is installed: install \
             Debian's package postgresql-{made_by}, or choose another directory with --data-dir",
            data_dir.display(),
            majors.join(", ")
        )
    })?)
}

/// The output of a program; `None` if the program cannot be run or fails.
fn run(program: &Path, argument: &str) -> Option<String> {
    let output = Command::new(program).arg(argument).output().ok()?;
    if !output.status.success() {
        return None;
    }
    String::from_utf8(output.stdout).ok()
}

/// Extracts the major version from `postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)`.
fn major_of(said: &str) -> Option<String> {
    let version = said.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    let major: String = version.chars().take_while(char::is_ascii_digit).collect();
    Some(major)
}

/// The superuser of the cluster. If the scheduler runs as root, this is also the system user that
/// runs the server.
pub(super) const USER: &str = "postgres";
/// A shell script that runs between `setpriv` and the program. It exits if the parent has already
/// ended, because then the parent-death signal would never be sent.
const UNLESS_ORPHANED: &str = r#"[ "$PPID" = "$1" ] || exit 1; shift; exec "$@""#;

/// The system user that runs the server. Postgres refuses to run as root, so a scheduler that runs
/// as root starts the server as the user `postgres`.
///
/// `setpriv` (util-linux, on every Debian system) changes the user and requests the parent-death
/// signal. If this program did that itself, it would need unsafe code between fork and exec.
#[derive(Debug, Clone, Copy)]
pub(super) enum Account {
    /// The same user as the scheduler.
    Own(Uid),
    /// The user `postgres`, for a scheduler that runs as root.
    Dropped(Uid, Gid),
}

impl Account {
    /// The user that runs servers started by this process.
    pub(super) fn of_server() -> Result<Self, PostgresError> {
        Self::of_server_of(Uid::effective())
    }

    /// The user that runs servers started by a scheduler that runs as the user `scheduler`.
    pub(super) fn of_server_of(scheduler: Uid) -> Result<Self, PostgresError> {
        if !scheduler.is_root() {
            return Ok(Self::Own(scheduler));
        }
        match User::from_name(USER) {
            Ok(Some(user)) => Ok(Self::Dropped(user.uid, user.gid)),
            Ok(None) => Err(PostgresError::NoAccount),
            Err(errno) => Err(anyhow!(errno).context("look up the user postgres in /etc/passwd").into()),
        }
    }

    pub(super) fn uid(self) -> Uid {
        match self {
            Self::Own(uid) | Self::Dropped(uid, _) => uid,
        }
    }

    /// Checks that `setpriv` can be run.
    pub(super) fn check_programs() -> Result<(), PostgresError> {
        let asked = Command::new("setpriv").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        match asked {
            Ok(_) => Ok(()),
            Err(_) => Err(PostgresError::NoSetpriv),
        }
    }

    /// Makes a command that runs as this user, in a clean environment. The process receives SIGINT
    /// when the *thread* that spawned it ends.
    pub(super) fn command(self, program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        if let Self::Dropped(uid, gid) = self {
            command.arg(format!("--reuid={uid}")).arg(format!("--regid={gid}")).arg("--init-groups");
        }
        command.args(["--pdeathsig", "INT", "--", "/bin/sh", "-c", UNLESS_ORPHANED, "sh"]);
        command.arg(std::process::id().to_string()).arg(program);
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
        command.env_clear().env("PATH", path).env("LC_ALL", "C").current_dir("/").stdin(Stdio::null());
        command
    }

    /// Makes this user the owner of a directory.
    pub(super) fn give(self, path: &Path) -> anyhow::Result<()> {
        match self {
            Self::Own(_) => Ok(()),
            Self::Dropped(uid, gid) => std::os::unix::fs::chown(path, Some(uid.as_raw()), Some(gid.as_raw()))
                .with_context(|| format!("make the user postgres the owner of {}", path.display())),
        }
    }

    /// Checks that this user may enter the data directory and every directory above it.
    pub(super) fn check_reach(self, data_dir: &Path) -> Result<(), PostgresError> {
        if matches!(self, Self::Own(_)) || self.can_pass(data_dir)? {
            return Ok(());
        }
        let mut downwards: Vec<PathBuf> = data_dir.ancestors().map(Path::to_owned).collect();
        downwards.reverse();
        for parent in downwards {
            if !self.can_pass(&parent)? {
                return Err(PostgresError::Unreachable { path: data_dir.to_owned(), blocked: parent });
            }
        }
        Ok(())
    }

    /// Tests access in a process that runs as this user, so that access control lists are respected
    /// too.
    fn can_pass(self, dir: &Path) -> anyhow::Result<bool> {
        let mut test = self.command(Path::new("test"));
        // Spawning fails only if `setpriv` is missing.
        let status = test.arg("-x").arg(dir).stderr(Stdio::null()).status().context("run setpriv")?;
        Ok(status.success())
    }
}

/// Where Landfall looks for Postgres' programs, as named in messages.
const LOOKED_IN: &str = "/usr/lib/postgresql, PATH and pg_config";

/// Why the private Postgres is not available.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    #[error(
        "no Postgres server is installed (looked in {LOOKED_IN}): install Debian's package postgresql, or give --database-url"
    )]
    NotInstalled,
    /// The cluster's folder contains other files.
    #[error("{0} is not empty and contains no Postgres cluster: choose another data directory with --data-dir")]
    Foreign(PathBuf),
    #[error(
        "root runs the private Postgres as the user postgres, who does not exist: install Debian's package \
         postgresql, or run landfall as an ordinary user"
    )]
    NoAccount,
    /// The user postgres may not enter the data directory.
    #[error(
        "the user postgres cannot pass through {blocked} to reach {path}: choose another directory with --data-dir \
         (/var/lib/landfall is the default), or run chmod o+x {blocked}"
    )]
    Unreachable {
        path: PathBuf,
        /// The directory above `path` that the user postgres may not enter.
        blocked: PathBuf,
    },
    #[error(
        "the program setpriv, which starts the private Postgres, cannot be run: install Debian's package util-linux"
    )]
    NoSetpriv,
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_read_from_what_postgres_says() {
        assert_eq!(major_of("postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)\n").as_deref(), Some("15"));
        assert_eq!(major_of("postgres (PostgreSQL) 19devel\n").as_deref(), Some("19"));
        assert_eq!(major_of("no such thing"), None);
    }

    #[test]
    fn an_old_cluster_gets_its_own_version_or_a_clear_refusal() {
        let binaries = |major: &str| Binaries { dir: PathBuf::from("/x").join(major), major: major.to_owned() };
        let installed = vec![binaries("17"), binaries("15"), binaries("15")];
        assert_eq!(of_version(installed.clone(), "15", Path::new("/d")).unwrap(), binaries("15"));
        let refused = of_version(installed, "13", Path::new("/d")).unwrap_err().to_string();
        assert!(refused.contains("/d was made by Postgres 13, but only Postgres 17, 15 is installed"), "{refused}");
    }

    #[test]
    fn a_program_is_as_new_as_it_must_be_and_no_newer() {
        let binaries = |major: &str| Binaries { dir: PathBuf::from("/x").join(major), major: major.to_owned() };
        let found = || vec![binaries("17"), binaries("15"), binaries("13")];
        let dump = |at_least| fitting(found(), "pg_dump", at_least).map(|tool| tool.program);
        assert_eq!(dump(14).unwrap(), PathBuf::from("/x/15/pg_dump"));
        assert_eq!(dump(15).unwrap(), PathBuf::from("/x/15/pg_dump"));
        let refused = dump(18).unwrap_err().to_string();
        assert!(refused.contains("pg_dump is of Postgres 17, but Postgres 18 is needed"), "{refused}");
        let refused = fitting(Vec::new(), "pg_dump", 15).unwrap_err().to_string();
        assert!(refused.contains("pg_dump is not installed") && refused.contains("postgresql-client-15"), "{refused}");
    }
}
