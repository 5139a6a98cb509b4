//! Tests which caller may make which call, for every rpc of the protocol, including future ones.

use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::codegen::http;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus};

use super::*;

const CONTRACT: &str = include_str!("../../../../../proto/contract.txt");
const ENROL: &str = "/landfall.v1.AgentService/Enrol";

fn rpcs() -> Vec<String> {
    let rpcs = CONTRACT.lines().filter_map(|line| line.strip_prefix("rpc ")?.split_once(" : "));
    rpcs.filter_map(|(rpc, _)| rpc.rsplit_once('.')).map(|(service, rpc)| format!("/{service}/{rpc}")).collect()
}

/// Makes a call without a message. Returns its status.
async fn call(desk: &OperatorServer, path: &str, secret: Option<&str>) -> Status {
    let mut request = http::Request::post(path).header("content-type", "application/grpc");
    if let Some(secret) = secret {
        request = request.header("authorization", format!("Bearer {secret}"));
    }
    let mut channel = desk.channel.clone();
    std::future::poll_fn(|context| channel.poll_ready(context)).await.expect("a connection");
    let answer = channel.call(request.body(Body::empty()).expect("a request")).await.expect("an answer");
    Status::from_header_map(answer.headers()).unwrap_or_else(|| Status::ok("the stream was opened"))
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn no_call_is_answered_to_a_stranger(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    desk.agents(1).await;
    let (operator, agent) = (desk.token.reveal(), "agent0");
    let (mut of_agents, mut of_operator) = (0, 0);
    for path in rpcs().iter().filter(|path| *path != ENROL) {
        let (others, wrong) = if path.starts_with("/landfall.v1.AgentService/") {
            of_agents += 1;
            (operator, "the credential is unknown: enrol the agent again")
        } else {
            of_operator += 1;
            (agent, "the operator token is wrong")
        };
        let missing = "the metadata `authorization: Bearer SECRET` is missing";
        for (secret, message) in [(None, missing), (Some("wrong"), wrong), (Some(others), wrong)] {
            let refused = call(&desk, path, secret).await;
            assert_eq!((refused.code(), refused.message()), (Code::Unauthenticated, message), "{path} {secret:?}");
        }
    }
    assert!(of_agents >= 2 && of_operator >= 39, "{of_agents} and {of_operator}");

    // Calls without a secret are refused before any query, so they get the same status without a
    // database.
    desk.pool.close().await;
    for path in rpcs().iter().filter(|path| *path != ENROL) {
        assert_eq!(call(&desk, path, None).await.code(), Code::Unauthenticated, "{path}");
        assert_eq!(call(&desk, path, Some(operator)).await.code(), Code::Unavailable, "{path}");
    }
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_service_that_nobody_has_opened_is_the_operators(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    let path = "/landfall.v1.NewService/Call";
    assert_eq!(call(&desk, path, None).await.code(), Code::Unauthenticated);
    assert_eq!(call(&desk, path, Some(desk.token.reveal())).await.code(), Code::Unimplemented);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn health_and_enrolment_are_open_to_anybody(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    let health = HealthClient::new(desk.channel.clone()).check(HealthCheckRequest::default()).await.expect("open");
    assert_eq!(health.into_inner().status(), ServingStatus::Serving);
    let unknown = AgentServiceClient::new(desk.channel.clone()).enrol(v1::EnrolRequest::default()).await;
    assert_eq!(unknown.expect_err("no token").code(), Code::NotFound);
}
