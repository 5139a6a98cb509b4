//! Finding the server's binaries. Debian keeps them outside PATH, one directory per major version.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::PostgresError;

/// Where Debian puts them, and ours beside.
const DEBIAN: &str = "/usr/lib/postgresql";

/// One installed server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Binaries {
    dir: PathBuf,
    major: String,
}

impl Binaries {
    fn at(dir: PathBuf) -> Option<Self> {
        if !dir.join("initdb").is_file() {
            return None;
        }
        let major = major_of(&run(&dir.join("postgres"), "--version")?)?;
        Some(Self { dir, major })
    }

    pub(super) fn initdb(&self) -> PathBuf {
        self.dir.join("initdb")
    }

    pub(super) fn postgres(&self) -> PathBuf {
        self.dir.join("postgres")
    }
}

/// Every server at hand, the one to prefer first: Debian's newest, then PATH's, then `pg_config`'s.
pub(super) fn installed() -> Vec<Binaries> {
    let mut found: Vec<Binaries> = std::fs::read_dir(DEBIAN)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Binaries::at(entry.path().join("bin")))
        .collect();
    found.sort_by_key(|binaries| std::cmp::Reverse(binaries.major.parse::<u32>().unwrap_or(0)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    found.extend(std::env::split_paths(&path).filter(|dir| dir.is_absolute()).filter_map(Binaries::at));
    if let Some(dir) = run(Path::new("pg_config"), "--bindir") {
        found.extend(Binaries::at(PathBuf::from(dir.trim())));
    }
    found
}

/// The one for a new cluster.
pub(super) fn newest(installed: Vec<Binaries>) -> Result<Binaries, PostgresError> {
    installed.into_iter().next().ok_or(PostgresError::NotInstalled)
}

/// The one for a cluster that has a version already.
pub(super) fn of_version(installed: Vec<Binaries>, made_by: &str, data_dir: &Path) -> Result<Binaries, PostgresError> {
    if installed.is_empty() {
        return Err(PostgresError::NotInstalled);
    }
    let mut majors: Vec<String> = installed.iter().map(|binaries| binaries.major.clone()).collect();
    majors.dedup();
    installed.into_iter().find(|binaries| binaries.major == made_by).ok_or_else(|| PostgresError::Version {
        path: data_dir.to_owned(),
        made_by: made_by.to_owned(),
        installed: majors.join(", "),
    })
}

/// What a program says; none when it cannot be run or fails.
fn run(program: &Path, argument: &str) -> Option<String> {
    let output = Command::new(program).arg(argument).output().ok()?;
    if !output.status.success() {
        return None;
    }
    String::from_utf8(output.stdout).ok()
}

/// The major version out of `postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)`.
fn major_of(said: &str) -> Option<String> {
    let version = said.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    let major: String = version.chars().take_while(char::is_ascii_digit).collect();
    Some(major)
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
        assert!(refused.contains("/d was made by Postgres 13, and only Postgres 17, 15 is installed"), "{refused}");
    }
}
