//! The private Postgres of `landfall up`: finds the programs, initialises the cluster, and starts,
//! watches and stops the server.
//!
//! In the data directory, Postgres uses `postgres/` (the cluster), `run/` (the socket, mode 0700;
//! the server does not listen on TCP) and `postgres.log` (the log since the newest start). The
//! server never outlives the scheduler: when the scheduler ends for any reason, the kernel sends
//! the server SIGINT (a fast shutdown), see `postgres/server.rs`. `fsync` stays on, so that
//! committed rows survive a crash. The module `data_dir`, not this one, ensures that only one
//! process uses the data directory.

mod cluster;
mod programs_and_user;
mod server;

pub(crate) use cluster::LEAST_ROOM;
pub(crate) use programs_and_user::OLDEST_MAJOR;
pub use programs_and_user::{PostgresError, Tool, tool};
pub(crate) use server::CheckedPostgres;
pub use server::PrivatePostgres;
