//! Wake-up signals. With these signals, the modules `grpc` and `jobs` make each other read the
//! store immediately, both in this scheduler and in the others.
//!
//! A signal contains no data: the woken background task reads its work from Postgres. Every
//! background task also reads Postgres periodically, so a lost signal only delays the work. The
//! [`notifier`] collects the signals for other schedulers and sends them together.

pub(crate) mod database_watch;
pub mod notifier;
mod signals;
mod task_roles;

pub use database_watch::DatabaseState;
pub use signals::Wakes;
pub use task_roles::Task;
