//! Runs the operator's commands on a pseudo-terminal and on pipes, as people and scripts do.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::{ConnectOptions as _, PgPool};

use super::serving::{Serving, ask, client_file, ended, landfall, serve, serve_at, until};

/// The escape sequences that begin a repainted page: they move the cursor to the top left and clear
/// the screen.
const HOME: &str = "\u{1b}[1;1H\r\u{1b}[0J";

/// A command that runs on a pseudo-terminal of 24 rows.
struct OnTerminal {
    child: Child,
    written: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl OnTerminal {
    fn start(mut command: Command, columns: u16) -> Self {
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        let child = command.env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let (mut master, kept) = (File::from(pty.master), Arc::clone(&written));
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // After the last process has closed the terminal, reading fails.
            while let Ok(read @ 1..) = master.read(&mut bytes) {
                kept.lock().unwrap().extend_from_slice(&bytes[..read]);
            }
        });
        Self { child, written, reader: Some(reader) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// The page that was painted last.
    fn page(&self) -> String {
        self.text().rsplit(HOME).next().unwrap_or_default().to_owned()
    }

    fn interrupt(mut self) -> (ExitStatus, String) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), Signal::SIGINT).unwrap();
        self.wait()
    }

    /// Waits until the command has ended and all that it wrote was read.
    fn wait(&mut self) -> (ExitStatus, String) {
        let status = self.child.wait().unwrap();
        self.reader.take().unwrap().join().unwrap();
        (status, self.text())
    }

    /// Waits for the end of the command; returns all that it wrote.
    fn end(mut self) -> String {
        let (status, text) = self.wait();
        assert!(status.success(), "{text}");
        text
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
    }
}

/// A scheduler, and a home folder with its data directory `one`.
struct Operated {
    home: PathBuf,
    url: String,
    scheduler: Serving,
    _folder: tempfile::TempDir,
}

impl Operated {
    fn start(pool: &PgPool) -> Self {
        let url = pool.connect_options().to_url_lossy().to_string();
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_owned();
        let scheduler = serve(&home, &url, "one");
        let operated = Self { home, url, scheduler, _folder: folder };
        until("it answers", || ask(&operated.home, &["agents", "list", "--data-dir", "one"]).code == 0);
        // Without a contact URL nothing can be submitted.
        operated.run(&["contact", "set", "https://example.org/crawler"]);
        operated
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = landfall(&self.home, args);
        command.env("LANDFALL_DATA_DIR", "one").env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
        command
    }

    fn run(&self, args: &[&str]) -> String {
        let ran = ended(&mut self.command(args));
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran.out
    }

    fn submit(&self, batch: &str, sites: &str) {
        let list = self.home.join("list.txt");
        std::fs::write(&list, sites).unwrap();
        self.run(&["sites", "submit", path(&list), "--batch", batch]);
    }

    fn stop(&mut self) {
        self.scheduler.0.kill().unwrap();
        self.scheduler.0.wait().unwrap();
    }

