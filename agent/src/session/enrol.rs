//! Enrolment: exchanges a one-time token for a permanent credential, and writes the agent's folder.

pub use enrolment::Enrolment;
pub use token_exchange::enrol;

mod authority_fingerprint;
mod enrolment;
mod error;
mod settings;
#[cfg(test)]
mod tests;
mod token_exchange;
mod written_files;
