//! Tests an agent whose link is cut, with real packets. The test is skipped without root,
//! `/dev/net/tun` or iproute2.

use std::time::Instant;

use landfall_lab::cluster::process::until;
use landfall_lab::world::Grade;
use landfall_lab::world::scenario::SMALL;
use landfall_lab::world::tun::{self, CutDirection};

use crate::harness::{PATIENCE, beside, cluster_on, small_scenario};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_with_a_cut_link_loses_its_session_and_returns_after_healing() {
    let _turn = beside().await;
    if let Some(reason) = tun::missing() {
        eprintln!("skipped: {reason}");
        return;
    }
    let mut cluster = cluster_on(Grade::Tun, small_scenario(SMALL, 3, 3), 8, "").await;
    let pool = cluster.pool.clone();
    let name = cluster.agent_names()[1].clone();
    let active = async || -> anyhow::Result<i64> {
        let query = "select count(*) from sessions s join agents a on a.id = s.agent_id where s.state = 'active' and a.name = $1";
        Ok(sqlx::query_scalar(query).bind(&name).fetch_one(&pool).await?)
    };
    for cut in [CutDirection::Both, CutDirection::Towards, CutDirection::From] {
        let cuts = cluster.world.network().unwrap().cuts().clone();
        let began = Instant::now();
        cuts.cut(1, cut);
        until("the session to be lost", PATIENCE, async || Ok((active().await? == 0).then_some(()))).await.unwrap();
        let lost = began.elapsed();
        cuts.heal(1);
        until("the agent to come back", PATIENCE, async || Ok((active().await? == 1).then_some(()))).await.unwrap();
        println!("{cut:?}: lost after {lost:.1?}, back after {:.1?}", began.elapsed().saturating_sub(lost));
    }
    cluster.await_connected(3).await.unwrap();
    cluster.stop().await.unwrap();
}
