//! The wire contract of Landfall: the messages and services of `landfall.v1`, generated from `proto/landfall/v1/*.proto`
//! by a test (`tests/contract/generated.rs`), so that no build needs the generator; how they are printed; and who it is that does not speak it.

pub mod json;
pub mod peer;

/// Package `landfall.v1`; the comments of the .proto files are its documentation.
#[expect(clippy::large_enum_variant, reason = "a header is sent once, before the chunks it is compared with")]
pub mod v1 {
    include!("../generated/landfall.v1.rs");
}
