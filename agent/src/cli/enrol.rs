//! `landfall-agent enrol`: reads the one-time token, enrols the agent, and prints what the operator
//! can do next.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;

use super::exit;
use super::run::{as_owner, start_command};
use crate::disk::folder;
use crate::session::enrol::enrol;
use crate::session::enrolment_files::Enrolment;

/// Maximum number of bytes to read from a token file. A token has 64 bytes.
const MOST_TOKEN: u64 = 4096;

#[derive(Debug, Args)]
pub(super) struct EnrolArgs {
    /// The scheduler's URL: https://host:port, or http:// on loopback. Separate the URLs of several
    /// schedulers with commas, or repeat the flag.
    #[arg(long, value_name = "URL", value_delimiter = ',', required = true)]
    scheduler: Vec<String>,
    #[command(flatten)]
    token: TokenArgs,
    /// SHA-256 of the scheduler's certificate authority, as `landfall agents enrol` prints it;
    /// required for https.
    #[arg(long, value_name = "HEX")]
    ca_fingerprint: Option<String>,
    /// The agent's folder [default: /var/lib/landfall-agent for root and for the folder's owner,
    /// otherwise ~/.local/share/landfall-agent]
    #[arg(long, env = "LANDFALL_AGENT_DIR", value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The URL at which site owners can contact you; every request carries it [default: the
    /// scheduler's]
    #[arg(long, env = "LANDFALL_CONTACT_URL", value_name = "URL")]
    contact_url: Option<String>,
    /// Replace an existing enrolment; the other settings in agent.toml are kept.
    #[arg(long)]
    force: bool,
}

/// The one-time token that `landfall agents enrol` made, given in one of two ways.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct TokenArgs {
    /// The file with the one-time token, or - for standard input.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The one-time token itself. Every user of the machine can read command lines, so prefer
    /// --token-file.
    #[arg(long)]
    token: Option<String>,
}

impl TokenArgs {
    fn read(self) -> anyhow::Result<String> {
        let Some(file) = self.token_file else { return Ok(self.token.unwrap_or_default()) };
        let (name, mut source): (_, Box<dyn Read>) = match file.as_os_str() == "-" {
            true => ("standard input".to_owned(), Box::new(std::io::stdin())),
            false => {
                let name = file.display().to_string();
                let opened = File::open(&file).with_context(|| format!("--token-file: read {name}"))?;
                (name, Box::new(opened))
            }
        };
        let mut text = String::new();
        let read = source.by_ref().take(MOST_TOKEN).read_to_string(&mut text);
        read.with_context(|| format!("--token-file: read {name}"))?;
        let mut words = text.split_whitespace();
        match (words.next(), words.next()) {
            (Some(token), None) => Ok(token.to_owned()),
            (None, _) => Err(exit::usage(format!("--token-file: {name} is empty; it must contain only the token"))),
            (Some(_), Some(_)) => Err(exit::usage(format!(
                "--token-file: {name} contains more than one word; it must contain only the token"
            ))),
        }
    }
}

pub(super) async fn enrol_agent(args: EnrolArgs) -> anyhow::Result<()> {
    let dir = args.dir.unwrap_or_else(folder::default_dir);
    let enrolment = Enrolment {
        schedulers: args.scheduler,
        token: args.token.read()?,
        ca_fingerprint: args.ca_fingerprint,
        dir: dir.clone(),
        contact_url: args.contact_url,
        force: args.force,
    };
    let (file, config) = enrol(&enrolment).await?;
    println!("enrolled {} ({}, {}): wrote {}", config.name, config.city, config.carrier, file.display());
    println!("{}", next_steps(&dir, &file));
    Ok(())
}

/// The text printed after an enrolment: what the operator can do next.
fn next_steps(dir: &Path, file: &Path) -> String {
    format!(
        "to keep pages, or to change other settings: {}\nstart it with: {}\ncheck it with: {}",
        file.display(),
        start_command(dir),
        as_owner(dir, "doctor")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_an_enrolment_the_next_steps_name_the_folder() {
        let steps = next_steps(Path::new("harbin"), Path::new("harbin/agent.toml"));
        let lines: Vec<&str> = steps.lines().collect();
        assert!(lines[0].ends_with(": harbin/agent.toml"), "{steps}");
        assert_eq!(
            lines[1..],
            ["start it with: landfall-agent run --dir harbin", "check it with: landfall-agent doctor --dir harbin"]
        );
    }
}
