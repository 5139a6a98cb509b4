//! Tests plans with a real server and a real Postgres.

use super::*;

/// Makes three agents, the last without coordinates, and five sites: one was crawled, one is beside
/// the second agent, one has several locations, one has coordinates only in another embedding, and
/// one has no coordinates.
async fn desk(pool: PgPool) -> OperatorServer {
    let desk = OperatorServer::open(pool).await;
    desk.agents(3).await;
    desk.submit("autumn", &["a.cn", "b.cn", "many.cn", "old.cn", "nowhere.cn"]).await.expect("submitted");
    for sql in [
        "insert into embeddings (epoch, dimensions, landmarks, fit_error) overriding system value
         values (1, 1, '{}', 0), (2, 1, '{}', 0), (3, 1, '{}', 0)",
        "insert into agent_placements (epoch, agent_id, coordinate, fit_error)
         select e.epoch, a.id, array[case a.name when 'agent0' then 0 else 100 end, 1], 0
         from agents a, embeddings e where a.name < 'agent2'",
        "insert into site_placements (site_id, epoch, coordinate, fit_error)
         select id, case name when 'old.cn' then 1 else 2 end, array[case name when 'b.cn' then 90 else 10 end, 2], 0
         from sites where name <> 'nowhere.cn'",
        "insert into site_verdicts (site_id, suspect, confidence, evidence)
         select id, name = 'many.cn', 0, case name when 'many.cn' then 'seen' else '' end from sites",
    ] {
        desk.run(sql).await;
    }
    // Disables foreign keys, so that the rows below need no lease.
    let mut conn = desk.pool.acquire().await.expect("a connection");
    for sql in [
        "set session_replication_role = replica",
        "insert into outcomes (task_id, token, agent_id, kind, pages, bytes, errors, started_at, duration_ms)
         select t.id, 1, (select min(id) from agents), 'complete', 10, 10000, 0, now(), 5000
         from tasks t join sites s on s.id = t.site_id where s.name = 'a.cn'",
        "reset session_replication_role",
    ] {
        sqlx::query(sql).execute(&mut *conn).await.expect(sql);
    }
    desk
}

fn addition(near: &str) -> v1::PlannedAddition {
    v1::PlannedAddition {
        city: "Chengdu".into(),
        carrier: "Telecom".into(),
        near: near.into(),
        ..v1::PlannedAddition::default()
    }
}

