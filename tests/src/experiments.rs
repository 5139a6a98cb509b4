//! Experiments that measure rates and accuracy and reproduce the paper's figures. The demo uses
//! none of them.

pub mod balance;
pub mod bench;
pub mod paper;
pub mod sweep;
