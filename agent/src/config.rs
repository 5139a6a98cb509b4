//! The agent's configuration, read from `agent.toml` and checked once. `landfall-agent enrol`
//! writes the file.
//!
//! Unknown keys are errors. Relative paths are resolved against the file's folder, unless the
//! caller gives another folder.

pub use addresses::parse_name_server;
pub use beacon::{BeaconConfig, DEFAULT_BEACON};
pub use crawls::CrawlsConfig;
pub use error::ConfigError;
pub(crate) use error::one_line;
pub use exec::ExecConfig;
pub use load::FILE;
pub use outbox::OutboxConfig;
pub use scheduler_url::{BadSchedulerUrl, SchedulerUrl};
pub use settings::{Config, DEFAULT_CAPACITY};
pub use store::StoreConfig;

mod addresses;
mod beacon;
mod crawls;
mod error;
mod exec;
mod load;
mod outbox;
pub(crate) mod program;
mod scheduler_url;
mod settings;
mod store;
mod validation;
