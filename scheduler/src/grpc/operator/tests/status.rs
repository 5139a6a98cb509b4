//! Tests the state of the whole system, as an operator sees it.

use super::*;
use landfall_proto::v1::status_service_client::StatusServiceClient;

impl OperatorServer {
    async fn status(&self, batches: u32) -> Result<v1::ShowStatusResponse, Status> {
        let mut client = StatusServiceClient::with_interceptor(self.channel.clone(), self.operator());
        Ok(client.show_status(v1::ShowStatusRequest { batches }).await?.into_inner())
    }
}

fn kinds(status: &v1::ShowStatusResponse) -> Vec<v1::AttentionKind> {
    status.attention.iter().map(v1::Attention::kind).collect()
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn the_status_counts_agents_and_batches_and_names_what_needs_attention(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    let status = desk.status(0).await.expect("status");
    assert_eq!(kinds(&status), [v1::AttentionKind::NoAgent]);
    assert_eq!(status.answering_url, "http://127.0.0.1:7171");
    assert!(status.database.is_some_and(|database| database.size_bytes > 1_000_000));

    desk.submit("autumn", &["a.cn", "b.cn"]).await.expect("submitted");
    desk.submit("winter", &["a.cn"]).await.expect("submitted");
    let agents = desk.agents(3).await;
    desk.run("update agents set version = '0.0.1' where name = 'agent0'").await;
    desk.run("update sessions set paused = 'disk full' where agent_id = (select id from agents where name = 'agent1')")
        .await;
    desk.run("update sessions set clock_ahead_s = 90, disk_free = 1, disk_size = 100 where agent_id = (select id from agents where name = 'agent2')").await;
    // A batch has no estimate yet if computing it takes too long.
    let status = loop {
        let status = desk.status(1).await.expect("status");
        if status.batches.iter().all(|batch| batch.estimate.is_some()) {
            break status;
        }
    };
    let fleet = status.fleet.clone().expect("a fleet");
    let states: Vec<_> = fleet.agents.iter().map(|count| (count.service(), count.agents)).collect();
    assert_eq!(states, [(v1::ServiceState::Ready, 2), (v1::ServiceState::Paused, 1)]);
    assert_eq!(agents.len(), 3);
    let batches: Vec<_> = status.batches.iter().map(|batch| (batch.name.as_str(), batch.sites, batch.ended)).collect();
    assert_eq!((batches, status.more_batches), (vec![("winter", 1, 0)], 1));
    let found = kinds(&status);
    for kind in [v1::AttentionKind::AgentsPaused, v1::AttentionKind::AgentClocks, v1::AttentionKind::AgentDisks] {
        assert!(found.contains(&kind), "{kind:?} in {:?}", status.attention);
    }

    desk.run("update tasks set state = 'cancelled', reason_kind = 'cancelled'").await;
    let status = desk.status(0).await.expect("status");
    assert_eq!((status.batches.len(), status.more_batches), (0, 0));
    let refused = desk.status(1_001).await.expect_err("too many");
    assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, "batches: must be at most 1000"));
}
