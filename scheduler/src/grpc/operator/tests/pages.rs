//! Tests that lists are bounded and can be continued, and that clients who do not read hold nothing in
//! the database.

use futures_util::future::join_all;

use super::*;

/// The keys of a page's rows, the number of rows after it, and the token of the next page.
type Answer = Result<(Vec<String>, u64, String), Status>;

/// The fields `limit` and `page_token` of a request.
type Asked = (u64, String);

/// Asks for page after page of one, two and all rows. Each way must give the same rows.
async fn walk(list: &str, ask: impl AsyncFn(Asked) -> Answer) -> Vec<String> {
    let (whole, more, token) = ask((0, String::new())).await.expect(list);
    assert_eq!((more, token.as_str()), (0, ""), "{list}");
    for limit in [1, 2] {
        let (mut listed, mut token) = (Vec::new(), String::new());
        loop {
            let (page, more, next) = ask((limit, token)).await.expect(list);
            assert!(page.len() <= usize::try_from(limit).expect("small"), "{list}: {page:?}");
            listed.extend(page);
            assert_eq!(listed.len() + usize::try_from(more).expect("small"), whole.len(), "{list}");
            assert_eq!(next.is_empty(), more == 0, "{list}");
            if next.is_empty() {
                break;
            }
            token = next;
        }
        assert_eq!(listed, whole, "{list} by {limit}");
    }
    let refused = ask((0, "x".to_owned())).await.expect_err(list);
    let said = "page_token: it is not the next_page_token of a response with these filters";
    assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, said), "{list}");
    whole
}

