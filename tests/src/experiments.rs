//! Measurements of rates, accuracy and the paper's figures; nothing here runs in the demo.

pub mod balance;
pub mod bench;
pub mod paper;
pub mod sweep;
