//! A small test of the whole system: tasks wait, agents are chosen, choices are explained, one
//! agent is killed, and another agent is drained.

use landfall_lab::cluster::Cluster;
use landfall_lab::cluster::process::until;
use landfall_lab::evidence::batch_record::BatchRecord;
use landfall_lab::evidence::check::RunKind;

use crate::harness::{ENDED, PATIENCE, await_crawler, beside, small, submit, submit_file, violations};

const CAPACITY: u32 = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_waits_for_the_agents_it_asks_for_and_its_choices_are_explained() {
    let _turn = beside().await;
    let mut cluster = small(3, 6, CAPACITY).await;
    let list = cluster.write_site_list().unwrap();
    let names = std::fs::read_to_string(&list).unwrap();
    let site = names.lines().next().unwrap().to_owned();
    std::fs::write(&list, names.replacen(&site, &format!("{site},45.75,126.5"), 1)).unwrap();
    submit_file(&cluster, &list, &["--request-interval", "100ms", "--tag", "chosen"]).await;
    cluster
        .await_count(
            "sites that nobody may crawl",
            "select count(*) from task_holds where cause = 'unmet'",
            6,
            PATIENCE,
        )
        .await
        .unwrap();
    let explained = cluster.operate(&["explain", &site, "--wide"]).await.unwrap();
    assert!(explained.contains("position: 45.75, 126.5 (list)"), "{explained}");
    assert!(explained.contains("no agent meets the constraints: 3 of 3 lack the tag 'chosen'"), "{explained}");
    let shown = cluster.operate(&["batches", "show", "autumn", "--wide"]).await.unwrap();
    assert!(shown.contains("agents     tagged chosen"), "{shown}");

    let agent = cluster.agent_names().remove(1);
    cluster.operate(&["agents", "tag", &agent, "--add", "chosen"]).await.unwrap();
    cluster.operate(&["sites", "watch", "--batch", "autumn"]).await.unwrap();
    let record = cluster.batch_record("autumn").await.unwrap();
    assert!(record.tasks.iter().all(|task| task.agent.as_ref() == Some(&agent)), "{:?}", record.tasks);
    let explained = cluster.operate(&["explain", &site, "--batch", "autumn", "--wide"]).await.unwrap();
    for said in ["was chosen because ", "excluded: ", ": each lacks the tag 'chosen'"] {
        assert!(explained.contains(said), "{said}: {explained}");
    }
    let json = cluster.operate(&["explain", &site, "--format", "json"]).await.unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let choice = &json["tasks"][0]["choices"][0];
    assert_eq!(choice["agent"], agent.as_str());
    assert!(
        choice["candidates"][0]["load_level"].is_i64() && choice["candidates"][0]["measured_ms"].is_f64(),
        "{choice}"
    );
    let unknown = cluster.operate(&["explain", "nowhere.test"]).await.unwrap_err().to_string();
    assert!(unknown.contains("no site is known as 'nowhere.test'"), "{unknown}");
    cluster.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_agent_is_a_fleet() {
    let _turn = beside().await;
    let cluster = small(1, 5, CAPACITY).await;
    submit(&cluster, &["--request-interval", "100ms", "--watch"]).await;
    let record = cluster.batch_record("autumn").await.unwrap();
    assert_eq!(violations(&cluster, &record, RunKind::Calm), Vec::<String>::new());
    assert_eq!(record.landmarks, Vec::<String>::new());
    cluster.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sites_of_a_killed_agent_are_finished_by_others_exactly_once() {
    let _turn = beside().await;
    let mut cluster = small(3, 9, CAPACITY).await;
    // The crawl is slow, so that it has not ended when the agent is killed.
    submit(&cluster, &["--request-interval", "500ms", "--strategy", "random"]).await;
    let victim = await_crawler(&cluster).await;
    let index = cluster.agent_names().iter().position(|name| *name == victim).unwrap();
    cluster.kill_agent(index).await.unwrap();

    cluster.await_count("every task to end", ENDED, 9, PATIENCE).await.unwrap();
    let record = cluster.batch_record("autumn").await.unwrap();
    assert_eq!(violations(&cluster, &record, RunKind::Losses), Vec::<String>::new());
    let moved: Vec<_> = record.tasks.iter().filter(|task| task.leases > 1).collect();
    assert!(!moved.is_empty(), "the killed agent held a lease: {:?}", record.tasks);
    assert!(moved.iter().all(|task| task.crawler.as_ref() != Some(&victim)), "{moved:?}");
    cluster.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_drained_in_mid_batch_finishes_what_it_began_and_gets_nothing_more() {
    let _turn = beside().await;
    let mut cluster = small(3, 18, CAPACITY).await;
    submit(&cluster, &["--request-interval", "300ms", "--strategy", "random"]).await;
    let drained = await_crawler(&cluster).await;
    let said = cluster.operate(&["agents", "drain", &drained, "--wait"]).await.unwrap();
    assert!(said.contains(&format!("{drained} is drained")) || said.contains("holds no lease"), "{said}");
    // The query compares the numbers of events, which are in the order in which the transactions
    // locked the agent's row. `granted_at` and `draining_since` are the times at which the
    // transactions began, and may be in a different order.
    let after = sqlx::query_scalar::<_, i64>(
        "select count(*) from events g join events d on d.agent_id = g.agent_id join agents a on a.id = g.agent_id
         where a.name = $1 and g.noun = 'lease' and g.what = 'granted' and d.noun = 'agent' and d.what = 'draining'
           and g.id > d.id",
    );
    let listed = cluster.operate(&["agents", "list"]).await.unwrap();
    let line = listed.lines().find(|line| line.contains(&drained)).unwrap();
    assert!(line.contains("drained"), "{listed}");

    cluster.await_count("every task to end", ENDED, 18, PATIENCE).await.unwrap();
    let record = cluster.batch_record("autumn").await.unwrap();
    assert_eq!(violations(&cluster, &record, RunKind::Losses), Vec::<String>::new());
    assert!(record.tasks.iter().all(|task| task.leases == 1), "nothing was cut or crawled twice: {:?}", record.tasks);
    assert!(record.tasks.iter().any(|task| task.crawler.as_ref() == Some(&drained)), "it finished what it had");
    assert_eq!(after.bind(&drained).fetch_one(&cluster.pool).await.unwrap(), 0, "nothing was granted to it any more");

    what_is_said_of_it(&cluster, &drained, &record).await;
    let said = cluster.operate(&["agents", "resume", &drained]).await.unwrap();
    assert_eq!(said, format!("{drained} takes work again\n"));
    let said = cluster.operate(&["agents", "remove", &drained]).await.unwrap();
    assert!(said.starts_with(&format!("{drained} is removed")), "{said}");
    let log = cluster.logs().join(format!("{drained}.log"));
    let told = until("the agent to be told that it was removed", PATIENCE, async || {
        let log = std::fs::read_to_string(&log)?;
        Ok(log.contains("was removed by the operator").then_some(()))
    });
    told.await.unwrap();
    let active = "select count(*) from sessions where state = 'active'";
    assert_eq!(sqlx::query_scalar::<_, i64>(active).fetch_one(&cluster.pool).await.unwrap(), 2, "it did not come back");
    cluster.stop().await.unwrap();
}

/// Asserts that the operator's commands show the drain, and every state of a site.
async fn what_is_said_of_it(cluster: &Cluster, drained: &str, record: &BatchRecord) {
    let shown = cluster.operate(&["agents", "show", drained]).await.unwrap();
    assert!(shown.contains("drained") && shown.contains("session    active, incarnation 1"), "{shown}");
    let of_agent = cluster.operate(&["events", "--agent", drained, "--newest", "1000", "--wide"]).await.unwrap();
    assert!(of_agent.contains(&format!(" agent {drained} draining")), "{of_agent}");
    let done = record.tasks.iter().find(|task| task.crawler.as_deref() == Some(drained)).unwrap();
    let of_site = cluster.operate(&["events", "--site", &done.site, "--format", "json"]).await.unwrap();
    let path: Vec<String> = of_site
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter(|event| event["noun"] == "task")
        .map(|event| event["what"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(path, ["located", "assigned", "leased", "done"], "{of_site}");
    let batch = cluster.operate(&["batches", "show", "autumn", "--wide"]).await.unwrap();
    assert!(batch.contains("18 complete"), "{batch}");
    println!("{shown}\n{of_site}\n{batch}\n{}", cluster.operate(&["batches", "list"]).await.unwrap());
}
