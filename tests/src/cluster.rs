//! The harness of the tests and the demo: runs the real binaries in an emulated network.
//!
//! A cluster has either one scheduler with its private Postgres, or several schedulers that share a
//! Postgres started by the lab. Each agent of the scenario has a process. Agents are enrolled with
//! the operator's command, and reach only the emulated network. All files are in a temporary
//! directory. Dropping the cluster kills the processes.

mod agents;
pub mod balancer;
pub mod pooler;
pub mod postgres;
pub mod process;
mod replication;
mod running_cluster;
pub mod scheduler;
pub mod shifted_clock;
pub mod small_disks;
mod snapshot_and_restore;

pub use self::running_cluster::{Binaries, Cluster, ClusterDatabase, ClusterOptions, HURRIED};
pub use self::scheduler::CONTACT_URL;
