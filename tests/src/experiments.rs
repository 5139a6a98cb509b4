//! Measurements of rates, accuracy and the paper's figures; nothing here runs in the demo.

#[cfg(feature = "experiments")]
pub mod balance;
#[cfg(feature = "experiments")]
pub mod bench;
#[cfg(feature = "experiments")]
pub mod paper;
#[cfg(feature = "experiments")]
pub mod sweep;
