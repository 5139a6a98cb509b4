//! Checks the data directory (whether it is usable, which process uses it, how much space is free,
//! who can read its secrets), the user that runs the scheduler, and the configuration.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::sys::stat::{major, minor};
use nix::unistd::{AccessFlags, Uid, User, access};

use super::check_result::{CheckResult, reading};
use crate::app::data_dir::{DataDir, LOCK_FILE, SECRETS};
use crate::app::exit::sentence;
use crate::app::postgres::LEAST_ROOM;
use crate::app::start_options::{self, Configuration, Options};
use crate::app::token_and_client_file::CLIENT_FILE;
use crate::config::Config;
use crate::jobs::geoip::GeoIp;
use crate::machine::disk;

const DATA_DIR: &str = "data dir";
/// Number of free bytes below which the operator should act, because the write-ahead log of the
/// private Postgres may grow by its `max_wal_size` of 1 GB. Below [`LEAST_ROOM`] the server may
/// stop.
const SCARCE: u64 = 1 << 30;
/// Files that only the scheduler's user may read, relative to the data directory.
const PRIVATE: [&str; 5] = ["operator-token", "operator-token.next", CLIENT_FILE, "tls/ca.key", "tls/server.key"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FolderFacts {
    path: PathBuf,
    content: Content,
    /// The owner; `None` if the directory does not exist.
    pub(super) owner: Option<Uid>,
    /// Whether every user may change files in the directory.
    open_to_all: bool,
    /// Free bytes on the directory's disk; `None` if unknown.
    free: Option<u64>,
    /// Secrets that every user may read.
    exposed: Vec<PathBuf>,
}

/// What exists at the path of a data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    /// The path does not exist. Contains the nearest existing parent folder, and whether this user
    /// may write to that folder.
    Missing {
        above: PathBuf,
        writable: bool,
    },
    /// A folder without Landfall's files, except perhaps copied secrets. A scheduler can start in
    /// it.
    Unclaimed,
    /// A folder with files of another program. Contains the name of one of these files.
    Foreign(String),
    Unreadable(String),
    /// A scheduler's files, and the process that uses them, if any.
    Ours(Option<Holder>),
}

/// The process that has locked a data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) pid: i32,
    /// The name of the process's program.
    pub(super) name: String,
}

impl FolderFacts {
    pub(super) fn holder(&self) -> Option<&Holder> {
        match &self.content {
            Content::Ours(holder) => holder.as_ref(),
            _ => None,
        }
    }
}

pub(super) async fn look_at_data_dir(path: &Path) -> Result<FolderFacts, CheckResult> {
    let path = path.to_owned();
    reading(DATA_DIR, move || read(path)).await
}

fn read(path: PathBuf) -> FolderFacts {
    let metadata = fs::metadata(&path);
    let present = path.ancestors().find(|folder| folder.exists()).unwrap_or(&path);
    let free = disk::space(present).map(|disk| disk.free);
    let content = match &metadata {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let writable = access(present, AccessFlags::W_OK | AccessFlags::X_OK).is_ok();
            Content::Missing { above: present.to_owned(), writable }
        }
        Err(error) => Content::Unreadable(error.to_string()),
        Ok(_) => content(&path).unwrap_or_else(|error| Content::Unreadable(error.to_string())),
    };
    let readable_by_all = |file: &PathBuf| fs::metadata(file).is_ok_and(|file| file.mode() & 0o007 != 0);
    let exposed = PRIVATE.iter().map(|file| path.join(file)).filter(readable_by_all).collect();
    let owner = metadata.as_ref().ok().map(|folder| Uid::from_raw(folder.uid()));
    let open_to_all = metadata.is_ok_and(|folder| folder.mode() & 0o002 != 0);
    FolderFacts { path, content, owner, open_to_all, free, exposed }
}

