//! Runs the Python example program against a real scheduler and real agents.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use landfall_lab::cluster::Cluster;
use landfall_lab::world::scenario::SMALL;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::harness::{PATIENCE, beside, cluster, small_scenario};

const SITES: usize = 4;
/// The Python interpreter for which Debian's gRPC packages are installed.
const PYTHON: &str = "/usr/bin/python3";

/// The exit code and output of the example program.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

async fn installed() -> bool {
    let needed = format!(
        "{PYTHON} -c 'import grpc, tomllib' && command -v protoc grpc_python_plugin && \
         test -e /usr/include/google/protobuf/duration.proto"
    );
    let found = Command::new("sh").args(["-c", &needed]).output().await.unwrap().status.success();
    if !found {
        eprintln!("skipped: Python's gRPC is not installed; ops/setup.sh installs it");
    }
    found
}

/// A cluster with short crawls.
async fn hasty() -> Cluster {
    let scenario = small_scenario(SMALL, 2, SITES);
    cluster(scenario, 8, "[crawl]\nrequest_interval = '100ms'\n").await
}

fn client(cluster: &Cluster) -> PathBuf {
    cluster.schedulers[0].data_dir().join("client.toml")
}

fn example(client: &Path, words: &[&str]) -> Command {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/python/crawl.py");
    let mut command = Command::new(PYTHON);
    command.arg(program).arg("--client").arg(client).args(words).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

async fn run(client: &Path, words: &[&str]) -> Ran {
    let output = tokio::time::timeout(PATIENCE, example(client, words).output()).await.unwrap().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Compares a report with the contents of the database.
async fn assert_reported(cluster: &Cluster, report: &str) {
    let mut rows: Vec<Vec<&str>> = report.lines().map(|row| row.split(',').collect()).collect();
    let header = "site,state,agent,predicted_ms,crawled_ms,outcome,pages,bytes,reason";
    assert_eq!(rows.remove(0).join(","), header);
    rows.sort_unstable();
    let mut expected = Vec::new();
    for task in cluster.batch_record("autumn").await.unwrap().tasks {
        let [pages, bytes] = [task.pages.into(), task.bytes].map(|number: i64| number.to_string());
        let (agent, outcome) = (task.agent.unwrap(), task.kind.unwrap());
        expected.push([task.site, task.state, agent, outcome, pages, bytes]);
    }
    expected.sort_unstable();
    let shown: Vec<_> = rows.iter().map(|row| [0, 1, 2, 5, 6, 7].map(|column| row[column].to_owned())).collect();
    assert_eq!(shown, expected);
    assert_eq!(shown.len(), SITES);
    assert!(rows.iter().all(|row| row[4].parse::<f64>().is_ok_and(|time| time > 0.0)), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_example_submits_watches_and_reads_the_report_though_the_scheduler_restarts() {
    if !installed().await {
        return;
    }
    let _turn = beside().await;
    let mut cluster = hasty().await;
    let (client, list) = (client(&cluster), cluster.write_site_list().unwrap());
    let words = ["autumn", list.to_str().unwrap(), "--strategy", "random", "--patience", "60"];
    let mut running = example(&client, &words).spawn().unwrap();
    let mut said = BufReader::new(running.stderr.take().unwrap()).lines();
    let next = async |lines: &mut tokio::io::Lines<_>| {
        tokio::time::timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap()
    };
    assert_eq!(next(&mut said).await.as_deref(), Some("batch autumn: 4 sites added, 4 in all"));
    assert!(next(&mut said).await.is_some_and(|line| line.starts_with("batch autumn: ")));
    // The scheduler is restarted while the program watches the batch.
    cluster.schedulers[0].process().kill().await.unwrap();
    cluster.schedulers[0].restart().unwrap();
    let mut last = String::new();
    while let Some(line) = next(&mut said).await {
        last = line;
    }
    let output = tokio::time::timeout(PATIENCE, running.wait_with_output()).await.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(0), "{last}");
    assert!(last.starts_with("batch autumn: ") && last.contains("4 complete"), "{last}");
    let report = String::from_utf8(output.stdout).unwrap();
    assert_reported(&cluster, &report).await;

    // This run finds the existing batch by the first letters of its name.
    let again = run(&client, &["autu"]).await;
    assert_eq!((again.code, &again.out), (Some(0), &report), "{}", again.err);
    cluster.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_example_says_what_is_wrong() {
    if !installed().await {
        return;
    }
    let _turn = beside().await;
    let mut cluster = hasty().await;
    let (folder, client) = (cluster.folder().to_owned(), client(&cluster));
    let file = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).unwrap();
        folder.join(name)
    };
    let url = format!("http://{}", cluster.schedulers[0].address());
    let wrong = file("wrong.toml", &format!("scheduler = \"{url}\"\ntoken = \"guessed\"\n"));
    let other = file("other.toml", "listen = \"127.0.0.1:7171\"\n");
    let rubbish = file("rubbish.txt", "# autumn\nnot a host\n");
    let no_name = file("no-name.txt", "closed.invalid\n");
    let [rubbish, no_name] = [&rubbish, &no_name].map(|path| path.to_str().unwrap());
    for (client, words, code, sentence) in [
        (
            &wrong,
            &["winter"][..],
            1,
            format!("the scheduler at {url} does not accept this token: the operator token is"),
        ),
        (&client, &["winter"], 1, "no batch is called 'winter'".to_owned()),
        (&client, &["autumn", rubbish], 2, "'not a host'".to_owned()),
        (&client, &["autumn", "missing.txt"], 2, "missing.txt: No such file or directory".to_owned()),
        (&other, &["winter"], 2, format!("{}: not a scheduler's client.toml: 'scheduler'", other.display())),
        (&folder.join("none.toml"), &["winter"], 2, "none.toml: No such file or directory".to_owned()),
        (&client, &["autumn", no_name, "--strategy", "random"], 3, "1 failed".to_owned()),
    ] {
        let ran = run(client, words).await;
        assert_eq!(ran.code, Some(code), "{words:?}: {ran:?}");
        assert!(ran.err.contains(&sentence) && !ran.err.contains("Traceback"), "{words:?}: {}", ran.err);
        assert_eq!(ran.out.is_empty(), code != 3, "{ran:?}");
    }
    cluster.schedulers[0].process().kill().await.unwrap();
    let ran = run(&client, &["autumn", "--patience", "0"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains(&format!("error: the scheduler at {url} does not answer: ")), "{}", ran.err);
}
