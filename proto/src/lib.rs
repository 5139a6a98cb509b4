//! The wire contract of Landfall: the messages and services of `landfall.v1`, generated from
//! `proto/landfall/v1/*.proto`, and nothing else.

/// Package `landfall.v1`.
#[expect(missing_docs, clippy::all, reason = "generated code; the comments of the .proto files are its documentation")]
pub mod v1 {
    tonic::include_proto!("landfall.v1");
}