fn content(path: &Path) -> io::Result<Content> {
    let lock = path.join(LOCK_FILE);
    match fs::metadata(&lock) {
        Ok(metadata) => return Ok(Content::Ours(holder(&lock, &metadata))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        if !SECRETS.iter().any(|secret| name == *secret) {
            return Ok(Content::Foreign(name.to_string_lossy().into_owned()));
        }
    }
    Ok(Content::Unclaimed)
}

/// The process that has locked the file, according to the kernel's list of locks. This function
/// does not try to lock the file: while it held the lock, even for a moment, no scheduler could
/// start.
fn holder(lock: &Path, metadata: &fs::Metadata) -> Option<Holder> {
    let written = fs::read_to_string(lock).ok().and_then(|text| text.trim().parse().ok());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let device = format!("{:02x}:{:02x}", major(metadata.dev()), minor(metadata.dev()));
    let pid = locker(&locks, &device, metadata.ino(), written).or_else(|| written.filter(|pid| opened(*pid, lock)))?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(Holder { pid, name: name.trim().to_owned() })
}

/// Whether a process has the file open. Used for overlay file systems, where a file's device and
/// inode numbers in the list of locks differ from those in its metadata.
fn opened(pid: i32, file: &Path) -> bool {
    let Ok(file) = file.canonicalize() else { return false };
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.map(|entry| fs::read_link(entry.path())).any(|open| open.is_ok_and(|open| open == file))
}

/// Finds, in the text of `/proc/locks`, the process that has locked a file. On some file systems,
/// the device in this text differs from the one in the file's metadata. The result is then the
/// process whose PID is in the lock file (`written`).
fn locker(locks: &str, device: &str, inode: u64, written: Option<i32>) -> Option<i32> {
    locks.lines().find_map(|line| {
        let [_, "FLOCK", _, _, pid, file, ..] = line.split_whitespace().collect::<Vec<_>>()[..] else { return None };
        let (of_device, of_inode) = file.rsplit_once(':')?;
        let pid = pid.parse().ok()?;
        let same = of_inode.parse() == Ok(inode) && (of_device == device || written == Some(pid));
        same.then_some(pid)
    })
}

/// Judges the directory itself, its disk, and its secrets.
pub(super) fn judge_data_dir(facts: &FolderFacts) -> Vec<CheckResult> {
    let mut results = vec![usable(facts)];
    results.extend(disk(facts));
    let shown: Vec<String> = facts.exposed.iter().map(|file| file.display().to_string()).collect();
    match (&facts.content, shown.is_empty()) {
        (_, false) => results.push(CheckResult::wrong(
            "secrets",
            format!("every user of this machine may read {}", shown.join(", ")),
            format!(
                "run chmod go= {}; if others may have read them, replace the token: landfall operator rotate",
                shown.join(" ")
            ),
        )),
        (Content::Ours(_) | Content::Unclaimed, true) => {
            results.push(CheckResult::ok("secrets", "no other user may read the token and the keys"));
        }
        _ => {}
    }
    results
}

fn usable(facts: &FolderFacts) -> CheckResult {
    let path = facts.path.display();
    let another = "choose another with --data-dir";
    let owner = facts.owner.map(|owner| format!(", of the user {}", user_name(owner))).unwrap_or_default();
    match &facts.content {
        Content::Missing { above, writable: false } => CheckResult::wrong(
            DATA_DIR,
            format!("{path} does not exist, and you may not write in {}", above.display()),
            format!("run this as the user of the scheduler, or {another}"),
        ),
        Content::Missing { .. } if facts.path != Path::new(PACKAGE_FOLDER) && Path::new(PACKAGE_FOLDER).exists() => {
            CheckResult::note(
                DATA_DIR,
                format!("{path} does not exist yet; the first start makes it"),
                format!("run this as root to check the scheduler of this machine's package, in {PACKAGE_FOLDER}"),
            )
        }
        Content::Missing { .. } => {
            CheckResult::ok(DATA_DIR, format!("{path} does not exist yet; the first start makes it"))
        }
        Content::Foreign(file) => CheckResult::wrong(
            DATA_DIR,
            format!("{path} contains {file}, which landfall did not make, so a start refuses it"),
            another,
        ),
        Content::Unreadable(why) => CheckResult::wrong(
            DATA_DIR,
            format!("{path}{owner}: {why}"),
            format!("run this as its owner, or {another}"),
        ),
        Content::Unclaimed | Content::Ours(_) if facts.open_to_all => CheckResult::wrong(
            DATA_DIR,
            format!("every user of this machine may change files in {path}"),
            format!("run chmod o-w {path}"),
        ),
        Content::Unclaimed => CheckResult::ok(DATA_DIR, format!("{path}{owner}, not used yet")),
        Content::Ours(None) => CheckResult::ok(DATA_DIR, format!("{path}{owner}, which no process uses now")),
        Content::Ours(Some(Holder { pid, name })) => {
            CheckResult::ok(DATA_DIR, format!("{path}{owner}, in use by process {pid} ({name})"))
        }
    }
}

fn disk(facts: &FolderFacts) -> Option<CheckResult> {
    let free = facts.free?;
    let text = format!("{} MB free at {}", free / 1_000_000, facts.path.display());
    let remedy = "free space there; `landfall batches remove NAME` frees the space of old batches inside the database";
    Some(match free {
        ..LEAST_ROOM => CheckResult::wrong("disk", format!("{text}: Postgres stops"), remedy),
        LEAST_ROOM..SCARCE => {
            CheckResult::note("disk", format!("{text}: Postgres' log alone may grow by 1 GB"), remedy)
        }
        _ => CheckResult::ok("disk", text),
    })
}

const USER: &str = "user";
/// The file that contains the lowest port on which every user may listen.
const UNPRIVILEGED: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";

/// Facts about users. The scheduler runs as the owner of its data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AccountFacts {
    /// The user who runs this command: id and user_name.
    pub(super) own: (Uid, String),
    /// The user who runs the scheduler: id and user_name.
    pub(super) scheduler: (Uid, String),
    /// The scheduler's port, and whether the scheduler starts a private Postgres; `None` if
    /// unknown.
    pub(super) needs: Option<(u16, bool)>,
    /// The lowest port on which every user may listen.
    pub(super) first_port: u16,
}