fn millis(duration: Option<prost_types::Duration>) -> f64 {
    Duration::try_from(duration.expect("a duration")).expect("not negative").as_secs_f64() * 1e3
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_plan_says_what_the_fleet_comes_to_before_and_after(pool: PgPool) {
    let desk = desk(pool).await;
    let ask = async |request: v1::PlanRequest| desk.reports().plan(request).await.map(tonic::Response::into_inner);
    let request = v1::PlanRequest {
        add: vec![addition("b.cn"), addition("agent1")],
        remove: vec!["agent1".into()],
        strategy: "gnp-top1".into(),
        suggest: 3,
    };
    let plan = ask(request).await.expect("a plan");
    // The plan uses embedding 2, because the newest embedding (3) has no sites yet.
    assert_eq!((plan.epoch, plan.strategy.as_str(), plan.sites), (2, "gnp-top1", 2));
    assert_eq!((plan.sites_elsewhere, plan.sites_in_several_places), (1, 1));
    assert_eq!((plan.sites_of_known_size, plan.usual_pages, plan.usual_bytes), (1, 10, 10_000));
    assert_eq!(plan.left_out.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["agent2"]);
    let (before, after) = (plan.before.clone().expect("before"), plan.after.clone().expect("after"));
    // Before the changes, each site is 13 ms from its agent: their first coordinates differ by
    // 10 ms, and their heights (the last coordinates) add 2 ms and 1 ms. The changes add an agent
    // with a height of 1 ms beside the second site.
    assert!((millis(before.mean) - 13.0).abs() < 1e-3 && (millis(after.mean) - 8.0).abs() < 1e-3, "{plan:?}");
    let agents: Vec<(&str, &str, u32)> =
        plan.agents.iter().map(|one| (one.name.as_str(), one.change.as_str(), one.slots)).collect();
    let added = |name| (name, "added", 2);
    assert_eq!(
        agents,
        [("agent0", "stays", 2), ("agent1", "removed", 2), added("chengdu-telecom"), added("chengdu-telecom-2")]
    );
    let load = |place: usize| (plan.agents[place].before.as_ref(), plan.agents[place].after.as_ref());
    assert!(matches!(load(0), (Some(before), Some(after)) if before.share == 0.5 && after.sites == 1.0), "{plan:?}");
    assert!(matches!(load(1), (Some(_), None)) && matches!(load(2), (None, Some(after)) if after.share == 0.5));
    // The crawl takes ten pages at an interval of one second, plus three round trips.
    let work = millis(load(2).1.and_then(|after| after.work));
    assert!((work - 10_009.0).abs() < 0.1, "{work}");
    assert_eq!((before.longest.as_str(), after.longest.as_str()), ("agent1", "agent0"));
    // The suggested agent is beside a.cn, the only site without an agent beside it. A second
    // suggested agent would shorten no round trip.
    let near: Vec<&str> = plan.suggestions.iter().map(|one| one.near.as_str()).collect();
    assert_eq!((near, plan.sampled_sites), (vec!["a.cn"], 2), "{plan:?}");
    assert!((millis(plan.suggestions[0].gain) - 5.0).abs() < 1e-3 && plan.suggestions[0].share == 0.5, "{plan:?}");

    let plain = ask(v1::PlanRequest::default()).await.expect("a plan");
    assert_eq!((plain.strategy.as_str(), plain.before.clone()), ("gnp-top3", plain.after.clone()));
    assert!((millis(plain.before.clone().expect("before").mean) - 53.0).abs() < 1e-3, "{plain:?}");
    assert_eq!((plain.suggestions.len(), plain.sampled_sites), (0, 0));
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn what_a_plan_cannot_be_made_of_is_named(pool: PgPool) {
    let desk = desk(pool).await;
    let removing = |names: &[&str]| v1::PlanRequest {
        remove: names.iter().map(|name| (*name).to_owned()).collect(),
        ..v1::PlanRequest::default()
    };
    let adding = |add: v1::PlannedAddition| v1::PlanRequest { add: vec![add], ..v1::PlanRequest::default() };
    let by =
        |strategy: &str, suggest: u32| v1::PlanRequest { strategy: strategy.into(), suggest, ..Default::default() };
    let called = |name: &str| v1::PlannedAddition { name: name.into(), ..addition("a.cn") };
    let too_many = v1::PlanRequest { add: vec![addition("a.cn"); 101], ..v1::PlanRequest::default() };
    let twice = v1::PlanRequest { add: vec![called("x"), called("x")], ..v1::PlanRequest::default() };
    let unforeseen = "strategy: a plan supports random and gnp-top1 to gnp-top3, but not hash";
    let slots = v1::PlannedAddition { slots: Some(0), ..addition("a.cn") };
    for (request, code, message) in [
        (
            removing(&["agent9"]),
            Code::NotFound,
            "remove: no agent is called agent9; did you mean agent0, agent1 or agent2?",
        ),
        (removing(&["agent1", "agent1"]), Code::InvalidArgument, "agent1 is named twice"),
        (
            removing(&["agent2"]),
            Code::InvalidArgument,
            "remove: agent2 has no place in this embedding: it had too few measurements when the embedding was \
             fitted; removing it changes nothing",
        ),
        (
            removing(&["agent0", "agent1"]),
            Code::InvalidArgument,
            "no agent would remain: all agents with a place in embedding 2 are removed, and none is added",
        ),
        (
            adding(addition("c.cn")),
            Code::NotFound,
            "add: near=c.cn: no agent and no site is known by this name; did you mean a.cn or b.cn?",
        ),
        (adding(addition("?!")), Code::NotFound, "add: near=?!: no agent and no site is known by this name"),
        (adding(addition("")), Code::InvalidArgument, "near: missing"),
        (
            adding(addition("nowhere.cn")),
            Code::FailedPrecondition,
            "add: near=nowhere.cn: the site is not located: no landmark has measured it, or none could",
        ),
        (
            adding(addition("old.cn")),
            Code::FailedPrecondition,
            "add: near=old.cn: the site lies in embedding 1 and not in 2: submit it again to have it located anew",
        ),
        (
            adding(addition("agent2")),
            Code::FailedPrecondition,
            "add: near=agent2: the agent has no place in the embedding yet",
        ),
        (
            adding(called("agent0")),
            Code::InvalidArgument,
            "add: an agent is already called agent0: give the new one another name=",
        ),
        (twice, Code::InvalidArgument, "x is named twice"),
        (adding(slots), Code::InvalidArgument, "slots: must be 1 to 10000, not 0"),
        (too_many, Code::InvalidArgument, "add: 101 agents, but at most 100 can be added"),
        (by("hash", 0), Code::InvalidArgument, unforeseen),
        (
            by("random", 1),
            Code::InvalidArgument,
            "strategy: random ignores distances, on which suggestions are based: use gnp-top1 or gnp-top3",
        ),
        (by("", 21), Code::InvalidArgument, "suggest: 21 places, but at most 20 can be suggested"),
    ] {
        let refused = desk.reports().plan(request).await.expect_err(message);
        assert_eq!((refused.code(), refused.message()), (code, message));
    }
    desk.fleet().drain_agent(v1::DrainAgentRequest { name: "agent1".into() }).await.expect("drained");
    let plan = desk.reports().plan(v1::PlanRequest::default()).await.expect("a plan").into_inner();
    assert_eq!(plan.left_out[0].why, "takes no new work because it is draining");

    desk.run("delete from agent_placements").await;
    let refused = desk.reports().plan(v1::PlanRequest::default()).await.expect_err("nobody");
    let nobody =
        "no agent has a place in embedding 2 yet: `landfall embedding show` lists the agents once they are measured";
    assert_eq!((refused.code(), refused.message()), (Code::FailedPrecondition, nobody));
    desk.run("delete from site_placements").await;
    let refused = desk.reports().plan(v1::PlanRequest::default()).await.expect_err("nothing");
    let nothing = "no site is located yet: submit sites, and plan again when they are located (`landfall batches show` shows \
         the progress)";
    assert_eq!((refused.code(), refused.message()), (Code::FailedPrecondition, nothing));
}