    /// Starts the scheduler again at its former address.
    fn restart(&mut self) {
        let file = client_file(&self.home, "one");
        let address = file.split("http://").nth(1).and_then(|rest| rest.split('"').next()).unwrap().to_owned();
        self.scheduler = serve_at(&self.home, &self.url, "one", &address);
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Starts a scheduler and runs a test with it, on a thread that is allowed to block.
async fn operated(pool: PgPool, test: impl FnOnce(Operated) + Send + 'static) {
    tokio::task::spawn_blocking(move || test(Operated::start(&pool))).await.unwrap();
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn a_watch_repaints_the_terminal_and_survives_a_scheduler_that_is_away(pool: PgPool) {
    operated(pool, |mut operated| {
        operated.submit("autumn", "a.example\n");
        let watch = OnTerminal::start(operated.command(&["batches", "list", "--watch=0.2"]), 80);
        until("the batch is shown", || watch.page().contains("autumn"));
        operated.submit("winter", "a.example\n");
        until("the other batch is shown", || watch.page().contains("winter") && watch.page().contains("autumn"));

        operated.stop();
        until("it is said that the scheduler is lost", || {
            let page = watch.page();
            page.contains("lost since ") && page.contains("no scheduler answers") && page.contains("winter")
        });
        operated.restart();
        until("the scheduler is back", || !watch.page().contains("lost since ") && watch.page().contains("winter"));

        let (status, text) = watch.interrupt();
        assert_eq!(status.code(), Some(130));
        assert!(!text.contains("error"), "{text}");
        assert!(text.replace(HOME, "").lines().all(|line| console::measure_text_width(line) <= 80), "{text}");
    })
    .await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn a_watch_on_a_pipe_prints_what_changed_and_nothing_else(pool: PgPool) {
    operated(pool, |mut operated| {
        operated.submit("autumn", "a.example\n");
        let mut command = operated.command(&["batches", "list", "--watch=0.1"]);
        let mut watch = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut told = BufReader::new(watch.stderr.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.next().unwrap().starts_with("name "));
        assert!(lines.next().unwrap().starts_with("autumn "));

        operated.stop();
        let lost = told.next().unwrap();
        assert!(lost.starts_with("lost since ") && lost.ends_with("; asking again every 100ms"), "{lost}");
        operated.restart();
        let found = told.next().unwrap();
        assert!(found.starts_with("the scheduler answers again; it was lost "), "{found}");

        // An answer equal to the last printed answer is not printed, so the next block shows the
        // new batch.
        operated.submit("winter", "a.example\n");
        let block: Vec<String> = lines.by_ref().take(4).collect();
        assert_eq!(block[0], "");
        assert!(block[1].starts_with("name ") && block[2].starts_with("winter "), "{block:?}");
        assert!(!block.concat().contains('\u{1b}'), "{block:?}");

        kill(Pid::from_raw(watch.id().try_into().unwrap()), Signal::SIGINT).unwrap();
        assert_eq!(watch.wait().unwrap().code(), Some(130));
        assert_eq!((lines.next(), told.next()), (None, None));
    })
    .await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn names_go_from_one_command_to_another(pool: PgPool) {
    operated(pool, |operated| {
        operated.submit("autumn", "a.example\nb.example\n");
        assert_eq!(operated.run(&["batches", "list", "-q"]), "autumn\n");
        assert_eq!(operated.run(&["sites", "list", "--batch", "autumn", "-q"]), "a.example\nb.example\n");
        assert_eq!(operated.run(&["agents", "list", "-q"]), "");
        let token = operated.run(&["agents", "enrol", "--city", "Harbin", "--carrier", "CERNET", "-q"]);
        assert_eq!((token.len(), token.lines().count()), (65, 1), "{token}");
        let ran =
            operated.command(&["batches", "list", "-q"]).env("LANDFALL_FORMAT", "json").stdout(Stdio::piped()).output();
        assert_eq!(ran.unwrap().stdout, b"autumn\n");
    })
    .await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn colours_are_for_terminals_alone_unless_someone_asks(pool: PgPool) {
    operated(pool, |operated| {
        operated.submit("autumn", "a.example\n");
        let list = ["batches", "list"];
        let on_terminal = |args: &[&str], variable: Option<(&str, &str)>| {
            let mut command = operated.command(&[&list[..], args].concat());
            command.envs(variable);
            OnTerminal::start(command, 80).end()
        };
        let coloured = |text: &str| text.contains('\u{1b}');
        assert!(on_terminal(&[], None).contains("\u{1b}[1mname"), "the header is bold");
        assert!(!coloured(&on_terminal(&[], Some(("NO_COLOR", "1")))));
        assert!(!coloured(&on_terminal(&["--color", "never"], None)));
        assert!(!coloured(&on_terminal(&["-o", "json"], None)) && !coloured(&on_terminal(&["-o", "csv"], None)));
        assert!(!coloured(&on_terminal(&["-q", "--color", "always"], None)));

        let on_pipe = |args: &[&str]| operated.run(&[&list[..], args].concat());
        assert!(!coloured(&on_pipe(&[])));
        assert!(coloured(&on_pipe(&["--color", "always"])));
        assert!(!coloured(&on_pipe(&["--color", "always", "-o", "csv"])));
        let forced = operated.command(&list).env("CLICOLOR_FORCE", "1").stdout(Stdio::piped()).output().unwrap();
        assert!(coloured(&String::from_utf8(forced.stdout).unwrap()));

        let wrong = OnTerminal::start(operated.command(&["batches", "show", "winter"]), 80);
        until("the error is red", || wrong.text().contains("\u{1b}[31m\u{1b}[1merror:\u{1b}[0m "));
    })
    .await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn the_tab_key_completes_commands_words_and_names(pool: PgPool) {
    operated(pool, |mut operated| {
        operated.submit("autumn", "a.example\n");
        operated.submit("winter", "a.example\n");
        let completed = |operated: &Operated, words: &[&str]| {
            // These are the arguments and variables of bash's completion script.
            let index = words.len().to_string();
            let mut command = operated.command(&[&["--", "landfall"][..], words].concat());
            command.env("LANDFALL_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", index).env("_CLAP_IFS", "\n");
            command.env("_CLAP_COMPLETE_COMP_TYPE", "9").env("_CLAP_COMPLETE_SPACE", "false");
            let ran = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
            assert_eq!(String::from_utf8(ran.stderr).unwrap(), "");
            String::from_utf8(ran.stdout).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(completed(&operated, &["bat"]), ["batches"]);
        // Names come from the scheduler, unless its answer takes too long.
        until("a name is completed", || completed(&operated, &["batches", "show", "a"]) == ["autumn"]);
        until("all are offered", || completed(&operated, &["sites", "list", "--batch", ""]) == ["winter", "autumn"]);
        assert!(completed(&operated, &["agents", "list", "--state", "qu"]).contains(&"quarantined".to_owned()));
        assert!(completed(&operated, &["plan", "--strategy", "gnp-top"]).contains(&"gnp-top3".to_owned()));
        operated.stop();
        assert_eq!(completed(&operated, &["batches", "show", "a"]), [""; 0]);
    })
    .await;
}

#[test]
fn each_shell_gets_a_script() {
    let home = tempfile::tempdir().unwrap();
    for (shell, sign) in [("bash", "complete "), ("zsh", "#compdef landfall"), ("fish", "complete ")] {
        let script = ask(home.path(), &["completions", shell]).out;
        assert!(script.contains(sign) && script.contains("LANDFALL_COMPLETE"), "{shell}: {script}");
    }
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn a_flag_comes_before_the_environment_and_that_before_the_file(pool: PgPool) {
    operated(pool, |mut operated| {
        let file = operated.home.join("one/client.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text + "\n[defaults]\nformat = \"json\"\n").unwrap();
        let list = ["batches", "list"];
        let asked = |operated: &Operated, args: &[&str], variable: Option<(&str, &str)>| {
            let mut command = operated.command(&[&list[..], args].concat());
            String::from_utf8(command.envs(variable).stdout(Stdio::piped()).output().unwrap().stdout).unwrap()
        };
        let csv = Some(("LANDFALL_FORMAT", "csv"));
        assert_eq!(asked(&operated, &[], None), "[]\n");
        assert!(asked(&operated, &[], csv).starts_with("name,strategy,"));
        assert!(asked(&operated, &["-o", "table"], csv).starts_with("no batches yet"));

        operated.stop();
        operated.restart();
        until("the scheduler answers", || asked(&operated, &[], None) == "[]\n");
    })
    .await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn a_bar_is_shown_on_a_terminal_and_erased(pool: PgPool) {
    operated(pool, |operated| {
        std::fs::write(operated.home.join("list.txt"), "a.example\nb.example\n").unwrap();
        let submit = |batch| operated.command(&["sites", "submit", "list.txt", "--batch", batch]);
        let text = OnTerminal::start(submit("autumn"), 100).end();
        assert!(text.contains("/2 sites sent"), "{text}");
        let last = text.rsplit("\u{1b}[2K").next().unwrap();
        assert!(last.contains("batch autumn: 2 added") && !last.contains("sites sent"), "{text}");
        let ran = submit("winter").stderr(Stdio::piped()).output().unwrap();
        assert_eq!((ran.status.success(), ran.stderr), (true, Vec::new()));
    })
    .await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn a_table_fits_the_terminal_and_a_reader_that_leaves_is_no_error(pool: PgPool) {
    operated(pool, |operated| {
        let sites: String =
            (0..5_000).map(|number| format!("{}{number}.example\n", "a-long-name-".repeat(4))).collect();
        operated.submit("a-batch-with-a-name-of-some-length-that-fills-the-line", &sites);
        for columns in [60, 70, 120] {
            let text = OnTerminal::start(operated.command(&["batches", "list"]), columns).end();
            let widths = text.lines().map(|line| console::measure_text_width(line.trim_end()));
            assert!(widths.max().is_some_and(|width| width <= usize::from(columns)), "{columns}: {text}");
        }
        let batch = ["--batch", "a-batch-with-a-name-of-some-length-that-fills-the-line"];
        for list in [&["sites", "list", "--limit", "0"][..], &["report", "assignments", "-o", "csv"]] {
            let mut command = operated.command(&[list, &batch].concat());
            let mut list = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let mut out = BufReader::new(list.stdout.take().unwrap());
            assert!(out.read_line(&mut String::new()).unwrap() > 0);
            drop(out);
            let mut said = String::new();
            list.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            assert_eq!((list.wait().unwrap().code(), said.as_str()), (Some(0), ""));
        }
    })
    .await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn hostile_texts_control_neither_terminal_nor_spreadsheet(pool: PgPool) {
    const HOSTILE: &str = "=1+1\u{1b}[2J\u{9b}31m\r\nb";
    let database = pool.clone();
    operated(pool, move |operated| {
        operated.submit("autumn", "a.example\n");
        let failing = sqlx::query("update tasks set state = 'failed', reason = $1").bind(HOSTILE).execute(&database);
        tokio::runtime::Handle::current().block_on(failing).unwrap();
        let list = ["report", "assignments", "--batch", "autumn", "--color", "always"];
        for format in ["table", "json", "csv"] {
            let text = operated.run(&[&list[..], &["-o", format]].concat());
            let plain = console::strip_ansi_codes(&text).replace('\n', "");
            assert!(text.contains("1+1") && !plain.contains(char::is_control), "{format}: {text:?}");
            assert!(!text.contains("\u{1b}[2J") && !text.contains(",=1"), "{format}: {text:?}");
        }
        let csv = operated.run(&["sites", "list", "--batch", "autumn", "-o", "csv"]);
        assert!(csv.contains(",'=1+1 [2J 31m  b,"), "{csv}");
    })
    .await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn an_interrupted_cancel_goes_on_after_its_scheduler_was_killed(pool: PgPool) {
    const SITES: i64 = 30_000;
    let database = pool.clone();
    operated(pool, move |mut operated| {
        let one = |sql: &'static str| -> i64 {
            tokio::runtime::Handle::current().block_on(sqlx::query_scalar(sql).fetch_one(&database)).unwrap()
        };
        let list: String = (0..SITES).map(|number| format!("site{number}.example\n")).collect();
        operated.submit("autumn", &list);
        let cancel = OnTerminal::start(operated.command(&["batches", "cancel", "autumn"]), 80);
        until("the cancel has begun", || one("select count(*) from tasks where state = 'cancelled'") > 0);
        assert!(!cancel.interrupt().0.success(), "it was interrupted too late for this test");
        operated.stop();
        let open = "select count(*) from tasks where state <> 'cancelled'";
        assert!(one(open) > 0, "the scheduler was killed too late for this test");

        operated.restart();
        until("the scheduler is back", || ask(&operated.home, &["batches", "list", "--data-dir", "one"]).code == 0);
        let (first, again) = (operated.command(&["batches", "cancel", "autumn"]), ["batches", "cancel", "autumn"]);
        OnTerminal::start(first, 80).end();
        assert_eq!((one(open), one("select changed from changes")), (0, SITES), "each site is counted once");
        operated.run(&again);
        assert_eq!(one("select count(*) from events where what = 'cancelled'"), SITES);
    })
    .await;
}
