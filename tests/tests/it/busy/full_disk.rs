//! Tests, with the real binaries, a database on a full disk. Every client must get a message about
//! the disk, and work must continue when space is free again.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use landfall_lab::cluster::Binaries;
use landfall_lab::cluster::process::until;
use landfall_lab::cluster::scheduler::{SchedulerNode, SchedulerOptions};
use landfall_lab::cluster::small_disks::SmallDisks;

use crate::harness::{PATIENCE, beside};

/// Size of the disk in bytes, which is little more than the size of a new database cluster with its
/// WAL.
const DISK_BYTES: u64 = 400 << 20;
/// Number of sites. The data of so many sites do not fit on the disk.
const SITES: usize = 30_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_reported_and_work_continues_when_there_is_room() {
    let _turn = beside().await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let disk = folder.path().join("disk");
    let disks = match SmallDisks::mount(vec![disk.clone()], DISK_BYTES) {
        Ok(disks) => disks,
        Err(error) => {
            eprintln!("skipped: no small disk can be mounted here: {error:#}");
            return;
        }
    };
    let binaries = Binaries::find().unwrap();
    let config = folder.path().join("landfall.toml");
    std::fs::write(&config, "contact_url = \"https://example.org/crawler\"\n").unwrap();
    let list = folder.path().join("list.txt");
    let sites: Vec<String> =
        (0..SITES).map(|site| format!("a-site-with-a-name-of-some-length-{site}.example\n")).collect();
    std::fs::write(&list, sites.concat()).unwrap();
    let options = SchedulerOptions {
        binary: binaries.landfall.clone(),
        data_dir: disk.join("scheduler"),
        config,
        database_url: None,
        logs: folder.path().to_owned(),
    };
    let scheduler = SchedulerNode::start("scheduler", options).await.unwrap();
    let landfall = |arguments: &[&str]| {
        let mut command = Command::new("timeout");
        let output = command
            .arg("60")
            .arg(&binaries.landfall)
            .args(arguments)
            .arg("--data-dir")
            .arg(scheduler.data_dir())
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let submit = ["sites", "submit", list.to_str().unwrap(), "--batch", "autumn"];

    let ready = async || Ok(scheduler.readiness().await?.contains("200 OK").then_some(()));
    until("the scheduler to be ready", PATIENCE, ready).await.unwrap();
    disks.fill(0).unwrap();
    let (code, said, _) = landfall(&submit);
    let place = scheduler.data_dir().join("postgres");
    let full = format!("the database's disk is full: make room at {}", place.display());
    assert_eq!((code, said), (Some(1), format!("error: {full}; nothing was submitted\n")), "{}", scheduler.tail());
    let (code, said, _) = landfall(&["batches", "show", "autumn"]);
    assert_eq!((code, said.as_str()), (Some(1), "error: no batch is called 'autumn'\n"));
    assert!(scheduler.tail().contains(&full), "{}", scheduler.tail());

    disks.free(0).unwrap();
    let (code, said, _) = landfall(&submit);
    assert_eq!(code, Some(0), "{said}");
    let (_, _, shown) = landfall(&["batches", "show", "autumn", "--format", "json"]);
    assert!(shown.contains(&format!("\"sites\": {SITES}")) || shown.contains(&SITES.to_string()), "{shown}");
    drop(scheduler);
}
