//! Reads a scheduler's log the way a log collector does.

use std::fs::{self, File};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::{ConnectOptions as _, PgPool};

use super::serving::{Serving, client_file, landfall, until};

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn every_line_of_the_log_is_json_if_asked(pool: PgPool) {
    let url = pool.connect_options().to_url_lossy().to_string();
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("log");
    let args =
        ["serve", "--database-url", &url, "--data-dir", "one", "--listen", "127.0.0.1:0", "--log-format", "json"];
    let mut command = landfall(home.path(), &args);
    command.env("LANDFALL_LOG", "debug").stderr(File::create(&log).unwrap());
    let mut serving = Serving(command.spawn().unwrap());
    until("it serves", || !client_file(home.path(), "one").is_empty());
    kill(Pid::from_raw(serving.0.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert!(serving.0.wait().unwrap().success());
    let text = fs::read_to_string(&log).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect();
    for line in &lines {
        assert!(chrono::DateTime::parse_from_rfc3339(line["timestamp"].as_str().unwrap()).is_ok(), "{line}");
        assert!(["ERROR", "WARN", "INFO", "DEBUG"].contains(&line["level"].as_str().unwrap()), "{line}");
        assert!(line["target"].is_string() && line["message"].is_string() && line["fields"].is_object(), "{line}");
        assert!(!line["fields"]["db.statement"].as_str().unwrap_or_default().contains(' '), "{line}");
    }
    let ours = |line: &serde_json::Value| line["target"].as_str().unwrap().starts_with("landfall_scheduler");
    assert!(lines.iter().any(ours) && lines.iter().any(|line| line["fields"]["db.statement"].is_string()), "{text}");
}
