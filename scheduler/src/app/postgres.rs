//! The private Postgres of `landfall up`: finds the programs, initialises the cluster, and starts,
//! watches and stops the server.
//!
//! In the data directory, Postgres uses `postgres/` (the cluster), `run/` (the socket, mode 0700;
//! the server does not listen on TCP) and `postgres.log` (the log since the newest start). The
//! server never outlives the scheduler: when the scheduler ends for any reason, the kernel sends
//! the server SIGINT (a fast shutdown), see `postgres/server_process.rs`. `fsync` stays on, so that
//! committed rows survive a crash. The module `data_dir`, not this one, ensures that only one
//! process uses the data directory.

mod account;
mod binaries;
mod cluster;
mod could_start;
mod end_cause;
mod error;
mod former_server;
mod pid_file;
mod server_process;
mod settings;
mod start_and_stop;

pub(crate) use binaries::OLDEST_MAJOR;
pub use binaries::{Tool, tool};
pub(crate) use could_start::CheckedPostgres;
pub(crate) use end_cause::LEAST_ROOM;
pub use error::PostgresError;
pub use start_and_stop::PrivatePostgres;
