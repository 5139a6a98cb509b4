//! The wire contract of Landfall: the messages and services of `landfall.v1`, generated from
//! `proto/landfall/v1/*.proto`, and nothing else.

/// Package `landfall.v1`; the comments of the .proto files are its documentation.
pub mod v1 {
    tonic::include_proto!("landfall.v1");
}
