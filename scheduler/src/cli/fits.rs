//! No line of any answer is wider than it may be, whatever the names and figures.

use landfall_proto::v1;
use landfall_proto::v1::measurement_failure::Reason;
use prost_types::{Duration, Timestamp};

use super::output::{self, Row, View};
use super::{agent, batches, events, explain, plan, reach, reports, sites, tasks, throughput};

const AGENT: &str = "hohhot-xincheng-china-telecom-inner-mongolia-branch-0001-backup";
const CITY: &str = "呼和浩特市新城区";
const CARRIER: &str = "中国电信股份有限公司内蒙古分公司";
const SITE: &str = "https://www.department-of-something-quite-long.inner-mongolia.example.edu.cn:8443";
const WHY: &str = "unreachable: connect https://www.department-of-something-quite-long.inner-mongolia.example.edu.cn:8443 at \
                   2001:0db8:85a3:0000:0000:8a2e:0370:7334: 连接被对方拒绝 (os error 111)";
const BATCH: &str = "a-batch-of-every-university-of-the-north-2026-autumn";
const MANY: u64 = 123_456_789;
const AT: Option<Timestamp> = Some(Timestamp { seconds: -3_600 * 47, nanos: 0 });
const LONG: Option<Duration> = Some(Duration { seconds: 123, nanos: 456_700_000 });

fn text() -> String {
    WHY.to_owned()
}

fn narrow(printed: &str) {
    for line in printed.lines() {
        assert!(console::measure_text_width(line) <= View::plain().columns, "{line}\nin\n{printed}");
    }
    assert!(!printed.is_empty());
}

fn table<R: Row + Default>(one: R) {
    let rows = [one, R::default()];
    narrow(&output::table(&rows, &View::plain()));
}

fn agent_of(paused: &str) -> v1::Agent {
    v1::Agent {
        name: AGENT.into(),
        city: CITY.into(),
        carrier: CARRIER.into(),
        country: "CN".into(),
        service: v1::ServiceState::Paused.into(),
        paused: paused.into(),
        quarantined: text(),
        capacity: 10_000,
        leased: 10_000,
        load_level: Some(-10_000),
        seen_at: AT,
        tags: vec![AGENT.into(); 3],
        ..v1::Agent::default()
    }
}

#[test]
fn tables_of_the_fleet_fit() {
    table(agent_of(WHY));
    table(v1::Agent { service: v1::ServiceState::NeverConnected.into(), ..agent_of("") });
    table(v1::Enrolment {
        enrolment_id: "0123456789".into(),
        name: AGENT.into(),
        city: CITY.into(),
        carrier: CARRIER.into(),
        state: v1::EnrolmentState::Revoked.into(),
        made_at: AT,
        ended_at: AT,
        replaces: true,
        ..v1::Enrolment::default()
    });
    let landmark = v1::Landmark {
        name: AGENT.into(),
        city: CITY.into(),
        carrier: CARRIER.into(),
        reason: text(),
        ..v1::Landmark::default()
    };
    table(landmark);
    table(v1::LandmarkWorth { name: AGENT.into(), nearest_to: 123_456, adds: LONG });
    let unreached = v1::UnreachedAgent { name: AGENT.into(), beacon_url: SITE.into(), port: 65_535, failure: text() };
    table(unreached);
    let epoch = v1::Epoch {
        epoch: 123_456,
        fitted_at: AT,
        reason: text(),
        agents: 100_000,
        landmarks: 1_000,
        dimensions: 100,
        mesh_error: Some(10.0),
        median_move: LONG,
        ..v1::Epoch::default()
    };
    table(epoch);
    let residual = v1::Residual { from: AGENT.into(), to: AGENT.into(), measured: LONG, predicted: LONG };
    table(residual);
    let error = v1::AgentError { agent: AGENT.into(), distances: 100_000, ..v1::AgentError::default() };
    table(error);
    let shown = v1::ShowAgentResponse {
        agent: Some(agent_of(WHY)),
        session: Some(v1::AgentSession { state: "closed".into(), end_cause: text(), ..v1::AgentSession::default() }),
        leases: vec![v1::AgentLease { site: SITE.into(), batch: BATCH.into(), token: 123, granted_at: AT }],
        refusals: vec![v1::AgentRefusal {
            kind: "future-heartbeat".into(),
            times: MANY,
            detail: text(),
            last_at: AT,
            ..v1::AgentRefusal::default()
        }],
        events: vec![event()],
    };
    let way = v1::Way {
        prober: AGENT.into(),
        target: AGENT.into(),
        beacon_url: SITE.into(),
        state: v1::WayState::Failed.into(),
        failure: Some(v1::MeasurementFailure { reason: Reason::ConnectTimeout.into(), message: text() }),
        failed_at: AT,
        next_at: AT,
        rtt: LONG,
        reached_at: AT,
    };
    table(way.clone());
    let view = View::plain();
    narrow(&view.fold(&reach::both(std::slice::from_ref(&way), &view).unwrap()));
    narrow(&agent::text(agent::Shown::new(shown, vec![way]), &view).unwrap());
}

fn event() -> v1::Event {
    v1::Event {
        at: AT,
        noun: "lease".into(),
        what: "granted".into(),
        batch: BATCH.into(),
        site: SITE.into(),
        round: 12,
        token: 123,
        agent: AGENT.into(),
        incarnation: 123_456,
        cause: text(),
        ..v1::Event::default()
    }
}

