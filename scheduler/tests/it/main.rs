//! Tests the scheduler from outside, through its binary, its sockets and its database. All tests
//! are in one executable.

mod cli;
mod dashboard;
mod doctor;
mod json_schema;
mod logs;
mod port;
mod postgres;
mod schema;
mod serving;
mod session;
mod terminal;
mod tls;
mod two_schedulers;
