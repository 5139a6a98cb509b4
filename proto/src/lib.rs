//! The wire contract of Landfall: the messages and services of `landfall.v1`. The other modules
//! print messages (`json`), write metrics and log lines (`metrics`, `log`), send traces (`traces`),
//! recognise servers that are not schedulers (`foreign_server`), and find the causes of failed
//! requests (`error_causes`).
//!
//! A test (`tests/contract/generated.rs`) generates the code from `proto/landfall/v1/*.proto` and
//! compares it with the committed code, so builds do not need the generator.

pub mod error_causes;
pub mod foreign_server;
pub mod json;
pub mod log;
pub mod metrics;
pub mod traces;

/// Package `landfall.v1`. The comments of the .proto files document it.
#[expect(clippy::large_enum_variant, reason = "a header is sent once, before the chunks it is compared with")]
pub mod v1 {
    include!("../generated/landfall.v1.rs");
}

/// The .proto files and their imports, as an encoded `google.protobuf.FileDescriptorSet`. Clients
/// read it through server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("../generated/descriptors.bin");