impl AccountFacts {
    pub(super) fn of(scheduler: Uid, needs: Option<(u16, bool)>) -> Self {
        let first_port = std::fs::read_to_string(UNPRIVILEGED).ok().and_then(|text| text.trim().parse().ok());
        let own = Uid::effective();
        Self {
            own: (own, user_name(own)),
            scheduler: (scheduler, user_name(scheduler)),
            needs,
            first_port: first_port.unwrap_or(1024),
        }
    }
}

/// The user_name of a user, or the number of a user without a user_name.
fn user_name(uid: Uid) -> String {
    User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}

pub(super) fn judge_user(facts: &AccountFacts) -> CheckResult {
    let AccountFacts { own: (own, me), scheduler: (scheduler, runs), needs, first_port } = facts;
    if own != scheduler && !own.is_root() {
        let text = format!("you are {me}, but the data directory belongs to {runs}");
        return CheckResult::wrong(USER, text, "run this command as root or as that user");
    }
    if let Some((port, _)) = needs.filter(|(port, _)| port < first_port && *port != 0 && !scheduler.is_root()) {
        return CheckResult::wrong(
            USER,
            format!("{runs} may not listen on port {port}: only root may use ports below {first_port}"),
            "choose another port with --listen, or add AmbientCapabilities=CAP_NET_BIND_SERVICE to the unit \
             (`systemctl edit landfall`)",
        );
    }
    let private = needs.is_some_and(|(_, private)| private);
    CheckResult::ok(
        USER,
        match (scheduler.is_root(), own == scheduler) {
            (true, _) if private => "the scheduler runs as root, its private Postgres as the user postgres".to_owned(),
            (true, _) => "the scheduler runs as root".to_owned(),
            (false, true) => format!("the scheduler runs as {runs}"),
            (false, false) => format!("the scheduler runs as {runs}, who owns the data directory; you are root"),
        },
    )
}

/// Checks the configuration. Returns the configuration if it is valid.
pub(super) async fn configuration(options: &Options) -> (Vec<CheckResult>, Option<Config>) {
    const CHECK: &str = "config";
    let asked = options.clone();
    let read = reading(CHECK, move || {
        let read = start_options::configuration(&asked)?;
        read.config.geoip.as_deref().map(GeoIp::open).transpose()?;
        anyhow::Ok(read)
    });
    let Configuration { config, exposed } = match read.await {
        Ok(Ok(read)) => read,
        Ok(Err(error)) => {
            let remedy = "correct this setting; docs/operate/settings.md describes all of them";
            return (vec![CheckResult::wrong(CHECK, sentence(&error), remedy)], None);
        }
        Err(hangs) => return (vec![hangs], None),
    };
    let said = match &options.config {
        Some(file) => format!("{}: every value is in its range", file.display()),
        None => "no file is given (--config): defaults, options and LANDFALL_* variables".to_owned(),
    };
    let mut results = vec![CheckResult::ok(CHECK, said)];
    if let Some(file) = exposed.as_deref().map(Path::display) {
        let text = format!("every user of this machine can read the database_url in {file}");
        results.push(CheckResult::wrong(CHECK, text, format!("run chmod o= {file}")));
    }
    (results, Some(config))
}

/// The data directory of the Debian package.
const PACKAGE_FOLDER: &str = "/var/lib/landfall";
/// The configuration of the Debian package.
const PACKAGE_FILE: &str = "/etc/landfall/landfall.toml";