#[test]
fn answers_about_sites_fit() {
    let view = View::plain();
    narrow(&view.fold(&events::line(&event(), &view)));
    table(v1::Alarm { site: SITE.into(), since: AT, agent: AGENT.into(), message: text(), waiting: MANY });
    let measurement = v1::SiteMeasurement {
        prober: AGENT.into(),
        rtt: LONG,
        spread: LONG,
        count: 100,
        lost: 100,
        address: "2001:0db8:85a3:0000:0000:8a2e:0370:7334".into(),
        failure: text(),
        shared_from: SITE.into(),
        measured_at: AT,
        ..v1::SiteMeasurement::default()
    };
    let task = v1::SiteTask {
        batch: BATCH.into(),
        state: "failed".into(),
        reason: text(),
        agent: AGENT.into(),
        strategy: "earliest-finish".into(),
        candidates: vec![v1::Candidate { agent: AGENT.into(), predicted: LONG, measured: LONG }],
        ..v1::SiteTask::default()
    };
    let site = v1::ShowSiteResponse {
        name: SITE.into(),
        origin: SITE.into(),
        placement: Some(v1::SitePlacement { coordinate: vec![-1234.5; 24], ..v1::SitePlacement::default() }),
        measurements: vec![measurement],
        tasks: vec![task],
        ..v1::ShowSiteResponse::default()
    };
    narrow(&sites::Site::from(site).text(&view).unwrap());
    let candidate =
        v1::ExplainedCandidate { agent: AGENT.into(), predicted: LONG, measured: LONG, load_level: Some(-10_000) };
    let choice = v1::ExplainedChoice {
        assignment_id: 1_234_567_890,
        chosen_at: AT,
        agent: AGENT.into(),
        strategy: "earliest-finish".into(),
        seed: u64::MAX,
        because: text(),
        candidates: vec![candidate],
        excluded: vec![v1::ExcludedAgents { agents: vec![AGENT.into(); 12], why: text(), ..Default::default() }],
        ..v1::ExplainedChoice::default()
    };
    let task = v1::ExplainedTask { batch: BATCH.into(), choices: vec![choice], reason: text(), ..Default::default() };
    let explained = v1::ExplainResponse { site: SITE.into(), tasks: vec![task], ..v1::ExplainResponse::default() };
    narrow(&explain::Explained::from(explained).text(&view).unwrap());
}

#[test]
fn tables_of_batches_and_reports_fit() {
    let view = View::plain();
    table(v1::Batch {
        name: BATCH.into(),
        strategy: "earliest-finish".into(),
        open: MANY,
        done: MANY,
        failed: MANY,
        cancelled: MANY,
        created_at: AT,
    });
    let batch = v1::ShowBatchResponse {
        name: BATCH.into(),
        progress: Some(v1::BatchProgress { complete: MANY, failed: MANY, waiting_for: text(), ..Default::default() }),
        endings: vec![v1::Ending {
            reason: text(),
            tasks: MANY,
            kind: v1::ReasonKind::SameSite.into(),
            site: SITE.into(),
        }],
        ..v1::ShowBatchResponse::default()
    };
    narrow(&batches::text(&batch, &view).unwrap());
    let assignment = v1::AssignmentRow {
        site: SITE.into(),
        state: "done".into(),
        outcome: "truncated".into(),
        agent: AGENT.into(),
        strategy: "earliest-finish".into(),
        crawled: LONG,
        pages: u32::MAX,
        bytes: MANY,
        reason: text(),
        ..v1::AssignmentRow::default()
    };
    table(tasks::SiteRow::from(v1::AssignmentRow { state: "cancelled".into(), state_since: AT, ..assignment.clone() }));
    table(reports::AssignmentRow::from(assignment));
    let row = v1::AgentRow {
        agent: AGENT.into(),
        city: CITY.into(),
        carrier: CARRIER.into(),
        assigned: 1_234_567,
        complete: 1_234_567,
        truncated: 123_456,
        failed: 123_456,
        pages: MANY,
        bytes: MANY,
        mean_rtt: LONG,
        ..v1::AgentRow::default()
    };
    table(row);
}

#[test]
fn growth_and_plans_fit() {
    let view = View::plain();
    let grown = v1::ThroughputResponse {
        sites: MANY,
        crawled: MANY,
        begun_at: AT,
        growth: vec![
            v1::GrowthSlice {
                until: LONG,
                sites: MANY,
                pages: MANY,
                bytes: MANY,
                megabytes_per_minute: 123_456.7,
                sites_per_minute: 123_456.7,
            };
            500
        ],
        agents: vec![v1::AgentThroughput {
            agent: AGENT.into(),
            city: CITY.into(),
            carrier: CARRIER.into(),
            sites: MANY,
            pages: MANY,
            bytes: MANY,
            megabytes_per_minute: Some(123_456.7),
            busy: LONG,
            crawling: LONG,
            share: Some(1.0),
        }],
        ..v1::ThroughputResponse::default()
    };
    narrow(&throughput::text(&throughput::Shown::of(BATCH.into(), None, grown), Some(WHY), &view));
    let load = || Some(v1::PlannedLoad { sites: 123_456_789.0, share: 1.0, work: LONG, busy: LONG });
    let planned = |change: &str| v1::PlannedAgent {
        name: AGENT.into(),
        slots: 10_000,
        change: change.into(),
        before: load(),
        after: load(),
        ..v1::PlannedAgent::default()
    };
    let suggestion = v1::PlannedSuggestion {
        near: SITE.into(),
        position: Some(v1::GlobePosition { latitude: 45.812_345, longitude: 126.512_345, source: "geoip".into() }),
        gain: LONG,
        mean: LONG,
        share: 1.0,
    };
    for change in ["stays", "removed"] {
        let answer = v1::PlanResponse {
            sites: MANY,
            agents: vec![planned(change)],
            suggestions: vec![suggestion.clone()],
            left_out: vec![v1::LeftOutAgent { name: AGENT.into(), why: text() }],
            ..v1::PlanResponse::default()
        };
        narrow(&plan::text(&answer, true, &view).unwrap());
    }
}
