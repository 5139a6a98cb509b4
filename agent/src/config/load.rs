//! Reads `agent.toml`, resolves its relative paths, checks the settings, and says why a
//! configuration cannot be used. Command-line flags replace settings of the file.

use std::path::{Path, PathBuf};

use super::program;
use super::settings::{Config, ExecConfig, SchedulerUrl, StoreConfig};
use crate::net::user_agent::UserAgent;

pub const FILE: &str = "agent.toml";

impl Config {
    /// Reads and checks a file. Relative paths are resolved against the file's folder.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::load_from(path, path.parent().unwrap_or(Path::new(".")))
    }

    /// Reads and checks a file. Relative paths are resolved against `folder`.
    pub fn load_from(path: &Path, folder: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => ConfigError::Missing(path.to_owned()),
            _ => ConfigError::Read { path: path.to_owned(), source },
        })?;
        let mut config = Self::parse(path, &text)?;
        // The folder is made absolute so that error messages do not depend on the working
        // directory.
        let folder = absolute(folder);
        let (always, perhaps) = (
            [&mut config.credential, &mut config.outbox.folder, &mut config.crawls.folder],
            [config.ca.as_mut(), config.extra_ca.as_mut()],
        );
        let store = config.store.as_mut().map(|store| &mut store.folder);
        for file in always.into_iter().chain(perhaps.into_iter().flatten()).chain(store) {
            *file = folder.join(&*file);
        }
        if let Some(exec) = &mut config.exec {
            exec.start_at(&folder);
        }
        config.validate()?;
        Ok(config)
    }

    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        toml::from_str(text)
            .map_err(|error| ConfigError::Parse { path: path.to_owned(), reason: one_line(text, &error) })
    }

    /// Replaces the command that crawls sites. A relative `exec.folder` is resolved against
    /// `folder`.
    pub fn crawl_with(&mut self, command: Vec<String>, folder: &Path) {
        match &mut self.exec {
            Some(exec) => exec.command = command,
            None => {
                let mut exec = ExecConfig::of(command);
                exec.start_at(&absolute(folder));
                self.exec = Some(exec);
            }
        }
    }
}

fn absolute(folder: &Path) -> PathBuf {
    std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned())
}

const MAX_CAPACITY: u32 = 10_000;

impl Config {
    /// Checks the rules that concern several fields.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let invalid = |key, reason: String| Err(ConfigError::Invalid { key, reason });
        for (key, value) in [("name", &self.name), ("city", &self.city), ("carrier", &self.carrier)] {
            if value.trim().is_empty() {
                return invalid(key, "must not be empty".to_owned());
            }
        }
        if !(1..=MAX_CAPACITY).contains(&self.capacity) {
            return invalid("capacity", format!("{} is not in 1 to {MAX_CAPACITY}", self.capacity));
        }
        if let Some(contact) = &self.contact_url
            && let Err(error) = UserAgent::new(contact)
        {
            return invalid("contact_url", error.to_string());
        }
        if let Some(listen) = self.metrics
            && !self.metrics_public
            && !listen.ip().to_canonical().is_loopback()
        {
            return invalid(
                "metrics",
                format!(
                    "{listen} is not a loopback address, and everybody who reaches it could read the metrics; to permit \
                     that, set metrics_public = true in agent.toml"
                ),
            );
        }
        if let Some(url) = &self.beacon.advertise
            && let Err(error) = url.parse::<crate::net::origin::Origin>()
        {
            return invalid("beacon.advertise", error.to_string());
        }
        if let Some(StoreConfig { max_file_bytes, .. }) = &self.store
            && !StoreConfig::FILE_BYTES.contains(max_file_bytes)
        {
            return invalid("store.max_file_bytes", format!("{max_file_bytes} is not in 1 MiB to 10 GiB"));
        }
        self.exec.as_ref().map_or(Ok(()), ExecConfig::validate)?;
        let schedulers = match SchedulerUrl::parse_all(&self.scheduler) {
            Ok(schedulers) => schedulers,
            Err(error) => return invalid("scheduler", error.to_string()),
        };
        if schedulers.iter().any(|scheduler| scheduler.tls) && self.ca.is_none() {
            return invalid(
                "ca",
                "an https scheduler requires the authority that signed its certificate (PEM)".to_owned(),
            );
        }
        Ok(())
    }
}

impl ExecConfig {
    /// Makes relative paths absolute.
    fn start_at(&mut self, folder: &Path) {
        self.folder = folder.join(&self.folder);
        program::make_absolute(&mut self.command, folder);
    }

