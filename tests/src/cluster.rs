//! The harness of the tests and the demo: runs the real binaries in an emulated network.
//!
//! A cluster has either one scheduler with its private Postgres, or several schedulers that share a
//! Postgres started by the lab. Each agent of the scenario has a process. Agents are enrolled with
//! the operator's command, and reach only the emulated network. All files are in a temporary
//! directory. Dropping the cluster kills the processes.

mod agent_enrolment;
mod agent_processes;
mod await_counts;
mod binaries;
pub mod collector;
pub mod database;
mod operator_commands;
pub mod process;
mod restore;
mod running_cluster;
pub mod scheduler;
mod snapshot;
mod start;
mod stop;
pub mod with_postgres;

pub use self::binaries::Binaries;
pub use self::running_cluster::Cluster;
pub use self::scheduler::CONTACT_URL;
pub use self::start::{ClusterDatabase, ClusterOptions, HURRIED};
