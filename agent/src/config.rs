//! The agent's configuration, read from `agent.toml` and checked once. `landfall-agent enrol`
//! writes the file.
//!
//! Unknown keys are errors. Relative paths are resolved against the file's folder, unless the
//! caller gives another folder.

pub use load::{ConfigError, FILE};
pub use settings::{BadSchedulerUrl, Config, ExecConfig, SchedulerUrl, StoreConfig, parse_name_server};

pub(crate) use load::one_line;

mod load;
pub(crate) mod program;
mod settings;