/// Adds the paths of the Debian package to options without paths.
pub(crate) fn with_default_paths(options: Options) -> anyhow::Result<Options> {
    let data_dir = match options.data_dir {
        Some(path) => std::path::absolute(path)?,
        None => DataDir::default_path()?,
    };
    let packaged = data_dir == Path::new(PACKAGE_FOLDER) && Path::new(PACKAGE_FILE).exists();
    let config = options.config.or_else(|| packaged.then(|| PathBuf::from(PACKAGE_FILE)));
    Ok(Options { data_dir: Some(data_dir), config, ..options })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::app::doctor::State;

    fn state(path: &Path) -> (Content, Vec<(&'static str, State)>) {
        let facts = read(path.to_owned());
        let judged = judge_data_dir(&facts);
        for result in &judged {
            assert_eq!(result.remedy.is_some(), matches!(result.state, State::Note | State::Wrong), "{result:?}");
        }
        (facts.content, judged.iter().map(|result| (result.check, result.state)).collect())
    }

    #[test]
    fn the_process_that_uses_a_directory_is_found_without_touching_its_lock() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("data");
        let locked = DataDir::lock(&path).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let (content, states) = state(&path);
        let Content::Ours(Some(holder)) = content else { panic!("{content:?}") };
        assert_eq!(holder.pid, own);
        assert!(opened(own, &path.join(LOCK_FILE)));
        assert!(states.contains(&(DATA_DIR, State::Ok)), "{states:?}");
        drop(locked);
        let before = fs::read(path.join(LOCK_FILE)).unwrap();
        assert!(!opened(own, &path.join(LOCK_FILE)));
        assert_eq!(state(&path).0, Content::Ours(None));
        assert_eq!(fs::read(path.join(LOCK_FILE)).unwrap(), before);
    }

    #[test]
    fn a_lock_is_found_by_its_file_alone() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 08:01:42 0 EOF\n2: FLOCK  ADVISORY  WRITE 8 08:01:42 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 9 08:01:43 0 EOF\n3: FLOCK  ADVISORY  READ 10 00:2a:44 0 EOF\n";
        assert_eq!(locker(locks, "08:01", 42, None), Some(8));
        assert_eq!(locker(locks, "08:02", 42, None), None, "the same number on another disk");
        assert_eq!(locker(locks, "08:01", 43, None), None, "it only waits");
        assert_eq!(locker(locks, "00:2b", 44, Some(10)), Some(10), "btrfs shows another device here");
        assert_eq!(locker("rubbish\n1: FLOCK\n", "08:01", 42, None), None);
    }

    #[test]
    fn a_directory_is_judged_before_its_first_use_and_nothing_is_made() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("not/yet");
        assert!(matches!(state(&path).0, Content::Missing { writable: true, .. }));
        assert!(!base.path().join("not").exists());
        fs::create_dir_all(path.join("tls")).unwrap();
        assert_eq!(state(&path).0, Content::Unclaimed, "the secrets of another scheduler may be copied first");
        fs::write(path.join("thesis.tex"), "x").unwrap();
        let (content, states) = state(&path);
        assert_eq!((content, states[0]), (Content::Foreign("thesis.tex".to_owned()), (DATA_DIR, State::Wrong)));
    }

    #[test]
    fn secrets_that_others_may_read_are_named() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("data");
        drop(DataDir::lock(&path).unwrap());
        fs::create_dir(path.join("tls")).unwrap();
        for file in [CLIENT_FILE, "operator-token", "tls/ca.key", "tls/ca.pem"] {
            fs::write(path.join(file), "x").unwrap();
            fs::set_permissions(path.join(file), fs::Permissions::from_mode(0o600)).unwrap();
        }
        assert!(state(&path).1.contains(&("secrets", State::Ok)));
        for file in ["operator-token", "tls/ca.key", "tls/ca.pem"] {
            fs::set_permissions(path.join(file), fs::Permissions::from_mode(0o644)).unwrap();
        }
        let facts = read(path.clone());
        assert_eq!(facts.exposed, [path.join("operator-token"), path.join("tls/ca.key")], "a certificate is public");
        let judged = judge_data_dir(&facts);
        let secrets = judged.iter().find(|result| result.check == "secrets").unwrap();
        let remedy = secrets.remedy.as_deref().unwrap();
        assert!(secrets.state == State::Wrong && remedy.contains("operator-token") && remedy.contains("tls/ca.key"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(state(&path).1[0], (DATA_DIR, State::Wrong));
    }

    #[test]
    fn a_disk_is_judged_by_what_postgres_needs() {
        let of = |free| {
            let content = Content::Unclaimed;
            let path = PathBuf::from("/d");
            let facts = FolderFacts { path, content, owner: None, open_to_all: false, free, exposed: Vec::new() };
            disk(&facts).map(|result| result.state)
        };
        assert_eq!(of(Some(LEAST_ROOM - 1)), Some(State::Wrong));
        assert_eq!(of(Some(LEAST_ROOM)), Some(State::Note));
        assert_eq!((of(Some(SCARCE)), of(None)), (Some(State::Ok), None));
    }
}
