//! Tests the filters and limits of lists and reports, and the counts of failures by kind.

use super::*;

/// Makes a batch of six sites: one is done, three failed for reasons of two kinds, one failed
/// without a stored kind of reason, and one was cancelled.
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
    let asked = desk
        .sites()
        .list_batches(v1::ListBatchesRequest { limit: 2, ..Default::default() })
        .await
        .expect("listed")
        .into_inner();
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

fn at(seconds: i64) -> Option<prost_types::Timestamp> {
    Some(prost_types::Timestamp { seconds, nanos: 0 })
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn sites_and_events_are_listed_by_place_and_time(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    ended(&desk).await;
    desk.run("update agents set city = 'Harbin', carrier = 'CERNET', country = 'CN' where name = 'agent0'").await;
    desk.run("update agents set city = 'Tokyo', carrier = 'IIJ', country = 'JP' where name = 'agent1'").await;
    desk.run("update tasks t set state_since = to_timestamp(1000 + ascii(s.name)) from sites s where s.id = t.site_id")
        .await;
    let text = |text: &str| vec![text.to_owned()];
    let all = || v1::AssignmentsRequest { batch: "autumn".into(), ..Default::default() };
    let second = |letter: u8| at(1000 + i64::from(letter));
    for (request, expected, more) in [
        (v1::AssignmentsRequest { cities: text("harbin"), ..all() }, "a", 0),
        (v1::AssignmentsRequest { cities: vec!["Tokyo".into(), "Harbin".into()], ..all() }, "a", 0),
        (v1::AssignmentsRequest { cities: text("Tokyo"), ..all() }, "", 0),
        (v1::AssignmentsRequest { carriers: text("CERNET"), countries: text("cn"), ..all() }, "a", 0),
        (v1::AssignmentsRequest { carriers: text("CERNET"), countries: text("JP"), ..all() }, "", 0),
        (v1::AssignmentsRequest { agent: "agent1".into(), cities: text("Harbin"), ..all() }, "", 0),
        (v1::AssignmentsRequest { cities: text("nowhere"), ..all() }, "", 0),
        (v1::AssignmentsRequest { since: second(b'c'), ..all() }, "cdef", 0),
        (v1::AssignmentsRequest { until: second(b'c'), ..all() }, "ab", 0),
        (v1::AssignmentsRequest { since: second(b'b'), until: second(b'e'), ..all() }, "bcd", 0),
        (v1::AssignmentsRequest { since: second(b'b'), until: second(b'f'), limit: 1, ..all() }, "b", 3),
    ] {
        let rows = listed(&desk, request.clone()).await.expect("listed");
        let sites: String = rows.iter().map(|row| row.site.trim_end_matches(".cn")).collect();
        assert_eq!(sites, expected, "{request:?}");
        assert_eq!(rows.last().map_or(0, |row| row.more), more, "{request:?}");
    }
    let request = v1::AssignmentsRequest { since: at(2), until: at(1), ..all() };
    let refused = listed(&desk, request).await.expect_err("refused");
    assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, "until: must be later than since"));

    desk.run("update events set at = to_timestamp(id)").await;
    let heard = async |request: v1::EventsRequest| {
        let mut stream = desk.events().events(request).await?.into_inner();
        let mut ids = Vec::new();
        while let Some(event) = stream.message().await? {
            ids.push((event.id, event.agent));
        }
        Ok::<_, Status>(ids)
    };
    let all: i64 = sqlx::query_scalar("select count(*) from events").fetch_one(&desk.pool).await.expect("a count");
    // An event is sent when all earlier transactions have ended, including those of other tests.
    let everything = loop {
        let heard = heard(v1::EventsRequest { since: at(0), ..Default::default() }).await.expect("read");
        if i64::try_from(heard.len()) == Ok(all) {
            break heard;
        }
    };
    let last = everything.last().expect("an event").0;
    assert!(everything.len() > 8, "{everything:?}");
    let ids = |events: &[(i64, String)]| events.iter().map(|(id, _)| *id).collect::<Vec<_>>();
    let before: Vec<i64> = ids(&everything).into_iter().filter(|id| *id < last).collect();
    let request = v1::EventsRequest { since: at(0), until: at(last), ..Default::default() };
    assert_eq!(ids(&heard(request).await.expect("read")), before);
    let request = v1::EventsRequest { until: at(last), newest: 3, ..Default::default() };
    assert_eq!(ids(&heard(request).await.expect("read")), before[before.len() - 3..], "the newest before that time");
    let of_agent: Vec<i64> = everything.iter().filter(|(_, agent)| agent == "agent0").map(|(id, _)| *id).collect();
    assert!(!of_agent.is_empty() && of_agent.len() < everything.len());
    let request = v1::EventsRequest { since: at(0), countries: text("CN"), ..Default::default() };
    assert_eq!(ids(&heard(request).await.expect("read")), of_agent);
    let request =
        v1::EventsRequest { since: at(0), agent: "agent1".into(), countries: text("CN"), ..Default::default() };
    assert_eq!(ids(&heard(request).await.expect("read")), Vec::<i64>::new());
    let refused = heard(v1::EventsRequest { until: at(1), follow: true, ..Default::default() }).await;
    assert_eq!(refused.expect_err("refused").message(), "until: cannot be combined with follow");
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn batches_circuits_tokens_and_reports_are_listed_by_what_is_asked(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    for batch in ["autumn", "winter", "spring"] {
        desk.submit(batch, &["a.cn", "b.cn"]).await.expect("submitted");
    }
    desk.submit("spring", &["c.cn"]).await.expect("submitted");
    desk.agents(2).await;
    desk.run("update agents set city = 'Harbin', country = 'CN' where name = 'agent0'").await;
    desk.run("update batches set created_at = to_timestamp(id)").await;
    desk.run("update tasks set state = 'cancelled' where batch_id = 2 or batch_id = 3 and id % 2 = 0").await;
    let batches = async |request: v1::ListBatchesRequest| {
        let listed = desk.sites().list_batches(request).await.expect("listed").into_inner();
        (listed.batches.into_iter().map(|batch| batch.name).collect::<Vec<_>>().join(" "), listed.more)
    };
    let all = v1::ListBatchesRequest::default;
    let (open, ended) = (v1::BatchState::Open.into(), v1::BatchState::Ended.into());
    for (request, names, more) in [
        (all(), "spring winter autumn", 0),
        (v1::ListBatchesRequest { state: open, ..all() }, "spring autumn", 0),
        (v1::ListBatchesRequest { state: open, limit: 1, ..all() }, "spring", 1),
        (v1::ListBatchesRequest { state: ended, limit: 1, ..all() }, "winter", 0),
        (v1::ListBatchesRequest { since: at(2), ..all() }, "spring winter", 0),
        (v1::ListBatchesRequest { until: at(3), limit: 1, ..all() }, "winter", 1),
        (v1::ListBatchesRequest { since: at(3), state: ended, ..all() }, "", 0),
    ] {
        assert_eq!(batches(request.clone()).await, (names.to_owned(), more), "{request:?}");
    }
    let refused = desk.sites().list_batches(v1::ListBatchesRequest { state: 9, ..all() }).await.expect_err("refused");
    assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, "state: 9 is not a batch's state"));

    desk.run(
        "insert into open_circuits (site_id, agent_id, message, since)
         select s.id, a.id, '', to_timestamp(ascii(s.name) - 96)
         from sites s join agents a on a.name = 'agent' || ascii(s.name) % 2",
    )
    .await;
    let circuits = async |request: v1::ListOpenCircuitsRequest| {
        let listed = desk.sites().list_open_circuits(request).await.expect("listed").into_inner();
        let sites: String = listed.circuits.iter().map(|circuit| circuit.site.trim_end_matches(".cn")).collect();
        (sites, listed.more)
    };
    let text = |text: &str| vec![text.to_owned()];
    let all = v1::ListOpenCircuitsRequest::default;
    for (request, sites, more) in [
        (all(), "cba", 0),
        (v1::ListOpenCircuitsRequest { batch: "autumn".into(), ..all() }, "ba", 0),
        (v1::ListOpenCircuitsRequest { batch: "aut".into(), limit: 1, ..all() }, "b", 1),
        (v1::ListOpenCircuitsRequest { agent: "agent1".into(), ..all() }, "ca", 0),
        (v1::ListOpenCircuitsRequest { cities: text("harbin"), ..all() }, "b", 0),
        (v1::ListOpenCircuitsRequest { countries: text("JP"), ..all() }, "", 0),
        (v1::ListOpenCircuitsRequest { since: at(2), until: at(3), ..all() }, "b", 0),
    ] {
        assert_eq!(circuits(request.clone()).await, (sites.to_owned(), more), "{request:?}");
    }
    let request = v1::AgentsReportRequest { cities: text("HARBIN"), ..Default::default() };
    let report = desk.reports().agents(request).await.expect("reported").into_inner().agents;
    assert_eq!((report.len(), report[0].agent.as_str()), (1, "agent0"));

    for city in ["Harbin", "Tokyo"] {
        let token = v1::CreateEnrolmentRequest { city: city.into(), carrier: "X".into(), ..Default::default() };
        desk.fleet().create_enrolment(token).await.expect("made");
    }
    desk.fleet().revoke_enrolment(v1::RevokeEnrolmentRequest { named: "tokyo-x".into() }).await.expect("revoked");
    let tokens = async |request: v1::ListEnrolmentsRequest| {
        let listed = desk.fleet().list_enrolments(request).await.map(|listed| listed.into_inner().enrolments);
        listed.map(|tokens| tokens.into_iter().map(|token| token.name).collect::<Vec<_>>().join(" "))
    };
    let (all, revoked) = (v1::ListEnrolmentsRequest::default, vec![v1::EnrolmentState::Revoked.into()]);
    for (request, names) in [
        (all(), "harbin-x"),
        (v1::ListEnrolmentsRequest { all: true, ..all() }, "harbin-x tokyo-x"),
        (v1::ListEnrolmentsRequest { states: revoked.clone(), ..all() }, "tokyo-x"),
        (v1::ListEnrolmentsRequest { states: revoked, cities: text("Harbin"), ..all() }, ""),
        (v1::ListEnrolmentsRequest { all: true, cities: text("tokyo"), ..all() }, "tokyo-x"),
    ] {
        assert_eq!(tokens(request.clone()).await.expect("listed"), names, "{request:?}");
    }
    let refused = tokens(v1::ListEnrolmentsRequest { states: vec![0], ..all() }).await.expect_err("refused");
    assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, "states: 0 is not a token's state"));
}