/// Five batches, agents, circuits, tokens and epochs, and failures and crawls by several agents.
async fn filled(desk: &OperatorServer) {
    for batch in ["autumn", "winter", "spring", "summer", "other"] {
        desk.submit(batch, &["a.cn", "b.cn", "c.cn", "d.cn", "e.cn"]).await.expect("submitted");
    }
    desk.agents(5).await;
    desk.run("update agents set city = 'Harbin' where name in ('agent1', 'agent3')").await;
    // Two circuits open at the same time.
    desk.run(
        "insert into open_circuits (site_id, agent_id, message, since)
         select s.id, a.id, '', to_timestamp(ascii(s.name) / 2) from sites s join agents a on a.name = 'agent0'",
    )
    .await;
    desk.run(
        "insert into embedding_history (epoch, fitted_at, reason, agents, landmarks, dimensions, fit_error)
         select n, now(), 'first', 5, 3, 2, 0 from generate_series(1, 5) n",
    )
    .await;
    for (city, several) in [("Tokyo", 2), ("Kyoto", 3)] {
        let one = v1::CreateEnrolmentRequest { city: city.into(), carrier: "X".into(), ..Default::default() };
        let request = v1::CreateEnrolmentsRequest { enrolments: vec![one; several], dry_run: false };
        desk.fleet().create_enrolments(request).await.expect("made");
    }
    // Each agent has crawled one site of the batch autumn. Tasks of the other batches failed, some
    // without an agent; several groups have the same number of sites.
    desk.run(
        "with chosen as (
             insert into assignments (task_id, agent_id, strategy, seed, candidates, predicted_us, measured_us)
             select t.id, a.id, 'gnp-top3', 1, array[a.id], array[10000], array[null::bigint]
             from tasks t join batches b on b.id = t.batch_id join sites s on s.id = t.site_id
             join agents a on a.name = 'agent' || ascii(s.name) - 97
             where b.name <> 'other'
             returning id, task_id, agent_id
         ), moved as (
             update tasks t set assignment_id = c.id, token = 1, state = case when b.name = 'autumn' then 'done' else 'failed' end::task_state
             from chosen c, batches b where c.task_id = t.id and b.id = t.batch_id
         ), leased as (
             insert into leases (task_id, token, site_id, agent_id, session_id, state)
             select t.id, 1, t.site_id, c.agent_id, s.id, 'completed'
             from chosen c join tasks t on t.id = c.task_id join sessions s on s.agent_id = c.agent_id
         )
         insert into outcomes (task_id, token, agent_id, kind, pages, bytes, errors, started_at, duration_ms, rtt_us)
         select c.task_id, 1, c.agent_id, 'complete', 1, 1, 0, now(), 1, 20000
         from chosen c join tasks t on t.id = c.task_id join batches b on b.id = t.batch_id where b.name = 'autumn'",
    )
    .await;
    desk.run(
        "update tasks t set state = 'failed', reason_kind = case when s.name < 'c' then 'tls'::reason_kind end
         from batches b, sites s where b.id = t.batch_id and s.id = t.site_id and b.name = 'other'",
    )
    .await;
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn every_list_continues_after_its_last_row(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    filled(&desk).await;
    let (fleet, sites, reports) = (desk.fleet(), desk.sites(), desk.reports());
    let batches = walk("batches", async |(limit, page_token)| {
        let request = v1::ListBatchesRequest { limit, page_token, ..Default::default() };
        let listed = sites.clone().list_batches(request).await?.into_inner();
        Ok((listed.batches.into_iter().map(|one| one.name).collect(), listed.more, listed.next_page_token))
    });
    assert_eq!(batches.await, ["other", "summer", "spring", "winter", "autumn"]);
    let agents = walk("agents", async |(limit, page_token)| {
        let cities = vec!["agent0".to_owned(), "HARBIN".to_owned(), "agent4".to_owned()];
        let request = v1::ListAgentsRequest { limit, page_token, cities, ..Default::default() };
        let listed = fleet.clone().list_agents(request).await?.into_inner();
        assert_eq!(listed.open_enrolments, 5);
        Ok((listed.agents.into_iter().map(|one| one.name).collect(), listed.more, listed.next_page_token))
    });
    assert_eq!(agents.await, ["agent0", "agent1", "agent3", "agent4"]);
    let tokens = walk("tokens", async |(limit, page_token)| {
        let request = v1::ListEnrolmentsRequest { limit, page_token, ..Default::default() };
        let listed = fleet.clone().list_enrolments(request).await?.into_inner();
        Ok((listed.enrolments.into_iter().map(|one| one.name).collect(), listed.more, listed.next_page_token))
    });
    assert_eq!(tokens.await, ["tokyo-x", "tokyo-x-2", "kyoto-x", "kyoto-x-2", "kyoto-x-3"]);
    let circuits = walk("circuits", async |(limit, page_token)| {
        let request = v1::ListOpenCircuitsRequest { limit, page_token, ..Default::default() };
        let listed = sites.clone().list_open_circuits(request).await?.into_inner();
        Ok((listed.circuits.into_iter().map(|one| one.site).collect(), listed.more, listed.next_page_token))
    });
    assert_eq!(circuits.await, ["e.cn", "d.cn", "c.cn", "b.cn", "a.cn"]);
    let epochs = walk("epochs", async |(limit, page_token)| {
        let request = v1::ListEpochsRequest { limit: u32::try_from(limit).expect("small"), page_token };
        let listed = desk.embeddings().list_epochs(request).await?.into_inner();
        Ok((listed.epochs.iter().map(|one| one.epoch.to_string()).collect(), listed.more, listed.next_page_token))
    });
    assert_eq!(epochs.await, ["5", "4", "3", "2", "1"]);
    let report = walk("report of agents", async |(limit, page_token)| {
        let batch = "autumn".to_owned();
        let request = v1::AgentsReportRequest { limit, page_token, batch, ..Default::default() };
        let listed = reports.clone().agents(request).await?.into_inner();
        let row = |one: v1::AgentRow| format!("{} {}/{}", one.agent, one.complete, one.assigned);
        Ok((listed.agents.into_iter().map(row).collect(), listed.more, listed.next_page_token))
    });
    assert_eq!(report.await, ["agent0 1/1", "agent1 1/1", "agent2 1/1", "agent3 1/1", "agent4 1/1"]);
    let accuracy = walk("accuracy", async |(limit, page_token)| {
        let by = vec![v1::ReportGroup::Agent.into(), v1::ReportGroup::City.into()];
        let request = v1::AccuracyRequest { limit, page_token, by, ..Default::default() };
        let listed = reports.clone().accuracy(request).await?.into_inner();
        let row = |one: v1::AccuracyRow| format!("{} {} {}", one.city, one.agent, one.crawls);
        Ok((listed.rows.into_iter().map(row).collect(), listed.more, listed.next_page_token))
    });
    let expected = ["Harbin agent1 1", "Harbin agent3 1", "agent0 agent0 1", "agent2 agent2 1", "agent4 agent4 1"];
    assert_eq!(accuracy.await, expected);
    let failures = walk("failures", async |(limit, page_token)| {
        let by = vec![v1::ReportGroup::Reason.into(), v1::ReportGroup::Agent.into()];
        let request = v1::FailuresRequest { limit, page_token, by, ..Default::default() };
        let listed = reports.clone().failures(request).await?.into_inner();
        let row = |one: v1::FailureRow| format!("{} {:?} {} {:.2}", one.sites, one.reason_kind(), one.agent, one.share);
        Ok((listed.rows.into_iter().map(row).collect(), listed.more, listed.next_page_token))
    });
    let expected = [
        "3 Other agent0 0.15",
        "3 Other agent1 0.15",
        "3 Other agent2 0.15",
        "3 Other agent3 0.15",
        "3 Other agent4 0.15",
        "3 Other  0.15",
        "2 Tls  0.10",
    ];
    assert_eq!(failures.await, expected);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_page_has_at_most_a_thousand_rows_and_its_token_no_other_filters(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    desk.run(
        "insert into agents (name, city, carrier, credential_hash)
         select 'agent' || lpad(n::text, 4, '0'), 'Harbin', 'X', sha256(n::text::bytea) from generate_series(1, 2005) n",
    )
    .await;
    let list = async |request| desk.fleet().list_agents(request).await.map(tonic::Response::into_inner);
    let all = v1::ListAgentsRequest::default;
    let mut token = String::new();
    for limit in [0, 1_001] {
        let page = list(v1::ListAgentsRequest { limit, ..all() }).await.expect("listed");
        assert_eq!((page.agents.len(), page.more), (1_000, 1_005), "{limit}");
        token = page.next_page_token;
    }
    // Rows before and after the token vanish and appear between two pages.
    desk.run("update agents set removed_at = now() where name in ('agent0001', 'agent1000', 'agent1001')").await;
    desk.run("insert into agents (name, city, carrier, credential_hash) values ('agent0000', 'H', 'X', '\\x00')").await;
    let page = list(v1::ListAgentsRequest { page_token: token.clone(), limit: 7, ..all() }).await.expect("listed");
    assert_eq!((page.agents[0].name.as_str(), page.agents.len(), page.more), ("agent1002", 7, 997));
    let refused = list(v1::ListAgentsRequest { page_token: token.clone(), removed: true, ..all() }).await;
    let refused = refused.expect_err("another filter");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().starts_with("page_token: "), "{refused:?}");
    let foreign = v1::AgentsReportRequest { page_token: token, ..Default::default() };
    let refused = desk.reports().agents(foreign).await.expect_err("another call");
    assert!(refused.message().starts_with("page_token: "), "{refused:?}");
}

