//! Tests that do not check measured times, so that they can run in parallel.

mod bad_input;
mod chaos;
mod cut_off;
mod dashboard;
mod database;
mod dropped_calls;
mod end_to_end;
mod enrolment;
mod failover;
mod fleet;
mod full_disk;
mod join_and_leave;
mod odd_sites;
mod own_crawler;
mod package;
mod paper;
mod planted_bugs;
mod prometheus;
mod python;
mod restore;
mod traces;
mod tutorial;
mod waiting;
mod wrong_invocations;
