use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use indicatif::ProgressBar;
use sqlx::{ConnectOptions as _, Executor as _};
use tempfile::TempDir;

use super::backup_file::{MANIFEST, temporary, write};
use super::dump_and_secrets::DUMP;
use super::*;
use crate::app::data_dir::DataDir;
use crate::app::postgres::PrivatePostgres;
use crate::app::token_and_client_file::{self, Precedence};
use crate::store;
use crate::store::schema::backup_and_restore;

/// A directory that the user postgres may enter. If root runs the tests, the server runs as this
/// user.
fn directory() -> TempDir {
    let mut builder = tempfile::Builder::new();
    builder.prefix("landfall-backup-").permissions(Permissions::from_mode(0o755)).tempdir().unwrap()
}

/// Starts a private Postgres as a scheduler does. Returns it with the locked data directory.
async fn scheduler(base: &Path) -> (PrivatePostgres, DataDir) {
    let locked = DataDir::lock(&base.join("one")).unwrap();
    let postgres = PrivatePostgres::start(locked.path()).await.unwrap();
    let pool = store::fixtures::open(postgres.options()).await.unwrap();
    token_and_client_file::token(&store::Db::of(pool.clone()), &locked, Precedence::DataDir).await.unwrap();
    pool.execute("insert into sites (name) select 's' || n || '.test' from generate_series(1, 500) n").await.unwrap();
    pool.close().await;
    (postgres, locked)
}

fn wanted(base: &Path, file: &str) -> Backup {
    Backup {
        data_dir: Some(base.join("one")),
        database_url: None,
        file: base.join(file),
        secrets: true,
        force: false,
        progress: ProgressBar::hidden(),
    }
}

fn into(base: &Path, data_dir: &str, file: &str) -> Restore {
    Restore {
        data_dir: Some(base.join(data_dir)),
        database_url: None,
        file: base.join(file),
        secrets: true,
        progress: ProgressBar::hidden(),
    }
}

async fn refused(restore_of: Restore) -> String {
    crate::app::exit::sentence(&restore(restore_of).await.unwrap_err())
}

