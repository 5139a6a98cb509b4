use std::fs;
use std::path::Path;

use super::*;

fn outcome(task_id: i64, token: i64) -> OutcomeReport {
    OutcomeReport { task_id, token, pages: 7, ..OutcomeReport::default() }
}

fn open(folder: &Path) -> Outbox {
    Outbox::open(folder, 0).unwrap()
}

async fn keep(outbox: &mut Outbox, outcome: OutcomeReport) {
    let kept = outbox.writer().keep(outcome, &CancellationToken::new()).await.unwrap();
    outbox.put(kept);
}

#[tokio::test]
async fn an_outcome_survives_its_process_until_its_lease_is_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = open(folder.path());
    keep(&mut first, outcome(1, 2)).await;
    keep(&mut first, outcome(3, 1)).await;
    first.acknowledge(LeaseKey { task_id: 1, token: 1 });
    first.acknowledge(LeaseKey { task_id: 3, token: 1 });
    first.removed().await;
    drop(first);

    let mut second = open(folder.path());
    assert_eq!(second.offers().collect::<Vec<_>>(), [&outcome(1, 2)]);
    second.acknowledge(LeaseKey { task_id: 1, token: 2 });
    assert!(second.is_empty());
    second.removed().await;
    drop(second);
    assert!(open(folder.path()).is_empty());
}

#[tokio::test]
async fn an_outcome_that_cannot_be_written_is_retried_before_it_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let outcomes = folder.path().join("outbox");
    let mut outbox = open(&outcomes);
    assert_eq!(outbox.paused(), None);
    // The folder disappears while the agent runs, as when its disk is unmounted.
    let away = folder.path().join("away");
    fs::rename(&outcomes, &away).unwrap();
    let (writer, closing) = (outbox.writer(), CancellationToken::new());
    let mut keeping = std::pin::pin!(writer.keep(outcome(1, 1), &closing));
    let paused = loop {
        tokio::select! {
            biased;
            _ = &mut keeping => panic!("it was not kept anywhere"),
            () = tokio::task::yield_now() => {}
        }
        let failed = writer.failure.lock().unwrap().is_some();
        if failed {
            break outbox.paused().unwrap();
        }
    };
    assert!(paused.starts_with("outcomes cannot be written to "), "{paused}");
    fs::rename(&away, &outcomes).unwrap();
    let kept = keeping.await.unwrap();
    assert_eq!((kept, outbox.paused()), (outcome(1, 1), None));
    assert_eq!(fs::read_dir(&outcomes).unwrap().count(), 2, "the outcome, and the lock");
}

#[tokio::test]
async fn an_agent_that_closes_does_not_wait_for_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let outcomes = folder.path().join("outbox");
    let outbox = open(&outcomes);
    fs::remove_dir_all(&outcomes).unwrap();
    let closing = CancellationToken::new();
    closing.cancel();
    assert_eq!(outbox.writer().keep(outcome(1, 1), &closing).await, None);
}

#[test]
fn two_agents_do_not_share_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path());
    let refused = Outbox::open(folder.path(), 0).unwrap_err().to_string();
    assert!(refused.starts_with("another process uses ") && refused.contains("set outbox.folder"), "{refused}");
    drop(first);
    open(folder.path());
}

#[test]
fn an_invalid_outcome_is_set_aside_and_an_unfinished_one_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("1-1.outcome"), [0xff; 9]).unwrap();
    fs::write(path("2-2.outcome"), prost::Message::encode_to_vec(&outcome(5, 5))).unwrap();
    fs::write(path("3-3.new"), "half").unwrap();
    fs::write(path("4-4.outcome"), prost::Message::encode_to_vec(&outcome(4, 4))).unwrap();
    let outbox = open(folder.path());
    assert_eq!(outbox.keys().collect::<Vec<_>>(), [LeaseKey { task_id: 4, token: 4 }]);
    assert!(path("1-1.unreadable").exists() && path("2-2.unreadable").exists() && !path("3-3.new").exists());
}

#[test]
fn a_full_disk_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let paused = Outbox::open(folder.path(), u64::MAX).unwrap().paused().unwrap();
    assert!(paused.contains("disk full: ") && paused.contains(" MiB free, crawling resumes at "), "{paused}");
}