    fn validate(&self) -> Result<(), ConfigError> {
        let invalid = |key, reason: String| Err(ConfigError::Invalid { key, reason });
        if self.command.first().is_none_or(|program| program.trim().is_empty()) {
            return invalid("exec.command", "must name a program".to_owned());
        }
        if self.command.iter().any(|word| word.contains('\0')) {
            return invalid("exec.command", "a word contains a NUL character".to_owned());
        }
        if !Self::GRACE_MS.contains(&self.grace_ms) {
            return invalid("exec.grace_ms", format!("{} is not in 0 to {}", self.grace_ms, Self::GRACE_MS.end()));
        }
        if !Self::KEEP.contains(&self.keep) {
            return invalid("exec.keep", format!("{} is not in 0 to {}", self.keep, Self::KEEP.end()));
        }
        Ok(())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(
        "{0} does not exist: enrol this agent first, with the command that `landfall agents enrol` prints, or give \
         --dir"
    )]
    Missing(PathBuf),
    #[error("read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    /// Invalid TOML, or an unknown key or value.
    #[error("{path}: {reason}")]
    Parse {
        path: PathBuf,
        /// The problem, and the line of the file where it is.
        reason: String,
    },
    #[error("{key}: {reason}")]
    Invalid { key: &'static str, reason: String },
}

/// A TOML error as one sentence with the line number, instead of the library's excerpt of the file.
pub(crate) fn one_line(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().lines().next().unwrap_or_default();
    match error.span() {
        Some(span) => {
            let line = text.get(..span.start).unwrap_or_default().matches('\n').count() + 1;
            format!("line {line}: {message}")
        }
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::DEFAULT_CAPACITY;

    const LEAST: &str = "scheduler = 'http://127.0.0.1:7171'\nname = 'a'\ncity = 'Harbin'\ncarrier = 'CERNET'\n";

    fn load(text: &str) -> Result<Config, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        std::fs::write(&path, text).unwrap();
        Config::load(&path)
    }

    #[test]
    fn a_written_configuration_is_read_again() {
        let more =
            "dns = '127.0.0.1'\nallow_net = ['127.0.0.0/8']\nbind = '127.1.0.1'\n[beacon]\nlisten = '127.0.0.1:0'\n";
        let config = load(&format!("{LEAST}{more}")).unwrap();
        assert_eq!(config.capacity, DEFAULT_CAPACITY);
        assert_eq!(config.dns, Some("127.0.0.1:53".parse().unwrap()));
        assert!(config.credential.is_absolute());
        assert_eq!(config.scheduler, ["http://127.0.0.1:7171"]);
        let store = load(&format!("{LEAST}[store]\nfolder = 'pages'\n")).unwrap().store.unwrap();
        assert!(store.folder.is_absolute() && store.folder.ends_with("pages"));
        assert_eq!((store.max_file_bytes, store.min_free_bytes), (1 << 30, 256 << 20));
        let exec = load(&format!("{LEAST}[exec]\ncommand = ['./crawl.sh', './x']\n")).unwrap().exec.unwrap();
        assert!(exec.command[0].starts_with('/') && exec.command[1] == "./x", "{:?}", exec.command);
        assert!(exec.folder.is_absolute() && exec.folder.ends_with("exec"));
        assert_eq!((exec.grace_ms, exec.keep, exec.min_free_bytes), (3000, 1000, 256 << 20));
        let again = load(&toml::to_string(&config).unwrap()).unwrap();
        assert_eq!(format!("{config:?}"), format!("{again:?}"));
    }

    /// The dotted key (`a.b`) of every value.
    fn keys(table: &toml::Table, prefix: &str) -> std::collections::BTreeSet<String> {
        let of = |(key, value): (&String, &toml::Value)| match value {
            toml::Value::Table(inner) => keys(inner, &format!("{prefix}{key}.")),
            _ => [format!("{prefix}{key}")].into(),
        };
        table.iter().flat_map(of).collect()
    }

    #[test]
    fn metrics_are_on_loopback_unless_the_operator_says_otherwise() {
        for accepted in ["127.0.0.1:7181", "[::1]:0", "0.0.0.0:7181'\nmetrics_public = true\n#"] {
            assert!(load(&format!("{LEAST}metrics = '{accepted}'\n")).is_ok(), "{accepted}");
        }
        for refused in ["0.0.0.0:7181", "[::]:7181", "192.0.2.7:7181", "[::ffff:192.0.2.7]:7181"] {
            let error = load(&format!("{LEAST}metrics = '{refused}'\n")).unwrap_err().to_string();
            assert!(error.contains("metrics: ") && error.contains("metrics_public = true"), "{error}");
        }
        let error = load(&format!("{LEAST}metrics = 'here'\n")).unwrap_err().to_string();
        assert!(error.contains("line 5: ") && error.contains("socket address"), "{error}");
    }

    #[test]
    fn the_example_names_every_key_with_its_default() {
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../ops/agent.example.toml");
        let text = std::fs::read_to_string(example).unwrap();
        // A commented-out key is an example, so it must parse too.
        let uncommented: String =
            text.lines().map(|line| line.strip_prefix("#: ").unwrap_or(line).to_owned() + "\n").collect();
        let [as_written, full]: [Config; 2] = [&text, &uncommented].map(|text| toml::from_str(text).unwrap());
        let least = ["scheduler", "name", "city", "carrier"];
        let least: toml::Table =
            text.parse::<toml::Table>().unwrap().into_iter().filter(|(key, _)| least.contains(&&**key)).collect();
        let defaults: Config = least.try_into().unwrap();
        assert_eq!(format!("{as_written:?}"), format!("{defaults:?}"));
        assert_eq!(format!("{:?}", full.store), format!("{:?}", Some(StoreConfig::in_folder(PathBuf::from("pages")))));
        let exec = ExecConfig::of(vec!["./crawl.sh".to_owned()]);
        assert_eq!(format!("{:?}", full.exec), format!("{:?}", Some(exec)));
        // Every key must be in the example. Only keys that are absent by default may be commented
        // out.
        for (text, config) in [(&text, &as_written), (&uncommented, &full)] {
            assert_eq!(keys(&text.parse().unwrap(), ""), keys(&toml::Table::try_from(config).unwrap(), ""));
        }
        let shown = format!("{full:?}");
        for nothing in [": None", ": \"\"", ": []"] {
            assert!(!shown.contains(nothing), "a key is missing from the example: {shown}");
        }
    }

    #[test]
    fn mistakes_name_their_key() {
        let cases = [
            (format!("{LEAST}capacty = 3\n"), "capacty"),
            (format!("{LEAST}capacity = 0\n"), "capacity"),
            (format!("{LEAST}contact_url = 'nowhere'\n"), "contact_url"),
            (format!("{LEAST}dns = 'nowhere'\n"), "line 5"),
            (format!("{LEAST}allow_net = ['127.0.1.0/33']\n"), "line 5: '127.0.1.0/33': a prefix is 0 to 32"),
            (format!("{LEAST}[beacon]\nadvertise = 'here'\n"), "beacon.advertise"),
            (format!("{LEAST}[store]\n"), "folder"),
            (format!("{LEAST}[store]\nfolder = 'p'\nmax_file_bytes = 1048575\n"), "store.max_file_bytes"),
            (format!("{LEAST}[store]\nfolder = 'p'\nmin_free = 1\n"), "min_free"),
            (format!("{LEAST}[exec]\n"), "command"),
            (format!("{LEAST}[exec]\ncommand = []\n"), "exec.command"),
            (format!("{LEAST}[exec]\ncommand = ['a', \"b\\u0000\"]\n"), "exec.command: a word contains a NUL"),
            (format!("{LEAST}[exec]\ncommand = 'wget2 --mirror'\n"), "expected a sequence"),
            (
                format!("{LEAST}[exec]\ncommand = ['a']\ngrace_ms = 30001\n"),
                "exec.grace_ms: 30001 is not in 0 to 30000",
            ),
            (format!("{LEAST}[exec]\ncommand = ['a']\nkeep = 1000001\n"), "exec.keep"),
            (format!("{LEAST}[exec]\ncommand = ['a']\nkeep = -1\n"), "line 7"),
            (LEAST.replace("Harbin", " "), "city"),
            (LEAST.replace("127.0.0.1", "192.0.2.1"), "plaintext is refused except on loopback"),
            (LEAST.replace("http:", "https:"), "ca:"),
            (LEAST.replace("http:", "ftp:"), "scheduler"),
            (LEAST.replace("'http://127.0.0.1:7171'", "[]"), "scheduler"),
            (LEAST.replace("'http://127.0.0.1:7171'", "7171"), "scheduler must be a URL, or a list"),
            (LEAST.replace("'http://127.0.0.1:7171'", "['http://127.0.0.1:7171', 'https://a:1']"), "ca:"),
        ];
        for (text, expected) in cases {
            let error = load(&text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
