//! Compiles the contract without a system `protoc`.

use std::error::Error;

const FILES: [&str; 6] = [
    "landfall/v1/agent.proto",
    "landfall/v1/embeddings.proto",
    "landfall/v1/events.proto",
    "landfall/v1/fleet.proto",
    "landfall/v1/reports.proto",
    "landfall/v1/sites.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    for file in FILES {
        println!("cargo::rerun-if-changed={file}");
    }
    let descriptors = protox::compile(FILES, ["."])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