/// Waits until no connection of this database is inside a transaction, except this one.
async fn at_rest(pool: &PgPool) {
    let busy = "select count(*) from pg_stat_activity
                where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null";
    while sqlx::query_scalar::<_, i64>(busy).fetch_one(pool).await.expect("a count") > 0 {
        tokio::task::yield_now().await;
    }
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn clients_that_do_not_read_hold_no_connection_and_no_snapshot(pool: PgPool) {
    const SITES: i64 = 30_000;
    let desk = OperatorServer::open(pool).await;
    desk.submit("autumn", &["first.cn"]).await.expect("submitted");
    desk.run("insert into sites (name) select 's' || n || '.cn' from generate_series(2, 30000) n").await;
    desk.run(
        "insert into tasks (batch_id, site_id, state) select b.id, s.id, 'submitted'
         from batches b, sites s where s.name <> 'first.cn'",
    )
    .await;
    desk.run(
        "insert into discovered_hosts (batch_id, host, site_id)
         select b.id, lpad(s.id::text, 6, '0') || '.example', s.id from batches b, sites s",
    )
    .await;
    // Clients with connections of their own, which accept a few hundred rows and then no more.
    let window = desk.endpoint.clone().initial_stream_window_size(65_535).initial_connection_window_size(65_535);
    let connect = async || window.connect().await.expect("a connection");
    let more_than_connections = 0..=desk.pool.options().get_max_connections();
    let assignments = join_all(more_than_connections.map(|_| async {
        let mut reports = ReportServiceClient::with_interceptor(connect().await, desk.operator());
        let request = v1::AssignmentsRequest { batch: "autumn".into(), ..Default::default() };
        let mut stream = reports.assignments(request).await.expect("a stream").into_inner();
        stream.message().await.expect("a row").expect("a row");
        stream
    }));
    let mut assignments = assignments.await;
    let hosts = v1::HostsRequest { batch: "autumn".into(), ..Default::default() };
    let mut reports = ReportServiceClient::with_interceptor(connect().await, desk.operator());
    let mut hosts = reports.hosts(hosts).await.expect("a stream").into_inner();
    let since = Some(prost_types::Timestamp::default());
    let request = v1::EventsRequest { since, batch: "autumn".into(), ..Default::default() };
    let mut events = EventServiceClient::with_interceptor(connect().await, desk.operator());
    let mut events = events.events(request).await.expect("a stream").into_inner();
    tokio::time::timeout(Duration::from_secs(60), at_rest(&desk.pool)).await.expect("nothing is held");
    desk.sites().list_batches(v1::ListBatchesRequest::default()).await.expect("others are served");

    // What is stored only now is in the pages that were not read yet.
    let batch = "(select id from batches)";
    for (late, sql) in [
        ("sites", format!("insert into tasks (batch_id, site_id, state) values ({batch}, $1, 'submitted')")),
        ("hosts", format!("insert into discovered_hosts (batch_id, host, site_id) values ({batch}, 'z.example', $1)")),
    ] {
        let site = "insert into sites (name) values ($1) returning id";
        let site: i64 =
            sqlx::query_scalar(site).bind(format!("late-{late}.cn")).fetch_one(&desk.pool).await.expect(site);
        sqlx::query(sqlx::AssertSqlSafe(sql)).bind(site).execute(&desk.pool).await.expect(late);
    }
    let (mut rows, mut last) = (1, String::new());
    let stream = assignments.first_mut().expect("a stream");
    while let Some(row) = stream.message().await.expect("a row") {
        (rows, last) = (rows + 1, row.site);
    }
    assert_eq!((rows, last.as_str()), (SITES + 1, "late-sites.cn"));
    let (mut rows, mut last) = (0, String::new());
    while let Some(row) = hosts.message().await.expect("a row") {
        (rows, last) = (rows + 1, row.host);
    }
    assert_eq!((rows, last.as_str()), (SITES + 1, "z.example"));
    assert!(events.message().await.expect("an event").is_some());
}
