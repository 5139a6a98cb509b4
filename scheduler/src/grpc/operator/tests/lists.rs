//! Tests the filters and limits of lists and reports, and the counts of failures by kind.

use super::*;

/// Makes a batch of six sites: one done, three failed for two reasons, one failed without a kind,
/// one cancelled.
async fn ended(desk: &OperatorServer) {
    desk.submit("autumn", &["a.cn", "b.cn", "c.cn", "d.cn", "e.cn", "f.cn"]).await.expect("submitted");
    let (agent, session) = desk.agents(2).await[0];
    choose(desk, agent, session).await;
    desk.run(
        "update tasks t set state = v.state::task_state, reason = 'at ' || v.site, reason_kind = v.kind::reason_kind
         from (values ('b.cn', 'failed', 'timed-out'), ('c.cn', 'failed', 'timed-out'), ('d.cn', 'failed', 'tls'),
                      ('e.cn', 'failed', null), ('f.cn', 'cancelled', 'cancelled')) v (site, state, kind),
              sites s
         where s.id = t.site_id and s.name = v.site",
    )
    .await;
}

async fn listed(desk: &OperatorServer, request: v1::AssignmentsRequest) -> Result<Vec<v1::AssignmentRow>, Status> {
    let mut stream = desk.reports().assignments(request).await?.into_inner();
    let mut rows = Vec::new();
    while let Some(row) = stream.message().await? {
        rows.push(row);
    }
    Ok(rows)
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn sites_are_listed_by_state_reason_and_agent_and_cut(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    ended(&desk).await;
    let (failed, done) = (v1::TaskState::Failed.into(), v1::TaskState::Done.into());
    let timed_out = v1::ReasonKind::TimedOut.into();
    let (other, cancelled) = (v1::ReasonKind::Other.into(), v1::ReasonKind::Cancelled.into());
    let all = || v1::AssignmentsRequest { batch: "autumn".into(), ..Default::default() };
    for (request, expected, more) in [
        (all(), "abcdef", 0),
        (v1::AssignmentsRequest { states: vec![failed], ..all() }, "bcde", 0),
        (v1::AssignmentsRequest { states: vec![failed, done], limit: 2, ..all() }, "ab", 3),
        (v1::AssignmentsRequest { reasons: vec![timed_out], ..all() }, "bc", 0),
        (v1::AssignmentsRequest { reasons: vec![timed_out], limit: 2, ..all() }, "bc", 0),
        (v1::AssignmentsRequest { reasons: vec![other, cancelled], ..all() }, "ef", 0),
        (v1::AssignmentsRequest { reasons: vec![cancelled], states: vec![failed], ..all() }, "", 0),
        (v1::AssignmentsRequest { agent: "agent0".into(), ..all() }, "a", 0),
        (v1::AssignmentsRequest { agent: "agent1".into(), ..all() }, "", 0),
    ] {
        let rows = listed(&desk, request.clone()).await.expect("listed");
        let sites: String = rows.iter().map(|row| row.site.trim_end_matches(".cn")).collect();
        assert_eq!(sites, expected, "{request:?}");
        assert_eq!(rows.last().map_or(0, |row| row.more), more, "{request:?}");
    }
    let rows = listed(&desk, all()).await.expect("listed");
    let kinds: Vec<v1::ReasonKind> = rows.iter().map(v1::AssignmentRow::reason_kind).collect();
    assert_eq!(
        kinds,
        [
            v1::ReasonKind::Unspecified,
            v1::ReasonKind::TimedOut,
            v1::ReasonKind::TimedOut,
            v1::ReasonKind::Tls,
            v1::ReasonKind::Other,
            v1::ReasonKind::Cancelled,
        ]
    );
    assert!(rows.iter().all(|row| row.state_since.is_some()));
    for (request, code, said) in [
        (v1::AssignmentsRequest { agent: "nobody".into(), ..all() }, Code::NotFound, "no agent is called nobody"),
        (v1::AssignmentsRequest { states: vec![99], ..all() }, Code::InvalidArgument, "states: 99 is not a task state"),
        (
            v1::AssignmentsRequest { reasons: vec![0], ..all() },
            Code::InvalidArgument,
            "reasons: 0 is not a kind of reason",
        ),
    ] {
        let refused = listed(&desk, request).await.expect_err("refused");
        assert_eq!((refused.code(), refused.message()), (code, said));
    }
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn failures_are_told_by_kind_with_one_example_each(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    ended(&desk).await;
    let asked = desk.sites().show_batch(v1::ShowBatchRequest { batch: "autumn".into() }).await;
    let endings = asked.expect("shown").into_inner().endings;
    let told: Vec<_> =
        endings.iter().map(|one| (one.kind(), one.tasks, one.site.as_str(), one.reason.as_str())).collect();
    assert_eq!(
        told,
        [
            (v1::ReasonKind::TimedOut, 2, "b.cn", "failed: at b.cn"),
            (v1::ReasonKind::Cancelled, 1, "f.cn", "cancelled: at f.cn"),
            (v1::ReasonKind::Other, 1, "e.cn", "failed: at e.cn"),
            (v1::ReasonKind::Tls, 1, "d.cn", "failed: at d.cn"),
        ]
    );
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn agents_and_batches_are_listed_as_asked(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    for batch in ["autumn", "winter", "spring"] {
        desk.submit(batch, &["a.cn"]).await.expect("submitted");
    }
    let asked = desk.sites().list_batches(v1::ListBatchesRequest { limit: 2 }).await.expect("listed").into_inner();
    let names: Vec<&str> = asked.batches.iter().map(|batch| batch.name.as_str()).collect();
    assert_eq!((names, asked.more), (vec!["spring", "winter"], 1));

    desk.agents(3).await;
    desk.run("update agents set city = 'Harbin', carrier = 'CERNET', country = 'CN' where name <> 'agent2'").await;
    desk.run("update agents set tags = array['fast', 'big'] where name = 'agent1'").await;
    desk.run("update agents set draining_since = now() where name = 'agent0'").await;
    let text = |text: &str| vec![text.to_owned()];
    let all = v1::ListAgentsRequest::default;
    for (request, expected, more) in [
        (all(), vec!["agent0", "agent1", "agent2"], 0),
        (v1::ListAgentsRequest { limit: 1, ..all() }, vec!["agent0"], 2),
        (v1::ListAgentsRequest { cities: text("harbin"), ..all() }, vec!["agent0", "agent1"], 0),
        (v1::ListAgentsRequest { carriers: text("Telecom"), cities: text("Harbin"), ..all() }, vec![], 0),
        (v1::ListAgentsRequest { countries: text("cn"), tags: text("big"), ..all() }, vec!["agent1"], 0),
        (v1::ListAgentsRequest { services: vec![v1::ServiceState::Drained.into()], ..all() }, vec!["agent0"], 0),
    ] {
        let listed = desk.fleet().list_agents(request.clone()).await.expect("listed").into_inner();
        let names: Vec<&str> = listed.agents.iter().map(|agent| agent.name.as_str()).collect();
        assert_eq!((names, listed.more), (expected, more), "{request:?}");
    }
    let request = v1::AgentsReportRequest { agent: "agent1".into(), ..Default::default() };
    let report = desk.reports().agents(request).await.expect("reported").into_inner();
    assert_eq!((report.agents.len(), report.agents[0].agent.as_str(), report.more), (1, "agent1", 0));
    let report = desk.reports().agents(v1::AgentsReportRequest { limit: 2, ..Default::default() }).await;
    assert_eq!(report.expect("reported").into_inner().more, 1);
}
