//! Runs the commands of `docs/tutorial.md` in order, as a reader would, and compares their output
//! with the output in the tutorial.

use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use landfall_lab::cluster::Binaries;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::harness::blocking_beside;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/tutorial.md");
/// The address in the tutorial. The test replaces it with another loopback address. `ANY_PORT` is
/// not replaced, because port 0 never collides.
const LOOPBACK: &str = "127.0.0.1";
const ANY_PORT: &str = "127.0.0.1:0";
/// Time limit of all commands in seconds.
const LIMIT: &str = "600";

/// Commands, and their output in the tutorial; `None` if the tutorial shows no output.
struct Block {
    commands: String,
    shown: Option<String>,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut rest = page;
    while let Some((_, fenced)) = rest.split_once("```") {
        let (text, after) = fenced.split_once("```").expect("a fence is not closed");
        match text.split_once('\n').expect("a fence is empty") {
            ("sh", commands) => blocks.push(Block { commands: commands.to_owned(), shown: None }),
            ("text", shown) => {
                let before = blocks.last_mut().filter(|block| block.shown.is_none()).expect("output without commands");
                before.shown = Some(shown.to_owned());
            }
            (other, _) => panic!("neither commands nor output: {other}"),
        }
        rest = after;
    }
    blocks
}

/// Whether the printed lines match the lines in the tutorial. A line `…` matches any number of
/// lines, and `…` within a line matches any text. The widths of columns may differ.
fn matches(shown: &[&str], printed: &[&str]) -> bool {
    match (shown.split_first(), printed.split_first()) {
        (None, None) => true,
        (Some((&"…", shown)), _) => (0..=printed.len()).any(|skipped| matches(shown, &printed[skipped..])),
        (Some((line, shown)), Some((found, printed))) => line_matches(line, found) && matches(shown, printed),
        _ => false,
    }
}

fn line_matches(shown: &str, printed: &str) -> bool {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let (shown, printed) = (words(shown), words(printed));
    let mut parts = shown.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = printed.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

/// The shell. Dropping it ends all processes that it started.
struct Shell(Child);

impl Drop for Shell {
    fn drop(&mut self) {
        let group = i32::try_from(self.0.id()).map(Pid::from_raw);
        // The process group does not exist if the commands stopped all their processes.
        group.map(|group| killpg(group, Signal::SIGTERM).ok()).unwrap();
        self.0.wait().unwrap();
    }
}

/// A script that runs the commands of all blocks in one shell until a command fails. The output of
/// each block is written to a file.
fn script(blocks: &[Block], folder: &Path) -> String {
    let mut script = "set -e\n".to_owned();
    for (number, block) in blocks.iter().enumerate() {
        let file = folder.join(format!("{number}.sh"));
        fs::write(&file, &block.commands).unwrap();
        let path = file.display();
        writeln!(script, "source {path} > {path}.out 2>&1").unwrap();
    }
    script
}

#[test]
fn the_commands_of_the_tutorial_print_what_the_page_shows() {
    let _turn = blocking_beside();
    let page = fs::read_to_string(PAGE).unwrap();
    // The loopback address depends on the process id, so that the ports of the tutorial are free.
    let [.., high, low] = std::process::id().to_be_bytes();
    let address = format!("127.77.{high}.{}", low.clamp(1, 254));
    let page = page.replace(LOOPBACK, &address).replace(&format!("{address}:0"), ANY_PORT);
    let blocks = blocks(&page);
    assert!(blocks.len() > 10 && blocks.iter().filter(|block| block.shown.is_some()).count() > 8);

    let folder = tempfile::tempdir().unwrap();
    // If root runs the test, Postgres runs as another user, which must enter the folder.
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let programs = Binaries::find().unwrap().landfall;
    let path = format!("{}:{}", programs.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("timeout");
    command.args([LIMIT, "bash", "-c", &script(&blocks, folder.path())]).current_dir(folder.path());
    command.env_clear().env("PATH", path).env("HOME", folder.path());
    let errors = File::create(folder.path().join("shell")).unwrap();
    command.stdin(Stdio::null()).stdout(errors.try_clone().unwrap()).stderr(errors).process_group(0);
    let mut shell = Shell(command.spawn().unwrap());
    let ended = shell.0.wait().unwrap();

    for (number, block) in blocks.iter().enumerate() {
        let printed = fs::read_to_string(folder.path().join(format!("{number}.sh.out"))).unwrap_or_default();
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let (shown, found) = (lines(block.shown.as_deref().unwrap_or_default()), lines(&printed));
        let texts = |lines: &[String]| lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n");
        let same = matches(
            &shown.iter().map(String::as_str).collect::<Vec<_>>(),
            &found.iter().map(String::as_str).collect::<Vec<_>>(),
        );
        let is_expected = same || block.shown.is_none();
        assert!(is_expected, "{}\nprinted\n{}\nand not\n{}", block.commands, texts(&found), texts(&shown));
    }
    assert!(ended.success(), "{ended}: {}", fs::read_to_string(folder.path().join("shell")).unwrap());
}

#[test]
fn output_that_differs_from_the_shown_is_found() {
    let shown = ["a  b …", "…", "end …, 3 pages"];
    assert!(matches(&shown, &["a b 1", "end x, 3 pages"]));
    assert!(matches(&shown, &["a   b 2 c", "x", "y", "end 4 s, 3 pages"]));
    for printed in [
        &["a b 1", "end x, 4 pages"][..],
        &["a c 1", "end x, 3 pages"],
        &["a b 1"],
        &["a b 1", "end , 3 pages", "more"],
    ] {
        assert!(!matches(&shown, printed), "{printed:?}");
    }
}
