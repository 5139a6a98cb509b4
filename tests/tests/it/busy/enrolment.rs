//! Tests, with the real binaries, the move of an agent to another machine and the replacement of an
//! operator's token during a crawl.

use std::path::Path;

use landfall_lab::cluster::postgres::ServerHandles;
use landfall_lab::cluster::process::until;
use landfall_lab::cluster::{Cluster, ClusterDatabase, ClusterOptions, HURRIED};
use landfall_lab::world::World;
use landfall_lab::world::scenario::SMALL;
use tokio::process::Command;

use crate::harness::{PATIENCE, await_crawler, beside, count, database, small_scenario, submit};

const SITES: usize = 6;
const DONE: &str = "select count(*) from tasks where state = 'done'";

async fn cluster(database: ClusterDatabase) -> Cluster {
    let world = World::start(small_scenario(SMALL, 2, SITES)).await.unwrap();
    let options = ClusterOptions { scheduler: HURRIED.to_owned(), capacity: 2, logs: None, database };
    Cluster::start(world, &options).await.unwrap()
}

async fn submit_all(cluster: &Cluster) {
    submit(cluster, &["--strategy", "random", "--request-interval", "300ms", "--max-pages", "8"]).await;
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_moved_to_another_machine_stops_at_the_old_one_and_nothing_is_lost() {
    let _turn = beside().await;
    let mut cluster = cluster(database()).await;
    submit_all(&cluster).await;
    let first = await_crawler(&cluster).await;
    let index = cluster.agent_names().iter().position(|name| *name == first).unwrap();

    let enrol = ["agents", "enrol", "--city", "哈尔滨", "--carrier", "教育网", "--name", &first, "--format", "json"];
    let refused = cluster.operate(&enrol).await.unwrap_err().to_string();
    assert!(refused.contains("is in use: choose another name, or move it"), "{refused}");
    let made = cluster.operate(&[&enrol[..], &["--replace"]].concat()).await.unwrap();
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    assert_eq!((&made["replaces"], &made["in_use"]), (&true.into(), &true.into()));
    let moved = cluster.folder().join("moved");
    copy_folder(&cluster.folder().join("agents").join(&first), &moved);
    let mut words = made["command"].as_str().unwrap().split_whitespace();
    let mut command = Command::new(cluster.binary().with_file_name(words.next().unwrap()));
    let output = command.args(words).arg("--dir").arg(&moved).arg("--force").output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let ended = cluster.agent(index).wait(PATIENCE).await.unwrap().unwrap();
    let said = cluster.agent(index).tail();
    assert!(ended.code() == Some(5) && said.contains("was moved to another machine"), "{ended}: {said}");
    cluster.restart_agent(index).unwrap();
    let ended = cluster.agent(index).wait(PATIENCE).await.unwrap().unwrap();
    let said = cluster.agent(index).tail();
    assert!(ended.code() == Some(5) && said.contains("moves it back"), "not by a start either: {ended}: {said}");

    let mut process = cluster.spawn_agent_in(index, &moved, "moved").unwrap();
    cluster.await_count("every site to be done", DONE, SITES, PATIENCE).await.unwrap();
    assert_eq!(count(&cluster, "select count(*) from sessions where end_cause = 'replaced'").await, 1);
    assert_eq!(count(&cluster, "select count(*) from sessions where end_cause = 'superseded'").await, 0);
    assert_eq!(count(&cluster, "select count(*) from tasks where crashes > 0").await, 0);
    let shown = cluster.operate(&["agents", "show", &first]).await.unwrap();
    assert!(shown.contains("哈尔滨, 教育网"), "{shown}");
    process.terminate();
    process.wait(PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operators_token_is_replaced_at_every_scheduler_while_agents_stay_connected() {
    let _turn = beside().await;
    let mut cluster = cluster(ClusterDatabase::Shared(2, ServerHandles::default())).await;
    let [first, second] = [0, 1].map(|number| cluster.schedulers[number].data_dir().join("operator-token"));
    let old = cluster.folder().join("old-token");
    std::fs::copy(&first, &old).unwrap();
    let client = cluster.schedulers[0].data_dir().join("client.toml");
    let several = until("the schedulers to know each other", PATIENCE, async || {
        Ok(std::fs::read_to_string(&client)?.contains("scheduler = [").then_some(()))
    });
    several.await.unwrap();
    let sessions = count(&cluster, "select count(*) from sessions").await;
    submit_all(&cluster).await;

    let said = cluster.operate(&["operator", "rotate"]).await.unwrap();
    assert!(said.contains("the old one is refused from now on") && said.contains("copy operator-token"), "{said}");
    cluster.operate(&["agents", "list"]).await.unwrap();
    assert_ne!(std::fs::read(&first).unwrap(), std::fs::read(&old).unwrap());
    let list = async |scheduler: usize, token: Option<&Path>| {
        let mut command = cluster.landfall_at(scheduler);
        if let Some(token) = token {
            command.arg("--token-file").arg(token);
        }
        let output = command.args(["agents", "list"]).output().await.unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for scheduler in [0, 1] {
        let (done, said) = list(scheduler, Some(&old)).await;
        assert!(!done && said.contains("the operator's token was replaced at"), "{said}");
        let (done, said) = list(scheduler, Some(&first)).await;
        assert!(done, "{said}");
    }
    assert!(!list(1, None).await.0, "its folder has the former one");
    std::fs::copy(&first, &second).unwrap();
    let follows =
        until("the second's client.toml to follow", PATIENCE, async || Ok(list(1, None).await.0.then_some(())));
    follows.await.unwrap();
    cluster.await_count("every site to be done", DONE, SITES, PATIENCE).await.unwrap();
    assert_eq!(count(&cluster, "select count(*) from sessions").await, sessions, "nobody had to connect anew");
}
