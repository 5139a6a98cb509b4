//! Tests the reports that count crawls and failures.

use super::*;

/// Makes two batches, of four and of two sites. The crawls of four sites ended, on two days.
async fn ended(desk: &OperatorServer) {
    desk.submit("autumn", &["a.cn", "b.cn", "c.cn", "d.cn"]).await.expect("submitted");
    desk.submit("winter", &["a.cn", "e.cn"]).await.expect("submitted");
    desk.agents(2).await;
    desk.run("update agents set city = 'Harbin', carrier = 'CERNET' where name = 'agent0'").await;
    desk.run("update agents set city = 'Tokyo', carrier = 'IIJ' where name = 'agent1'").await;
    // Agent 0 crawls a.cn and b.cn of the first batch. Its predicted round trip is 10 ms; its
    // crawls observe 20 and 40 ms.
    desk.run(
        "with wanted (batch, site, agent, predicted, probed, crawled, day) as (values
             ('autumn', 'a.cn', 'agent0', 10000, 12500, 20000, '2026-11-23'),
             ('autumn', 'b.cn', 'agent0', 10000, null, 40000, '2026-11-24'),
             ('autumn', 'c.cn', 'agent1', 30000, null, 20000, '2026-11-24'),
             ('winter', 'e.cn', 'agent1', null, null, 20000, '2026-11-24')
         ), chosen as (
             insert into assignments (task_id, agent_id, strategy, seed, candidates, predicted_us, measured_us)
             select t.id, a.id, 'gnp-top3', 1, array[a.id], array[w.predicted], array[w.probed]
             from wanted w join batches b on b.name = w.batch join sites s on s.name = w.site
             join tasks t on t.batch_id = b.id and t.site_id = s.id join agents a on a.name = w.agent
             returning id, task_id, agent_id
         ), moved as (
             update tasks t set state = 'done', token = 1, assignment_id = c.id from chosen c where c.task_id = t.id
         ), leased as (
             insert into leases (task_id, token, site_id, agent_id, session_id, state)
             select t.id, 1, t.site_id, c.agent_id, 1, 'completed' from chosen c join tasks t on t.id = c.task_id
         )
         insert into outcomes (task_id, token, agent_id, kind, pages, bytes, errors, started_at, duration_ms, rtt_us, accepted_at)
         select t.id, 1, c.agent_id, 'complete', 1, 1, 0, now(), 1, w.crawled, (w.day || 'T12:00Z')::timestamptz
         from wanted w join batches b on b.name = w.batch join sites s on s.name = w.site
         join tasks t on t.batch_id = b.id and t.site_id = s.id join chosen c on c.task_id = t.id",
    )
    .await;
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn accuracy_is_reported_by_place_and_day(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    ended(&desk).await;
    let all = v1::AccuracyRequest::default;
    let (agent, city, day): (i32, i32, i32) =
        (v1::ReportGroup::Agent.into(), v1::ReportGroup::City.into(), v1::ReportGroup::Day.into());
    let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
    let noon = 1_795_521_600;
    for (request, expected) in [
        (all(), "  3 0.500|1 0.200"),
        (v1::AccuracyRequest { by: vec![city], ..all() }, "Harbin  2 0.625|1 0.200;Tokyo  1 0.500|0 -"),
        (v1::AccuracyRequest { by: vec![agent, day], limit: 1, ..all() }, "agent0 2026-11-23 1 0.500|1 0.200"),
        (
            v1::AccuracyRequest { crawls: Some(v1::CrawlFilter { since: at(noon), ..Default::default() }), ..all() },
            "  2 0.625|0 -",
        ),
        (
            v1::AccuracyRequest {
                crawls: Some(v1::CrawlFilter { until: at(noon), batch: "autumn".into(), ..Default::default() }),
                ..all()
            },
            "  1 0.500|1 0.200",
        ),
        (
            v1::AccuracyRequest {
                crawls: Some(v1::CrawlFilter { batch: "winter".into(), ..Default::default() }),
                ..all()
            },
            "",
        ),
        (
            v1::AccuracyRequest {
                crawls: Some(v1::CrawlFilter {
                    cities: vec!["tokyo".into()],
                    batch: "autumn".into(),
                    ..Default::default()
                }),
                ..all()
            },
            "  1 0.500|0 -",
        ),
        (
            v1::AccuracyRequest {
                crawls: Some(v1::CrawlFilter { carriers: vec!["nobody's".into()], ..Default::default() }),
                ..all()
            },
            "",
        ),
    ] {
        let answer = desk.reports().accuracy(request.clone()).await.expect("counted").into_inner();
        let figure = |figure: Option<f64>| figure.map_or("-".to_owned(), |figure| format!("{figure:.3}"));
        let told = answer.rows.iter().map(|row| {
            let (crawled, probed) = (figure(row.median_error), figure(row.probed_median_error));
            format!("{}{} {} {} {crawled}|{} {probed}", row.agent, row.city, row.day, row.crawls, row.probed)
        });
        assert_eq!(told.collect::<Vec<_>>().join(";"), expected, "{request:?}");
        assert_eq!(answer.more, if request.limit > 0 { 2 } else { 0 }, "{request:?}");
    }
    let refused = v1::AccuracyRequest { by: vec![v1::ReportGroup::Reason.into()], ..all() };
    let refused = desk.reports().accuracy(refused).await.expect_err("refused");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().starts_with("by: 5 is nothing that this report"), "{refused:?}");
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn failures_are_counted_by_reason_and_source(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    ended(&desk).await;
    desk.run(
        "update tasks t set state = 'failed', reason_kind = v.kind::reason_kind, state_since = (v.day || 'T12:00Z')::timestamptz
         from (values ('autumn', 'a.cn', 'timed-out', '2026-11-23'), ('autumn', 'b.cn', 'timed-out', '2026-11-24'),
                      ('autumn', 'c.cn', 'tls', '2026-11-24'), ('winter', 'a.cn', null, '2026-11-24'))
              v (batch, site, kind, day),
              sites s, batches b
         where s.id = t.site_id and b.id = t.batch_id and s.name = v.site and b.name = v.batch",
    )
    .await;
    let all = v1::FailuresRequest::default;
    let by = |group: v1::ReportGroup| vec![group.into()];
    let reason = || by(v1::ReportGroup::Reason);
    let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
    for (request, expected) in [
        (all(), " 4 1.00 a.cn"),
        (v1::FailuresRequest { by: reason(), ..all() }, "timed-out 2 0.50 a.cn;other 1 0.25 a.cn;tls 1 0.25 c.cn"),
        (
            v1::FailuresRequest { by: by(v1::ReportGroup::Agent), ..all() },
            "agent0 2 0.50 a.cn;agent1 1 0.25 c.cn; 1 0.25 a.cn",
        ),
        (
            v1::FailuresRequest {
                sites: Some(v1::CrawlFilter { batch: "winter".into(), ..Default::default() }),
                by: reason(),
                ..all()
            },
            "other 1 1.00 a.cn",
        ),
        (
            v1::FailuresRequest {
                sites: Some(v1::CrawlFilter { carriers: vec!["iij".into()], ..Default::default() }),
                by: reason(),
                ..all()
            },
            "tls 1 1.00 c.cn",
        ),
        (
            v1::FailuresRequest {
                sites: Some(v1::CrawlFilter { until: at(1_795_521_600), ..Default::default() }),
                ..all()
            },
            " 1 1.00 a.cn",
        ),
        (v1::FailuresRequest { reasons: vec![v1::ReasonKind::Tls.into()], ..all() }, " 1 1.00 c.cn"),
        (v1::FailuresRequest { reasons: vec![v1::ReasonKind::Poison.into()], by: reason(), ..all() }, ""),
    ] {
        let answer = desk.reports().failures(request.clone()).await.expect("counted").into_inner();
        let told = answer.rows.iter().map(|row| {
            let kind = landfall_proto::json::Word::word(row.reason_kind());
            format!("{kind}{} {} {:.2} {}", row.agent, row.sites, row.share, row.example)
        });
        assert_eq!(told.collect::<Vec<_>>().join(";"), expected, "{request:?}");
        assert!(answer.rows.iter().all(|row| row.last_failed_at.is_some()));
    }
}
