//! The scheduler from outside: its binary, its sockets and its database, in one executable.

mod cli;
mod postgres;
mod schema;
mod session;
mod tls;
mod two_schedulers;
