//! Writes the text that a scheduler prints when it starts.

use std::fmt::Write;
use std::net::SocketAddr;

use crate::app::address::local;
use crate::app::data_dir::DataDir;
use crate::app::shell_words::quoted;
use crate::grpc::Identity;
use crate::store::schema::backup_and_restore::RestoreResult;

/// The text that the scheduler prints when it starts.
pub(super) fn greeting(
    private: bool,
    has_contact: bool,
    data_dir: &DataDir,
    identity: &Identity,
    address: SocketAddr,
    (others, restored): (&[String], Option<&RestoreResult>),
) -> anyhow::Result<String> {
    let scheme = if identity.ca_fingerprint.is_some() { "https" } else { "http" };
    let mut text = String::new();
    writeln!(text, "landfall {} is listening on {scheme}://{address}", crate::VERSION)?;
    writeln!(text, "  data directory  {}", data_dir.path().display())?;
    let database = if private { "a private Postgres" } else { "the configured server" };
    writeln!(text, "  database        {database}")?;
    let dashboard = format!("{scheme}://{}", local(address));
    writeln!(text, "  dashboard       {dashboard}  (sign in with the token in operator-token in that directory)")?;
    if let Some(fingerprint) = &identity.ca_fingerprint {
        writeln!(text, "  agents dial     {}", identity.scheduler_url)?;
        writeln!(text, "  CA fingerprint  {fingerprint}")?;
    } else {
        writeln!(
            text,
            "  reach           this machine only; for agents on other machines give --listen ADDR:PORT (uses TLS)"
        )?;
    }
    if !others.is_empty() {
        writeln!(text, "  also running    {}", others.join(", "))?;
    }
    if let Some(restored) = restored {
        writeln!(text, "  database        {}", restored.sentence())?;
    }
    // For the default directory, commands do not need `--data-dir`.
    let elsewhere = match data_dir.path() {
        dir if DataDir::default_path().ok().as_deref() == Some(dir) => String::new(),
        dir => format!(" --data-dir {}", quoted(&dir.to_string_lossy())),
    };
    writeln!(text, "next, in another terminal:")?;
    if !has_contact {
        writeln!(text, "  landfall{elsewhere} contact set URL    (agents send no request to a site without one)")?;
    }
    writeln!(text, "  landfall{elsewhere} agents enrol --city CITY --carrier CARRIER")?;
    writeln!(text, "  landfall{elsewhere} sites submit FILE --batch NAME --watch")?;
    Ok(text)
}
