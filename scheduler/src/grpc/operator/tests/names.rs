//! Tests how the names in requests are looked up. Read-only calls accept a prefix of a name; calls
//! that change something need the full name. Unknown names get suggestions.

use super::*;

/// Makes three batches and three agents, one of which was removed.
async fn known(desk: &OperatorServer) {
    for batch in ["autumn", "winter", "winter-2"] {
        desk.submit(batch, &["www.example.cn", "www.example.org"]).await.expect("submitted");
    }
    let mut conn = desk.pool.acquire().await.expect("a connection");
    for agent in ["harbin-cernet", "harbin-unicom", "tokyo-iij"] {
        fixtures::agent(&mut conn, agent).await;
    }
    desk.run("update agents set removed_at = now() where name = 'harbin-unicom'").await;
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Status>) -> (Code, String) {
    let status = answer.expect_err("refused");
    (status.code(), status.message().to_owned())
}

fn not_found(said: &str) -> (Code, String) {
    (Code::NotFound, said.to_owned())
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_name_of_any_length_and_alphabet_is_answered_with_a_text_that_clients_take(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    for name in ["x".repeat(20_000), "漢".repeat(20_000), "x".repeat(3 << 20)] {
        let shown = desk.sites().show_batch(v1::ShowBatchRequest { batch: name.clone() }).await;
        let (code, said) = refused(shown);
        assert_eq!(code, Code::NotFound, "{said}");
        assert!(said.starts_with("no batch is called '") && said.ends_with('…') && said.len() <= 4096, "{said}");
        let watched = desk.sites().watch_batch(v1::WatchBatchRequest { batch: name }).await;
        assert_eq!(watched.expect_err("unknown").code(), Code::NotFound);
    }
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn the_only_name_with_this_beginning_is_read(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    known(&desk).await;
    let batch = async |batch: &str| {
        let shown = desk.sites().show_batch(v1::ShowBatchRequest { batch: batch.into() }).await;
        shown.map(|shown| shown.into_inner().name)
    };
    assert_eq!(batch("aut").await.expect("shown"), "autumn");
    assert_eq!(batch("winter").await.expect("shown"), "winter", "an exact name wins over longer ones");
    let several = "several batches begin with 'win': winter, winter-2; give more of the name".to_owned();
    assert_eq!(refused(batch("win").await), (Code::FailedPrecondition, several));
    assert_eq!(refused(batch("").await), not_found("no batch is called ''"));
    let watch = desk.sites().watch_batch(v1::WatchBatchRequest { batch: "aut".into() }).await.expect("a stream");
    let progress = watch.into_inner().message().await.expect("a message").expect("progress");
    assert_eq!((progress.batch.as_str(), progress.submitted), ("autumn", 2));

    let site = async |site: &str| {
        let shown = desk.sites().show_site(v1::ShowSiteRequest { site: site.into() }).await;
        shown.map(|shown| shown.into_inner().name)
    };
    assert_eq!(site("www.example.c").await.expect("shown"), "www.example.cn");
    let several = "several sites begin with 'www': www.example.cn, www.example.org; give more of the name".to_owned();
    assert_eq!(refused(site("www").await), (Code::FailedPrecondition, several));
    let asked = v1::ExplainRequest { site: "www.example.o".into(), batch: "aut".into(), assignment_id: None };
    assert_eq!(desk.sites().explain(asked).await.expect("explained").into_inner().site, "www.example.org");

    let agent = async |name: &str| {
        let shown = desk.fleet().show_agent(v1::ShowAgentRequest { name: name.into() }).await;
        shown.map(|shown| shown.into_inner().agent.expect("an agent").name)
    };
    assert_eq!(agent("harbin-u").await.expect("shown"), "harbin-unicom", "what was removed is still shown");
    assert_eq!(refused(agent("harbin").await).0, Code::FailedPrecondition);
    let reach = async |agent: &str, other: &str| {
        desk.fleet().show_reach(v1::ShowReachRequest { agent: agent.into(), other: other.into() }).await
    };
    let ways = reach("tok", "harbin").await.expect("shown").into_inner().ways;
    let ways: Vec<_> = ways.iter().map(|way| (way.prober.as_str(), way.target.as_str())).collect();
    assert_eq!(ways, [("tokyo-iij", "harbin-cernet"), ("harbin-cernet", "tokyo-iij")], "a removed agent is not meant");
    assert_eq!(refused(reach("tok", "tokyo").await).0, Code::InvalidArgument, "one agent under two names");
    let request = v1::AgentsReportRequest { batch: "autumn".into(), agent: "tok".into(), ..Default::default() };
    let report = desk.reports().agents(request).await.expect("reported").into_inner().agents;
    assert_eq!((report.len(), report[0].agent.as_str()), (1, "tokyo-iij"));
    let request = v1::AssignmentsRequest { batch: "aut".into(), agent: "tok".into(), ..Default::default() };
    assert!(desk.reports().assignments(request).await.is_ok());
    let request = v1::ThroughputRequest { batch: "aut".into(), ..Default::default() };
    assert!(desk.reports().throughput(request).await.is_ok());
    let request = v1::EventsRequest { batch: "aut".into(), site: "www.example.c".into(), ..Default::default() };
    let mut events = desk.events().events(v1::EventsRequest { newest: 9, ..request }).await.expect("read").into_inner();
    while let Some(event) = events.message().await.expect("an event") {
        assert_eq!((event.batch.as_str(), event.site.as_str()), ("autumn", "www.example.cn"));
    }
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn at_most_ten_names_of_many_are_listed(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    desk.run("insert into batches (name, strategy) select 'b' || n, 'random' from generate_series(100, 112) n").await;
    desk.run("insert into sites (name) select 's' || n || '.cn' from generate_series(1000, 2999) n").await;
    let shown = desk.sites().show_batch(v1::ShowBatchRequest { batch: "b".into() }).await;
    let said = refused(shown).1;
    assert!(
        said.starts_with("several batches begin with 'b': b100, b101, ") && said.contains(", b109 and 3 more; "),
        "{said}"
    );
    let shown = desk.sites().show_site(v1::ShowSiteRequest { site: "s".into() }).await;
    let said = refused(shown).1;
    assert!(said.contains("s1009.cn and at least 990 more; "), "{said}");
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn an_unknown_name_suggests_the_nearest(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    known(&desk).await;
    let batch =
        async |batch: &str| refused(desk.sites().show_batch(v1::ShowBatchRequest { batch: batch.into() }).await);
    assert_eq!(batch("atumn").await, not_found("no batch is called 'atumn'; did you mean autumn?"));
    assert_eq!(batch("AUTUMN").await, not_found("no batch is called 'AUTUMN'; did you mean autumn?"));
    assert_eq!(batch("wintr-2").await, not_found("no batch is called 'wintr-2'; did you mean winter-2?"));
    let zero = "a text contains the character U+0000, which no name may have";
    assert_eq!(batch("no\0body").await, (Code::InvalidArgument, zero.to_owned()));
    let site = refused(desk.sites().show_site(v1::ShowSiteRequest { site: "example.cn".into() }).await);
    assert_eq!(site, not_found("no site is known as 'example.cn'; did you mean www.example.cn or www.example.org?"));
    let agent = refused(desk.fleet().show_agent(v1::ShowAgentRequest { name: "tokio-iij".into() }).await);
    assert_eq!(agent, not_found("no agent is called tokio-iij; did you mean tokyo-iij?"));
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_change_takes_names_in_full_only_and_says_so(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    known(&desk).await;
    let (mut sites, mut fleet) = (desk.sites(), desk.fleet());
    let full = |said: &str, meant: &str| {
        not_found(&format!("{said}: names must be given in full here; did you mean {meant}?"))
    };
    let batch = || "aut".to_owned();
    let no_batch = full("no batch is called 'aut'", "autumn");
    let cancel = v1::CancelTasksRequest { batch: batch(), all: true, ..Default::default() };
    assert_eq!(refused(sites.cancel_tasks(cancel).await), no_batch);
    let retry = v1::RetryTasksRequest { batch: batch(), failed: true, ..Default::default() };
    assert_eq!(refused(sites.retry_tasks(retry).await), no_batch);
    let remove = v1::RemoveBatchRequest { batch: batch(), cancel: true };
    assert_eq!(refused(sites.remove_batch(remove).await.map(|_| ())), no_batch);
    let several = v1::RemoveBatchRequest { batch: "win".into(), cancel: true };
    let said = not_found("no batch is called 'win'; did you mean winter or winter-2?");
    assert_eq!(refused(sites.remove_batch(several).await.map(|_| ())), said, "several begin so");
    let reopen = v1::ReopenSitesRequest { sites: vec!["www.example.c".into()], all: false };
    let said = full("no site is known as 'www.example.c'", "www.example.cn or www.example.org");
    assert_eq!(refused(sites.reopen_sites(reopen).await), said);

    let name = || "tok".to_owned();
    let no_agent = full("no agent is called tok", "tokyo-iij");
    assert_eq!(refused(fleet.drain_agent(v1::DrainAgentRequest { name: name() }).await), no_agent);
    assert_eq!(refused(fleet.resume_agent(v1::ResumeAgentRequest { name: name() }).await), no_agent);
    assert_eq!(refused(fleet.remove_agent(v1::RemoveAgentRequest { name: name(), force: true }).await), no_agent);
    assert_eq!(refused(fleet.trust_agent(v1::TrustAgentRequest { name: name() }).await), no_agent);
    let tag = v1::TagAgentRequest { name: name(), add: vec!["fast".into()], remove: Vec::new() };
    assert_eq!(refused(fleet.tag_agent(tag).await), no_agent);
    let landmarks = v1::SetLandmarksRequest { names: vec![name()], dimensions: 0 };
    let said = full("names: no agent is called tok", "tokyo-iij");
    assert_eq!(refused(fleet.set_landmarks(landmarks).await), said);
    let token = v1::CreateEnrolmentRequest { city: "Kyoto".into(), carrier: "IIJ".into(), ..Default::default() };
    fleet.create_enrolment(token).await.expect("made");
    let (code, said) = refused(fleet.revoke_enrolment(v1::RevokeEnrolmentRequest { named: "kyo".into() }).await);
    assert_eq!(code, Code::NotFound);
    assert!(said.ends_with(": names must be given in full here; did you mean kyoto-iij?"), "{said}");

    let changed: i64 = sqlx::query_scalar(
        "select (select count(*) from tasks where state <> 'submitted')
              + (select count(*) from agents where draining_since is not null or tags <> '{}')
              + (select count(*) from batches where removing_since is not null)",
    )
    .fetch_one(&desk.pool)
    .await
    .expect("a count");
    assert_eq!(changed, 0);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_strategy_that_the_fleet_or_the_configuration_cannot_follow_is_refused(pool: PgPool) {
    let desk = OperatorServer::with(pool, Config { draws: Draws::Static, ..Config::default() }).await;
    let submit = async |strategy: &str| {
        let header = v1::SubmitHeader { batch: strategy.into(), strategy: strategy.into(), ..Default::default() };
        desk.submit_to(header, &["a.cn"])
            .await
            .map(|_| ())
            .map_err(|status| (status.code(), status.message().to_owned()))
    };
    assert_eq!(submit("gnp-top3").await, Ok(()), "the default, though no agent is enrolled yet");
    desk.agents(4).await;
    assert_eq!(submit("gnp-top4").await, Ok(()));
    let refused = |code, message: &str| Err((code, message.to_owned()));
    let few =
        "strategy: gnp-top5 draws among more agents than the 4 that are enrolled: enrol more, or choose a smaller K";
    assert_eq!(submit("gnp-top5").await, refused(Code::FailedPrecondition, few));
    let load = "strategy: earliest-finish chooses by load, which this scheduler ignores: its configuration has draws = \"static\"";
    assert_eq!(submit("earliest-finish").await, refused(Code::FailedPrecondition, load));
    let none = "strategy: 'gnp-top0' is not gnp-topK: K must be a whole number from 1 to 99";
    assert_eq!(submit("gnp-top0").await, refused(Code::InvalidArgument, none));
    assert_eq!(batches_stored(&desk).await, 2, "nothing is left of refused batches");
}

async fn batches_stored(desk: &OperatorServer) -> i64 {
    sqlx::query_scalar("select count(*) from batches").fetch_one(&desk.pool).await.expect("counted")
}
