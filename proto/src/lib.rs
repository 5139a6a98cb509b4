//! The wire contract of Landfall: the messages and services of `landfall.v1`, how they are printed
//! (`json`), how metrics and log lines are written (`metrics`, `log`), how traces are sent
//! (`traces`), and how to recognise a server that does not speak the contract (`peer`).
//!
//! A test (`tests/contract/generated.rs`) generates the code from `proto/landfall/v1/*.proto`, so
//! builds do not need the generator.

pub mod json;
pub mod log;
pub mod metrics;
pub mod peer;
pub mod traces;

/// Package `landfall.v1`, documented by the comments of the .proto files.
#[expect(clippy::large_enum_variant, reason = "a header is sent once, before the chunks it is compared with")]
pub mod v1 {
    include!("../generated/landfall.v1.rs");
}

/// The .proto files and those that they import, as an encoded `google.protobuf.FileDescriptorSet`:
/// what clients read by server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("../generated/descriptors.bin");
