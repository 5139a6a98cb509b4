//! Tests the content of the packages as far as possible without a build. `make check-package` tests
//! the built packages.

use std::path::{Path, PathBuf};
use std::process::Command;

const PACKAGES: [&str; 2] = ["landfall", "landfall-agent"];
const NUMBER: &str = env!("CARGO_PKG_VERSION");

fn ops(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops").join(file)
}

fn read(file: &str) -> String {
    std::fs::read_to_string(ops(file)).unwrap()
}

/// Runs a command that must succeed, and returns its output.
fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn units_name_the_users_folders_and_files_of_the_packages() {
    let script = read("package.sh");
    for package in PACKAGES {
        let unit = read(&format!("systemd/{package}.service"));
        let value = |key: &str| unit.lines().find_map(|line| line.strip_prefix(&format!("{key}="))).unwrap();
        assert_eq!((value("User"), value("StateDirectory")), (package, package));
        let start: Vec<&str> = value("ExecStart").split_whitespace().collect();
        assert_eq!(start[0], format!("/usr/local/bin/{package}"), "package.sh replaces this folder");
        assert!(start.contains(&&*format!("/var/lib/{package}")), "{start:?}");
        // `useradd` must create no home folder. The folder would contain the files of /etc/skel,
        // but a scheduler refuses a data directory with unknown files.
        assert!(
            unit.contains(&format!("useradd --system --user-group --no-create-home --home-dir /var/lib/{package} "))
        );
        // The package's scripts recognise a running service by its subcommand: `run`, `up` or
        // `serve`.
        assert!(read("package/prerm").contains("'run|up|serve'") && ["run", "up", "serve"].contains(&start[1]));
        for path in start.iter().filter(|word| word.starts_with("/etc/")) {
            assert!(script.contains(&format!("$root{path}")), "{path} is in no package");
        }
    }
    for (script, parts) in [
        ("postinst", vec!["user-group", "/var/lib/$package", "-m 0700"]),
        ("prerm", vec!["/usr/bin/$package"]),
        ("postrm", vec!["purge"]),
    ] {
        let text = read(&format!("package/{script}"));
        assert!(parts.iter().all(|part| text.contains(part)), "{script}");
        printed(Command::new("sh").arg("-n").arg(ops(&format!("package/{script}"))));
    }
}

#[test]
fn a_version_names_the_commit_and_its_date_or_that_there_is_no_git() {
    let repository = ops("..").canonicalize().unwrap();
    let of = |folder: &Path| printed(Command::new(folder.join("ops/package.sh")).arg("--version"));
    let git = Command::new("git").arg("-C").arg(&repository).args(["rev-parse", "--show-toplevel"]).output();
    if git.is_ok_and(|git| String::from_utf8_lossy(&git.stdout).trim() == repository.to_string_lossy()) {
        let said = of(&repository);
        let lines: Vec<&str> = said.lines().collect();
        let [long, version, package] = lines[..] else { panic!("{said}") };
        let commit = version.strip_prefix(&format!("{NUMBER}+")).unwrap().trim_end_matches(".changed");
        assert!(commit.len() >= 8 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()), "{said}");
        let day = long.strip_prefix(&format!("{version} (")).unwrap().strip_suffix(')').unwrap();
        assert!(day.len() == 10 && day.split('-').map(str::len).eq([4, 2, 2]), "{said}");
        assert!(package.starts_with(&format!("{NUMBER}+{}.", day.replace('-', ""))), "{said}");
    } else {
        println!("skipped: this is no git checkout");
    }

    let copy = tempfile::tempdir().unwrap();
    std::fs::create_dir(copy.path().join("ops")).unwrap();
    for file in ["Cargo.toml", "Cargo.lock", "ops/package.sh"] {
        std::fs::copy(repository.join(file), copy.path().join(file)).unwrap();
    }
    let mut outside = Command::new(copy.path().join("ops/package.sh"));
    let said = printed(outside.arg("--version").env("SOURCE_DATE_EPOCH", "86400"));
    assert_eq!(said, format!("{NUMBER} (1970-01-02, built outside of git)\n{NUMBER}\n{NUMBER}+19700102.000000\n"));
}

#[test]
fn a_build_by_hand_has_no_commit() {
    for package in PACKAGES {
        let binary = Path::new(env!("CARGO_BIN_EXE_lab")).with_file_name(package);
        let said = printed(Command::new(binary).arg("--version"));
        assert_eq!(said, format!("{package} {NUMBER} (built by hand: the commit was not recorded)\n"));
    }
}
