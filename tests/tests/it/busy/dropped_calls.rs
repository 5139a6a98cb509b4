//! Drops calls of every kind at random moments. `lab dropped` does the same for minutes.

use std::time::Duration;

use landfall_lab::dropped;

use crate::harness::{beside, small};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_was_acknowledged_is_stored_whatever_happens_to_other_calls() {
    let _turn = beside().await;
    let cluster = small(2, 4, 2).await;
    let dropped = dropped::run(&cluster, Duration::from_secs(5)).await.unwrap();
    assert!(dropped.answered < dropped.calls && dropped.acknowledged > 0, "{dropped:?}");
    cluster.stop().await.unwrap();
}
