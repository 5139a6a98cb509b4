//! Tests slow, refusing and failing sites. Other sites must still be crawled, and an open circuit
//! must stay open until an operator reopens it.

use std::collections::BTreeSet;
use std::time::Instant;

use landfall_lab::cluster::Cluster;
use landfall_lab::cluster::process::until;
use landfall_lab::world::odd_sites::{OddSite, Oddity};

use crate::harness::{ENDED, PATIENCE, beside, count, small, submit_list};

/// Starts an odd site on its own address.
fn odd(cluster: &Cluster, number: usize, oddity: Oddity) -> OddSite {
    // The address follows the addresses of the scenario's sites.
    let machine = cluster.world.scenario().machines() + number;
    OddSite::start(cluster.world.wan.lane().site(machine), oddity).unwrap()
}

/// Waits until the output of `sites show` contains `said`.
async fn await_said(cluster: &Cluster, site: &str, said: &str) {
    let shown = until(said, PATIENCE, async || {
        Ok(cluster.operate(&["sites", "show", site, "--wide"]).await?.contains(said).then_some(()))
    });
    shown.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tar_pit_and_a_refusing_site_do_not_delay_the_others() {
    let _turn = beside().await;
    let mut cluster = small(1, 8, 2).await;
    let pit = odd(&cluster, 0, Oddity::TarPit);
    let away = odd(&cluster, 1, Oddity::TurnsAway(600));
    let both = format!("{}\n{}\n", pit.name(), away.name());
    submit_list(&cluster, &both, "odd", &["--request-interval", "20ms"]).await;
    // Both slots are occupied. The pages of the tar pit never end, so the tar pit occupies its slot
    // for a long time. The other slot becomes free when the refusing site asks for a pause.
    await_said(&cluster, &away.name(), "its site asked for a pause").await;
    let in_pit = until("the tar pit to be entered", PATIENCE, async || {
        Ok(pit.asked().iter().any(|asked| asked.what == "GET /").then_some(()))
    });
    in_pit.await.unwrap();
    let (before, began) = (away.asked().len(), Instant::now());
    let others = cluster.world.site_list();
    submit_list(&cluster, &others, "others", &["--request-interval", "20ms"]).await;
    cluster
        .await_count("the others to end", "select count(*) from tasks where state = 'done'", 8, PATIENCE)
        .await
        .unwrap();
    println!("8 sites beside a tar pit crawled in {:.1?} by the one slot left", began.elapsed());
    let shown = cluster.operate(&["sites", "show", &pit.name(), "--wide"]).await.unwrap();
    assert!(shown.contains("batch odd round 1: leased"), "the tar pit's crawl is under way all the while: {shown}");
    let shown = cluster.operate(&["sites", "show", &away.name(), "--wide"]).await.unwrap();
    assert!(shown.contains("batch odd round 1: located"), "its pause is not over: {shown}");
    let entered: Vec<String> =
        pit.asked().into_iter().map(|asked| asked.what).filter(|what| what.starts_with("GET /")).collect();
    assert_eq!(entered.iter().collect::<BTreeSet<_>>().len(), entered.len(), "each page once: {entered:?}");
    assert_eq!(away.asked().len(), before, "it is left alone: {:?}", away.asked());
    cluster.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_circuit_is_listed_until_a_person_reopens_the_site() {
    let _turn = beside().await;
    let mut cluster = small(1, 1, 2).await;
    // With 600 successful pages, fifty failures are less than a tenth of the requests in a minute.
    // If a larger fraction of the requests failed, the agent would pause the crawl.
    let site = odd(&cluster, 0, Oddity::Breaks(600));
    let (name, quick) = (site.name(), ["--request-interval", "1ms", "--max-pages", "2000"]);
    assert_eq!(cluster.operate(&["sites", "circuits"]).await.unwrap(), "no site has an open circuit\n");
    submit_list(&cluster, &name, "first", &quick).await;
    cluster.await_count("the breaker to open", ENDED, 1, PATIENCE).await.unwrap();
    let broken = "select count(*) from outcomes o join tasks t on t.id = o.task_id
                  where o.kind = 'blocked' and t.reason_kind = 'breaker' and o.pages = 600";
    assert_eq!(
        count(&cluster, broken).await,
        1,
        "{}",
        cluster.operate(&["sites", "show", &name, "--wide"]).await.unwrap()
    );
    let asked = site.asked().len();

    submit_list(&cluster, &name, "second", &quick).await;
    await_said(&cluster, &name, "its circuit is open because requests kept failing: `landfall sites reopen` closes it")
        .await;
    let circuits = cluster.operate(&["sites", "circuits", "--format", "json"]).await.unwrap();
    let circuit: serde_json::Value = serde_json::from_str(&circuits).unwrap();
    assert_eq!(
        (circuit[0]["site"].as_str(), circuit[0]["waiting"].as_u64()),
        (Some(name.as_str()), Some(1)),
        "{circuits}"
    );
    println!("{}", cluster.operate(&["sites", "circuits"]).await.unwrap());
    assert_eq!(site.asked().len(), asked, "nobody asks it anything");

    let refused = cluster.landfall().args(["sites", "reopen", "www.nowhere.test"]).output().await.unwrap();
    println!("{}", String::from_utf8_lossy(&refused.stderr));
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    site.mend();
    let said = cluster.operate(&["sites", "reopen", &name]).await.unwrap();
    assert_eq!(said, "1 site reopened, 1 task no longer waiting\n");
    cluster.await_count("the second crawl to end", ENDED, 2, PATIENCE).await.unwrap();
    let complete = "select count(*) from outcomes where kind = 'complete' and pages = 4";
    assert_eq!(
        count(&cluster, complete).await,
        1,
        "{}",
        cluster.operate(&["sites", "show", &name, "--wide"]).await.unwrap()
    );
    assert_eq!(cluster.operate(&["sites", "circuits"]).await.unwrap(), "no site has an open circuit\n");
    let said = cluster.operate(&["sites", "reopen", &name]).await.unwrap();
    assert_eq!(said, "nothing changed: none of them has an open circuit\n");
    cluster.stop().await.unwrap();
}