/// Copies a backup with a changed manifest and correct sums.
fn with_manifest(from: &Path, to: &Path, change: impl FnOnce(&mut serde_json::Value)) {
    let mut file = File::open(from).unwrap();
    let spans = backup_file::check(&mut file).unwrap();
    let mut manifest = serde_json::from_slice(&backup_file::first(&mut file, MANIFEST).unwrap()).unwrap();
    change(&mut manifest);
    let mut writer = backup_file::Writer::new(File::create(to).unwrap(), 0);
    writer.add(MANIFEST, manifest.to_string().as_bytes()).unwrap();
    for (name, span) in spans.iter().filter(|(name, _)| *name != MANIFEST) {
        writer.add(name, &backup_file::small(&mut file, *span).unwrap()).unwrap();
    }
    writer.finish().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_a_running_scheduler_comes_back_whole_and_nothing_else_does() {
    let base = directory();
    let base = base.path();
    let (postgres, locked) = scheduler(base).await;
    let made = backup(wanted(base, "b.tar")).await.unwrap();
    assert_eq!((made.sites, made.agents, made.secrets), (500, 0, true));
    assert_eq!(fs::metadata(base.join("b.tar")).unwrap().mode() & 0o777, 0o600);
    assert!(!base.join("b.tar.new").exists());
    let again = backup(wanted(base, "b.tar")).await.unwrap_err().to_string();
    assert!(again.contains("already exists") && again.contains("--force"), "{again}");
    backup(Backup { force: true, ..wanted(base, "b.tar") }).await.unwrap();
    backup(Backup { secrets: false, ..wanted(base, "bare.tar") }).await.unwrap();

    // Nothing can be restored into a scheduler's data directory, even if the scheduler has ended.
    let told = refused(into(base, "one", "b.tar")).await;
    assert!(told.contains("is in use by process"), "{told}");
    postgres.stop().await.unwrap();
    drop(locked);
    let told = refused(into(base, "one", "b.tar")).await;
    assert!(told.contains("already contains a database"), "{told}");
    // A database can also be backed up while no scheduler runs.
    backup(wanted(base, "stopped.tar")).await.unwrap();
    bad_files_change_nothing(base).await;
    bad_places_change_nothing(base).await;

    let restored = restore(into(base, "two", "b.tar")).await.unwrap();
    assert_eq!((restored.sites, restored.agents, restored.secrets, restored.private), (500, 0, true, true));
    let token = |data_dir: &str| fs::read(base.join(data_dir).join("operator-token")).unwrap();
    assert_eq!(token("one"), token("two"));
    let postgres = PrivatePostgres::start(&base.join("two")).await.unwrap();
    let pool = store::fixtures::open(postgres.options()).await.unwrap();
    let sites: i64 = sqlx::query_scalar("select count(*) from sites").fetch_one(&pool).await.unwrap();
    assert_eq!(sites, 500);
    pool.close().await;
    postgres.stop().await.unwrap();
    let restored = restore(into(base, "three", "bare.tar")).await.unwrap();
    assert!(!restored.secrets && !base.join("three/operator-token").exists());
}

async fn bad_files_change_nothing(base: &Path) {
    let (whole, bad) = (base.join("b.tar"), base.join("bad.tar"));
    let bytes = fs::read(&whole).unwrap();
    let mut damaged = bytes.clone();
    damaged[bytes.len() / 2] ^= 4;
    let cases: [(&[u8], &str); 4] = [
        (&bytes[..bytes.len() / 2], "it is truncated: it ends before SHA256SUMS"),
        (&damaged, "it is damaged: the checksum of database.dump"),
        (b"", "it is not a backup of landfall"),
        (b"no tar, surely; and longer than nothing", "it is not a backup of landfall"),
    ];
    for (content, expected) in cases {
        fs::write(&bad, content).unwrap();
        let told = refused(into(base, "never", "bad.tar")).await;
        assert!(told.contains(expected) && told.contains("bad.tar"), "{told}");
    }
    with_manifest(&whole, &bad, |manifest| manifest["format"] = 2.into());
    let told = refused(into(base, "never", "bad.tar")).await;
    assert!(told.contains("it has format 2 of landfall"), "{told}");
    with_manifest(&whole, &bad, |manifest| manifest["schema"] = 2999.into());
    let told = refused(into(base, "never", "bad.tar")).await;
    assert!(told.contains("has schema 2999") && told.contains("use the newer landfall"), "{told}");
    with_manifest(&whole, &bad, |manifest| manifest["schema"] = 20_261_124_000_321_i64.into());
    let told = refused(into(base, "never", "bad.tar")).await;
    assert!(told.contains("an earlier build of landfall with a schema (20261124000321)"), "{told}");
    with_manifest(&whole, &bad, |manifest| manifest["pg_dump"] = 99.into());
    let told = refused(into(base, "never", "bad.tar")).await;
    assert!(told.contains("but Postgres 99 is needed"), "{told}");
    let told = refused(into(base, "never", "none.tar")).await;
    assert!(told.contains("none.tar: open it: No such file"), "{told}");
    assert!(!base.join("never").exists(), "nothing is made for what cannot be restored");
    // This restore fails late, because the server's version is known only after the server has
    // started.
    with_manifest(&whole, &bad, |manifest| manifest["postgres"] = 99.into());
    let told = refused(into(base, "undone", "bad.tar")).await;
    assert!(told.contains("the backup is of Postgres 99, but the server is Postgres"), "{told}");
    assert!(!base.join("undone/postgres").exists(), "what was begun is taken away");
}

async fn bad_places_change_nothing(base: &Path) {
    let foreign = base.join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("operator-token"), "another\n").unwrap();
    for secrets in [true, false] {
        let told = refused(Restore { secrets, ..into(base, "foreign", "b.tar") }).await;
        assert!(
            told.contains("differs from the backup's: it belongs to another fleet, or was replaced since"),
            "{told}"
        );
    }
    let strange = base.join("strange");
    fs::create_dir(&strange).unwrap();
    fs::write(strange.join("thesis.txt"), "").unwrap();
    let told = refused(into(base, "strange", "b.tar")).await;
    assert!(told.contains("is not empty and was not made by landfall"), "{told}");
    let told = backup(Backup { data_dir: Some(strange), ..wanted(base, "s.tar") }).await.unwrap_err().to_string();
    assert!(told.contains("contains no private Postgres"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_of_ones_own_is_backed_up_and_restored_where_it_is_empty() {
    let base = directory();
    let base = base.path();
    let (postgres, _locked) = scheduler(base).await;
    let mut conn = postgres.options().connect().await.unwrap();
    for name in ["empty", "used", "cut"] {
        let make = sqlx::AssertSqlSafe(format!("create database {name}"));
        conn.execute(make).await.unwrap();
    }
    let socket = base.join("one/run");
    let url = |name: &str| Some(format!("postgres://postgres@localhost/{name}?host={}", socket.display()));
    let at = |name: &str| postgres.options().database(name);

    let made = backup(Backup { database_url: url("landfall"), ..wanted(base, "b.tar") }).await.unwrap();
    assert_eq!(made.sites, 500);
    let told = backup(Backup { database_url: url("empty"), ..wanted(base, "e.tar") }).await.unwrap_err().to_string();
    assert!(told.contains("contains no tables of landfall"), "{told}");
    // The token in this directory does not match the hash in the database.
    let other = Backup { database_url: url("landfall"), data_dir: Some(base.join("two")), ..wanted(base, "o.tar") };
    let told = backup(other).await.unwrap_err().to_string();
    assert!(told.contains("do not match the database"), "{told}");
    assert!(!base.join("o.tar").exists() && !base.join("o.tar.new").exists());

    let restore_into = |name: &str| Restore { database_url: url(name), ..into(base, "two", "b.tar") };
    at("used").connect().await.unwrap().execute("create table theirs ()").await.unwrap();
    let told = refused(restore_into("used")).await;
    assert!(told.contains("the database is not empty"), "{told}");
    // `backup_and_restore::begin` alone leaves the database in the same state as a restore that was
    // killed.
    let mut cut = at("cut").connect().await.unwrap();
    backup_and_restore::begin(&mut cut).await.unwrap();
    let told = refused(restore_into("cut")).await;
    assert!(told.contains("has not ended") && told.contains("restore again"), "{told}");
    let told = backup(Backup { database_url: url("cut"), ..wanted(base, "c.tar") }).await.unwrap_err().to_string();
    assert!(told.contains("has not ended"), "{told}");

    // A restore that fails leaves nothing behind, so that it can be repeated.
    let dump = base.join("dumpless.tar");
    let mut source = File::open(base.join("b.tar")).unwrap();
    let mut writer = backup_file::Writer::new(File::create(&dump).unwrap(), 0);
    writer.add(MANIFEST, &backup_file::first(&mut source, MANIFEST).unwrap()).unwrap();
    writer.add(DUMP, b"PGDMP, and then nothing that anybody wrote").unwrap();
    writer.finish().unwrap();
    let told = refused(Restore { file: dump, ..restore_into("empty") }).await;
    assert!(told.contains("pg_restore failed: pg_restore: error:"), "{told}");
    assert!(!restore(restore_into("empty")).await.unwrap().private);
    assert!(base.join("two/operator-token").exists());
    let pool = store::fixtures::open(at("empty")).await.unwrap();
    let told = backup_and_restore::take_untold(&mut pool.acquire().await.unwrap()).await.unwrap();
    assert!(told.is_some());
    pool.close().await;
    drop((conn, cut));
    postgres.stop().await.unwrap();
}

#[test]
fn a_file_is_replaced_whole_or_stays_as_it_was() {
    let base = tempfile::tempdir().unwrap();
    let file = base.path().join("b.tar");
    fs::write(&file, "former").unwrap();
    let failed = write(&file, true, |mut out| {
        io::Write::write_all(&mut out, b"half")?;
        Err::<(), _>(io::Error::from(io::ErrorKind::StorageFull).into())
    });
    let told = crate::app::exit::sentence(&failed.unwrap_err());
    assert!(told.contains("b.tar: no storage space"), "{told}");
    assert_eq!(fs::read(&file).unwrap(), b"former");
    assert!(!temporary(&file).exists());
    let meanwhile = write(&file, false, |_| Ok(())).unwrap_err();
    assert!(crate::app::exit::sentence(&meanwhile).contains("was created in the meantime"), "{meanwhile:#}");
    write(&file, true, |_| {
        let told = crate::app::exit::sentence(&write(&file, true, |_| Ok(())).unwrap_err());
        assert!(told.contains("another process is writing a backup to"), "{told}");
        Ok(())
    })
    .unwrap();
}
