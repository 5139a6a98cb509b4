//! Runs the real binaries with invalid command lines. Each command must print one sentence, and end
//! with the exit code for its kind of error.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use chrono::DateTime;
use landfall_lab::cluster::Binaries;
use landfall_lab::cluster::scheduler::{SchedulerNode, SchedulerOptions};
use landfall_scheduler::app::server_certificate;
use tokio::net::TcpSocket;

use crate::harness::beside;

const TABLE: &str = include_str!("../wrong_invocations.txt");
/// Time limit of a command in seconds.
const PATIENCE: &str = "20";

/// Splits a line into words. Single quotes work as in a shell.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in text.split('\'').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

/// Writes the files that the command lines name.
fn files(folder: &Path) {
    let write = |name: &str, text: &[u8]| std::fs::write(folder.join(name), text).unwrap();
    write("good.txt", b"a.example\nb.example\n");
    write("token", b"nonsense\n");
    write("empty.txt", b"# nothing\n\n");
    write("binary", b"\x7fELF\x02\x01\x01\0\0\0\0\xff\xfe\n\x80\x81\n");
    write("utf16.txt", b"\xff\xfea\0.\0b\0");
    write("wrong.txt", "no site here\n".repeat(100_000).as_bytes());
    write("hyphen.txt", b"a.example\n-bad-.org\n");
    write("columns.txt", b"a.example,b.example\n");
    write("agents.csv", b"city,carrier,name,latitude,longitude\nA,B,a,1,1\n,B,b,,\nC,D,a,,\nC,D,c,north,1\n");
    write("unknown.toml", b"\nnonsense = 1\n");
    write("range.toml", b"[lease]\ngrace = \"2m\"\n");
    write("crawl.toml", b"[crawl]\nmax_duration = \"31days\"\n");
    std::fs::create_dir(folder.join("broken")).unwrap();
    write("broken/client.toml", b"scheduler = 7\n");
    std::fs::create_dir(folder.join("authority")).unwrap();
    let authority = server_certificate::prepare(&folder.join("authority"), &[], DateTime::UNIX_EPOCH).unwrap();
    std::fs::copy(authority.ca_path, folder.join("ca.pem")).unwrap();
}

/// Starts a server that sends `answer` on every connection, whatever the client sends. Returns its
/// port.
fn answering(answer: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            if !answer.is_empty() {
                // Wait for the first bytes of the request, whose content is ignored.
                drop(stream.read(&mut [0; 1024]));
                drop(stream.write_all(answer));
            }
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_wrong_invocation_is_answered_in_one_sentence_and_with_its_code() {
    let _turn = beside().await;
    // If root runs the test, the private Postgres runs as another user, which must enter the
    // folder.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    files(folder.path());
    let binaries = Binaries::find().unwrap();
    let config = folder.path().join("landfall.toml");
    std::fs::write(&config, "contact_url = \"https://example.org/crawler\"\n").unwrap();
    let options = SchedulerOptions {
        binary: binaries.landfall.clone(),
        data_dir: folder.path().join("scheduler"),
        config,
        database_url: None,
        logs: folder.path().to_owned(),
    };
    let scheduler = SchedulerNode::start("scheduler", options).await.unwrap();
    // A socket that is bound but does not listen refuses connections, and keeps its port from others.
    let deaf = TcpSocket::new_v4().unwrap();
    deaf.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let web = answering(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let meant = [
        ("$D", folder.path().display().to_string()),
        ("$S", scheduler.address().port().to_string()),
        ("$W", web.to_string()),
        ("$N", deaf.local_addr().unwrap().port().to_string()),
        ("$T", answering(b"").to_string()),
    ];
    let program = |name: &str| {
        let binary = if name == "landfall" { &binaries.landfall } else { &binaries.agent };
        let mut command = Command::new("timeout");
        command.arg(PATIENCE).arg(binary).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        command.env("LANDFALL_DATA_DIR", scheduler.data_dir()).env("LANDFALL_AGENT_DIR", folder.path().join("agent"));
        command.stdin(Stdio::null());
        command
    };
    let list = folder.path().join("good.txt");
    let submitted = program("landfall").args(["sites", "submit", "--batch", "autumn"]).arg(list).status().unwrap();
    assert!(submitted.success());

    let mut problems = Vec::new();
    let mut asked = 0;
    for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let line = meant.iter().fold(line.to_owned(), |line, (word, meaning)| line.replace(word, meaning));
        let (call, sentence) = line.split_once(" => ").unwrap();
        let words = words(call);
        let output = program(&words[1]).args(&words[2..]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        asked += 1;
        let odd = |c: char| c == char::REPLACEMENT_CHARACTER || c.is_control() && c != '\n';
        let errors = said.lines().filter(|line| line.starts_with("error: ")).count();
        let usage = sentence.starts_with("Usage: ");
        if output.status.code().map(|code| code.to_string()).as_ref() != words.first()
            || !said.contains(sentence)
            || !(errors == 1 || usage && errors == 0)
            || said.contains("panicked")
            || said.contains(odd)
            || !output.stdout.is_empty()
        {
            problems.push(format!("{call}\n  wanted: {sentence}\n  ended {}: {}", output.status, said.trim()));
        }
    }
    assert!(problems.is_empty(), "{} of {asked}:\n{}", problems.len(), problems.join("\n"));
    assert!(asked > 100, "{asked}");
}
