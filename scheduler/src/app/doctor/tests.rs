use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use chrono::TimeDelta;
use nix::unistd::Uid;

use super::check_result::PATIENCE;
use super::data_dir_and_configuration::{AccountFacts, judge_user};
use super::host_name_and_clock::{Resolved, judge_clock, judge_name, resolve};
use super::*;
use crate::app::address::AdvertisedAddress;
use crate::app::start_options::Options;

#[test]
fn a_user_is_judged_by_who_owns_the_data_directory_and_by_the_port() {
    let (root, landfall, other) = (Uid::from_raw(0), Uid::from_raw(997), Uid::from_raw(1000));
    let judged = |own: Uid, scheduler: Uid, needs| {
        let named = |uid: Uid| (uid, format!("user-{uid}"));
        judge_user(&AccountFacts { own: named(own), scheduler: named(scheduler), needs, first_port: 1024 })
    };
    for (own, scheduler, needs, state, said) in [
        (root, root, Some((443, true)), State::Ok, "its private Postgres as the user postgres"),
        (root, landfall, Some((7171, true)), State::Ok, "who owns the data directory; you are root"),
        (landfall, landfall, None, State::Ok, "runs as user-997"),
        (landfall, landfall, Some((443, false)), State::Wrong, "may not listen on port 443"),
        (root, landfall, Some((443, false)), State::Wrong, "user-997 may not listen on port 443"),
        (other, landfall, Some((7171, true)), State::Wrong, "you are user-1000, but the data directory"),
    ] {
        let judged = judged(own, scheduler, needs);
        assert!(judged.state == state && judged.text.contains(said), "{judged:?}");
    }
}

#[test]
fn a_clock_may_be_off_by_a_minute() {
    let seconds = |seconds| Some(TimeDelta::seconds(seconds));
    for (synchronised, offset, state) in [
        (Some(true), seconds(-59), State::Ok),
        (None, seconds(0), State::Ok),
        (Some(true), seconds(-61), State::Wrong),
        (Some(false), seconds(61), State::Wrong),
        (Some(false), seconds(0), State::Note),
        (Some(true), None, State::Ok),
        (None, None, State::Skip),
    ] {
        let judged = judge_clock(synchronised, offset);
        assert_eq!(judged.state, state, "{judged:?}");
    }
}

#[test]
fn a_name_is_judged_by_where_it_leads_from_this_machine() {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let to = |addresses: &[(&str, bool)]| {
        Ok(Resolved::To(addresses.iter().map(|(address, here)| (ip(address), *here)).collect()))
    };
    let (any, one) = ("0.0.0.0:7171", "203.0.113.5:7171");
    let refused = Ok(Resolved::Failed("Name or service not known".to_owned()));
    for (dialled, advertised, listen, resolved, state, said) in [
        (
            "s.example.org:7171",
            true,
            any,
            to(&[("203.0.113.5", true)]),
            State::Ok,
            "s.example.org:7171, which is 203.0.113.5",
        ),
        ("s.example.org:7171", true, any, to(&[("203.0.113.5", false)]), State::Ok, "must be forwarded"),
        ("s.example.org:7171", true, any, refused, State::Wrong, "does not resolve here: Name or service"),
        ("s.example.org:7171", true, any, to(&[("127.0.1.1", true)]), State::Note, "only loopback"),
        ("127.0.0.1:7171", true, any, to(&[("127.0.0.1", true)]), State::Wrong, "only loopback"),
        ("machine:7171", false, any, to(&[("203.0.113.5", true)]), State::Note, "this machine's own name"),
        ("203.0.113.5:7171", false, one, to(&[("203.0.113.5", true)]), State::Ok, "https://203.0.113.5:7171"),
    ] {
        let (dialled, listen): (AdvertisedAddress, SocketAddr) = (dialled.parse().unwrap(), listen.parse().unwrap());
        let judged = judge_name(&dialled, advertised, listen, &resolved);
        assert!(judged.state == state && judged.text.contains(said), "{judged:?}");
    }
}

#[tokio::test]
async fn addresses_of_this_machine_are_told_from_others() {
    assert_eq!(resolve("127.0.0.1").await, Ok(Resolved::To(vec![("127.0.0.1".parse().unwrap(), true)])));
    // No machine has an address of TEST-NET-1 (RFC 5737).
    assert_eq!(resolve("192.0.2.1").await, Ok(Resolved::To(vec![("192.0.2.1".parse().unwrap(), false)])));
}

#[tokio::test]
async fn an_invalid_configuration_is_named_with_its_line_and_the_other_checks_run() {
    let base = tempfile::tempdir().unwrap();
    let file = base.path().join("landfall.toml");
    let options =
        Options { data_dir: Some(base.path().join("data")), config: Some(file.clone()), ..Options::default() };
    for (text, said) in [
        ("\n[lease]\nlive = \"30s\"\n", "landfall.toml:3: unknown field `live`"),
        ("[lease]\ngrace = \"2m\"\n", "lease.grace must be 100ms to 1m, but is 2m"),
        ("geoip = \"missing.mmdb\"\n", "read the GeoIP file missing.mmdb"),
    ] {
        std::fs::write(&file, text).unwrap();
        let found = examine(&options).await.results;
        assert!(found[0].state == State::Wrong && found[0].text.contains(said), "{found:?}");
        assert!(found.iter().any(|result| result.check == "data dir" && result.state != State::Wrong), "{found:?}");
        assert!(found.iter().any(|result| result.state == State::Skip), "{found:?}");
    }
    std::fs::remove_file(&file).unwrap();
    let found = examine(&options).await.results;
    assert!(found[0].state == State::Wrong && found[0].text.contains("read the configuration"), "{found:?}");
}

#[tokio::test]
async fn a_silent_database_does_not_hold_up_the_other_checks() {
    // This server accepts connections and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let base = tempfile::tempdir().unwrap();
    let file = base.path().join("landfall.toml");
    let at = silent.local_addr().unwrap();
    std::fs::write(&file, format!("listen = \"{at}\"\ndatabase_url = \"postgres://u@{at}/x\"\n")).unwrap();
    let options = Options { data_dir: Some(base.path().join("data")), config: Some(file), ..Options::default() };
    let begun = Instant::now();
    let found = examine(&options).await;
    assert!(begun.elapsed() < 2 * PATIENCE, "{:?}", begun.elapsed());
    assert!(!found.answers);
    for check in ["database", "port"] {
        let wrong = found.results.iter().any(|result| result.check == check && result.state == State::Wrong);
        assert!(wrong, "{check} in {:?}", found.results);
    }
    assert!(!base.path().join("data").exists(), "nothing was made");
}
