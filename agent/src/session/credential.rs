//! Reads the credential with which the agent opens sessions.

use std::path::PathBuf;

use tonic::metadata::{Ascii, MetadataValue};

#[derive(Debug, thiserror::Error)]
#[error("{0} contains no credential: enrol the agent again")]
pub struct BadCredential(pub PathBuf);

pub fn bearer(credential: &str, file: &std::path::Path) -> Result<MetadataValue<Ascii>, BadCredential> {
    let text = credential.trim();
    let mut value = MetadataValue::try_from(format!("Bearer {text}")).map_err(|_| BadCredential(file.to_owned()))?;
    if text.is_empty() {
        return Err(BadCredential(file.to_owned()));
    }
    value.set_sensitive(true);
    Ok(value)
}
