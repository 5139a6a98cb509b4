//! Tests server reflection and health, with which programs discover a scheduler's services.

use std::collections::BTreeSet;

use prost::Message as _;
use prost_types::{FileDescriptorProto, FileDescriptorSet};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest as Ask;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse as Said;

use super::*;

/// Sends one request to the reflection service, with the operator's token if `secret` contains it.
async fn reflect(running: &Running, secret: Option<&MetadataValue<Ascii>>, ask: Ask) -> Result<Said, Status> {
    let asked = ServerReflectionRequest { host: String::new(), message_request: Some(ask) };
    let mut request = Request::new(tokio_stream::iter([asked]));
    if let Some(secret) = secret {
        request.metadata_mut().insert("authorization", secret.clone());
    }
    let mut client = ServerReflectionClient::new(running.channel().await);
    let mut answers = client.server_reflection_info(request).await?.into_inner();
    let answer = answers.message().await?.expect("an answer");
    Ok(answer.message_response.expect("a message"))
}

async fn services(running: &Running, secret: &MetadataValue<Ascii>) -> BTreeSet<String> {
    match reflect(running, Some(secret), Ask::ListServices(String::new())).await.expect("a list") {
        Said::ListServicesResponse(list) => list.service.into_iter().map(|service| service.name).collect(),
        other => panic!("expected services, got {other:?}"),
    }
}

async fn file(running: &Running, secret: &MetadataValue<Ascii>, ask: Ask) -> FileDescriptorProto {
    match reflect(running, Some(secret), ask).await.expect("a file") {
        Said::FileDescriptorResponse(files) => {
            FileDescriptorProto::decode(files.file_descriptor_proto[0].as_slice()).expect("a descriptor")
        }
        other => panic!("expected a file, got {other:?}"),
    }
}

async fn health(running: &Running, service: &str) -> Result<HealthCheckResponse, Status> {
    let request = HealthCheckRequest { service: service.to_owned() };
    HealthClient::new(running.channel().await).check(request).await.map(tonic::Response::into_inner)
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn an_operator_reads_every_service_and_message_by_reflection(pool: PgPool) {
    let running = Running::start(pool).await;
    let bearer = Operator::of(&running).await.bearer;
    let contract = FileDescriptorSet::decode(landfall_proto::DESCRIPTORS).expect("descriptors").file;
    let defined = contract
        .iter()
        .flat_map(|file| file.service.iter().map(|service| format!("{}.{}", file.package(), service.name())));
    let standard = ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"].map(str::to_owned);
    assert_eq!(services(&running, &bearer).await, defined.chain(standard).collect());

    // Clients ask for the file of a symbol, then for the files that it imports.
    let mut found = vec![file(&running, &bearer, Ask::FileContainingSymbol("landfall.v1.SiteService".into())).await];
    let mut next = 0;
    while next < found.len() {
        for import in found[next].dependency.clone() {
            if !found.iter().any(|file| file.name() == import) {
                found.push(file(&running, &bearer, Ask::FileByFilename(import)).await);
            }
        }
        next += 1;
    }
    assert!(found.iter().all(|file| contract.contains(file)), "they are those of the contract");
    let names: BTreeSet<_> = found.iter().map(FileDescriptorProto::name).collect();
    for name in ["landfall/v1/sites.proto", "landfall/v1/agent.proto", "google/protobuf/duration.proto"] {
        assert!(names.contains(name), "{name} is not among {names:?}");
    }

    let unknown = reflect(&running, Some(&bearer), Ask::FileContainingSymbol("landfall.v1.Nothing".into())).await;
    assert_eq!(unknown.expect_err("no such symbol").code(), Code::NotFound);
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn nobody_but_an_operator_reads_the_services(pool: PgPool) {
    let running = Running::start(pool).await;
    let agent = running.enrol("a").await.credential;
    for (secret, said) in [
        (None, "the metadata `authorization: Bearer SECRET` is missing"),
        (Some(bearer("guessed")), "the operator token is wrong"),
        (Some(bearer(&agent)), "the operator token is wrong"),
    ] {
        let refused = reflect(&running, secret.as_ref(), Ask::ListServices(String::new())).await.expect_err("refused");
        assert_eq!((refused.code(), refused.message()), (Code::Unauthenticated, said));
    }
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn everybody_may_ask_for_the_health_of_each_service(pool: PgPool) {
    let running = Running::start(pool).await;
    let bearer = Operator::of(&running).await.bearer;
    let ours = services(&running, &bearer).await.into_iter().filter(|service| service.starts_with("landfall."));
    // The empty name stands for the whole server.
    for service in ours.chain([String::new()]) {
        let answer = health(&running, &service).await.expect("an answer");
        assert_eq!(answer.status(), ServingStatus::Serving, "{service}");
    }
    assert_eq!(health(&running, "landfall.v1.Nothing").await.expect_err("unknown").code(), Code::NotFound);
    running.stop().await;
}
