//! Checks the database: the programs of the private Postgres, or the operator's server; the role's
//! rights; the schema; and whether the data directory has the secrets of this database.

use std::path::{Path, PathBuf};

use chrono::{DateTime, TimeDelta, Utc};
use nix::unistd::Uid;
use sqlx::PgConnection;
use sqlx::postgres::PgConnectOptions;

use super::check_result::{CheckResult, State, in_time, reading};
use super::data_dir_and_configuration::Holder;
use crate::app::exit::sentence;
use crate::app::postgres::{CheckedPostgres, OLDEST_MAJOR, PostgresError, PrivatePostgres};
use crate::app::{start_options, token_and_client_file};
use crate::machine::clock::now;
use crate::machine::secret::SecretHash;
use crate::store::schema::migration_and_inspection::{self, SchemaState, ServerFacts};
use crate::store::servers::{self, Servers};
use crate::store::{self, settings};

const PROGRAMS: &str = "postgres";
const DATABASE: &str = "database";
const SCHEMA: &str = "schema";
const RUNBOOK: &str = "see *The scheduler does not start* in ops/RUNBOOK-scheduler.md";

#[derive(Debug)]
pub(super) struct DatabaseFacts {
    /// The programs of the private Postgres. `None` if the operator provides the server, or if this
    /// user may not use the private server.
    programs: Option<Result<CheckedPostgres, Fault>>,
    /// The server; `None` if the private server is not running, or this user may not use it.
    server: Option<Result<OpenedDatabase, Fault>>,
    /// Whether this user may use the private server. Only root and the scheduler's user may use it.
    permitted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Fault {
    text: String,
    /// The remedy; `None` if the text already contains it.
    remedy: Option<String>,
}

/// A database that answers.
#[derive(Debug)]
struct OpenedDatabase {
    at: String,
    server: ServerFacts,
    /// How far this machine's clock is ahead of the server's.
    clock_offset: TimeDelta,
    schema: Result<SchemaState, Fault>,
    /// The stored settings; `None` before the first start.
    settings: Option<StoredSettings>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct StoredSettings {
    /// The contact URL; empty if none is set.
    contact_url: String,
    /// Whether the data directory has the operator's token of this database; `None` if the database
    /// has no token yet.
    token: Option<TokenMatch>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenMatch {
    Same,
    /// The data directory has the token that was valid before the newest rotation.
    Former,
    Other,
    Missing,
}

impl Fault {
    fn new(text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { text: text.into(), remedy: Some(remedy.into()) }
    }

    /// Makes a fault from an error whose text also contains the remedy.
    fn of_sentence(error: &impl ToString) -> Self {
        Self { text: error.to_string(), remedy: None }
    }

    fn of_postgres(error: PostgresError) -> Self {
        match error {
            PostgresError::Other(error) => Self::new(sentence(&error), RUNBOOK),
            known => Self::of_sentence(&known),
        }
    }

    fn of_store(error: store::Error) -> Self {
        match error {
            store::Error::Schema(_) | store::Error::NewerSchema(_) | store::Error::HalfRestored => {
                Self::of_sentence(&error)
            }
            other => Self::new(sentence(&anyhow::Error::new(other)), RUNBOOK),
        }
    }

    fn of_check(hangs: CheckResult) -> Self {
        Self { text: hangs.text, remedy: hangs.remedy }
    }

    fn result(&self, check: &'static str) -> CheckResult {
        CheckResult { check, state: State::Wrong, text: self.text.clone(), remedy: self.remedy.clone() }
    }
}

/// Reads the facts of the operator's server at `url`. If `url` is `None`, reads the facts of the
/// data directory's private server, which runs as the user `scheduler`.
pub(super) async fn look(url: Option<&str>, data_dir: &Path, scheduler: Uid) -> DatabaseFacts {
    if let Some(url) = url {
        let opened = match start_options::database_servers(url) {
            Ok(servers) => open(&servers, data_dir).await,
            Err(error) => {
                Err(Fault::new(error.to_string(), "correct --database-url, LANDFALL_DATABASE_URL or database_url"))
            }
        };
        return DatabaseFacts { programs: None, server: Some(opened), permitted: true };
    }
    let own = Uid::effective();
    if !own.is_root() && own != scheduler {
        return DatabaseFacts { programs: None, server: None, permitted: false };
    }
    let path: PathBuf = data_dir.to_owned();
    let checked =
        reading(PROGRAMS, move || (PrivatePostgres::check(&path, scheduler), PrivatePostgres::running(&path)));
    let (programs, running) = match checked.await {
        Ok(checked) => checked,
        Err(hangs) => {
            return DatabaseFacts { programs: Some(Err(Fault::of_check(hangs))), server: None, permitted: true };
        }
    };
    let server = match running {
        Ok(None) => None,
        Ok(Some(options)) => Some(open(&options.into(), data_dir).await),
        Err(error) => {
            Some(Err(Fault::new(sentence(&error), "run this as root, or as the owner of the data directory")))
        }
    };
    DatabaseFacts { programs: Some(programs.map_err(Fault::of_postgres)), server, permitted: true }
}

async fn open(servers: &Servers, data_dir: &Path) -> Result<OpenedDatabase, Fault> {
    let asked = in_time(DATABASE, async {
        let mut reached = start_options::reach(servers).await.map_err(|error| {
            let remedy = "check that the server runs, the database URL with its role and password, and that no firewall \
                          blocks the connection";
            Fault::new(sentence(&error), remedy)
        })?;
        inspect(&mut reached.conn, &reached.server, data_dir).await.map_err(Fault::of_store)
    });
    asked.await.unwrap_or_else(|hangs| Err(Fault::of_check(hangs)))
}

async fn inspect(
    conn: &mut PgConnection,
    options: &PgConnectOptions,
    data_dir: &Path,
) -> Result<OpenedDatabase, store::Error> {
    let asked = now();
    let server = migration_and_inspection::server(conn).await?;
    let clock_offset = difference(asked, server.now, now());
    let old = u32::try_from(server.major).is_ok_and(|major| major < OLDEST_MAJOR);
    let schema = match old {
        true => Err(Fault::new("not checked, because the server is too old", "upgrade the server first")),
        false => migration_and_inspection::schema(conn, &server).await.map_err(Fault::of_store),
    };
    let settings = match schema {
        Ok(SchemaState::Current) => Some(settings_of(conn, data_dir).await?),
        _ => None,
    };
    let database = options.get_database().unwrap_or("its default database");
    let at = format!("{database} at {}", servers::place(options));
    Ok(OpenedDatabase { at, server, clock_offset, schema, settings })
}

/// How far this machine's clock is ahead of the server's, which was read between `asked` and
/// `answered`.
fn difference(asked: DateTime<Utc>, theirs: DateTime<Utc>, answered: DateTime<Utc>) -> TimeDelta {
    asked + (answered - asked) / 2 - theirs
}

async fn settings_of(conn: &mut PgConnection, data_dir: &Path) -> Result<StoredSettings, store::Error> {
    let contact_url = settings::contact_url(conn).await?.unwrap_or_default();
    let tokens = settings::operator_tokens(conn).await?;
    // If the file cannot be read, the check of the data directory reports it.
    let held = token_and_client_file::held(data_dir).ok().flatten().map(|token| SecretHash::of(&token));
    let token = tokens.in_force.map(|in_force| match held {
        None => TokenMatch::Missing,
        Some(held) if held == in_force => TokenMatch::Same,
        Some(held) if tokens.former(&held).is_some() => TokenMatch::Former,
        Some(_) => TokenMatch::Other,
    });
    Ok(StoredSettings { contact_url, token })
}

impl DatabaseFacts {
    fn opened(&self) -> Option<&OpenedDatabase> {
        self.server.as_ref()?.as_ref().ok()
    }

    pub(super) fn clock_offset(&self) -> Option<TimeDelta> {
        self.opened().map(|opened| opened.clock_offset)
    }

    /// The stored contact URL: empty if none is set, `None` if unknown.
    pub(super) fn contact_url(&self) -> Option<String> {
        Some(self.opened()?.settings.as_ref()?.contact_url.clone())
    }

    /// The results of the checks. `holder` is the process that uses the data directory.
    pub(super) fn results(&self, private: bool, holder: Option<&Holder>) -> Vec<CheckResult> {
        let mut results: Vec<CheckResult> = self.programs.iter().map(judge_programs).collect();
        let opened = match &self.server {
            Some(Ok(opened)) => opened,
            Some(Err(fault)) => {
                results.push(fault.result(DATABASE));
                return results;
            }
            None if !self.permitted => {
                results.push(CheckResult::skip(
                    DATABASE,
                    "only root and the user of the scheduler may use its private Postgres",
                ));
                return results;
            }
            None => {
                results.push(without_server(holder));
                return results;
            }
        };
        results.push(judge_server(&opened.server, &opened.at));
        results.push(judge_schema(&opened.schema));
        // With a private database, the token is not checked: the data directory's token is used
        // even if the database has another one (see `Precedence`).
        if !private {
            results.extend(opened.settings.as_ref().and_then(|settings| judge_token(settings.token)));
        }
        results
    }
}

fn judge_programs(programs: &Result<CheckedPostgres, Fault>) -> CheckResult {
    match programs {
        Err(fault) => fault.result(PROGRAMS),
        Ok(CheckedPostgres { program, major, .. }) if too_old(major) => CheckResult::wrong(
            PROGRAMS,
            format!("{} is of Postgres {major}, but {OLDEST_MAJOR} or newer is needed", program.display()),
            "install a newer one: Debian's package postgresql",
        ),
        Ok(CheckedPostgres { program, major, made }) => {
            let made = if *made { "" } else { "; the first start makes the database" };
            CheckResult::ok(PROGRAMS, format!("Postgres {major}, {}{made}", program.display()))
        }
    }
}

fn too_old(major: &str) -> bool {
    major.parse::<u32>().is_ok_and(|major| major < OLDEST_MAJOR)
}

fn without_server(holder: Option<&Holder>) -> CheckResult {
    match holder {
        None => CheckResult::skip(DATABASE, "the private Postgres does not run; each start checks its schema"),
        Some(Holder { pid, name }) => CheckResult::note(
            DATABASE,
            format!("process {pid} ({name}) uses the data directory without a private Postgres"),
            "if it is a scheduler with another database, give this command its --database-url or --config",
        ),
    }
}

fn judge_server(server: &ServerFacts, at: &str) -> CheckResult {
    let major = server.major;
    if too_old(&major.to_string()) {
        let text = format!("{at} is of Postgres {major}, but {OLDEST_MAJOR} or newer is needed");
        return CheckResult::wrong(DATABASE, text, "upgrade the server, or name another with --database-url");
    }
    CheckResult::ok(DATABASE, format!("{at} answers: Postgres {major}"))
}

fn judge_schema(schema: &Result<SchemaState, Fault>) -> CheckResult {
    match schema {
        Err(fault) => fault.result(SCHEMA),
        Ok(SchemaState::Current) => CheckResult::ok(SCHEMA, "it is this program's"),
        Ok(SchemaState::Empty) => {
            CheckResult::ok(SCHEMA, "the database is empty, and its role may create tables: the first start does")
        }
        Ok(SchemaState::Older { missing }) => CheckResult::note(
            SCHEMA,
            format!(
                "it is older than this program: the next start applies {missing} migrations, which cannot be undone"
            ),
            "make a backup before that: landfall backup FILE",
        ),
        Ok(SchemaState::Shared { table }) => CheckResult::note(
            SCHEMA,
            format!(
                "the database contains tables of another program, such as {table}: a start creates its tables beside them"
            ),
            "give landfall a database of its own (`createdb`)",
        ),
    }
}

fn judge_token(token: Option<TokenMatch>) -> Option<CheckResult> {
    const CHECK: &str = "token";
    let copy = "copy operator-token, and the folder tls if there is one, from the data directory of another scheduler of this \
                database; if they are lost, start once with --replace-secrets";
    Some(match token? {
        TokenMatch::Same => CheckResult::ok(CHECK, "the data directory has the operator's token of this database"),
        TokenMatch::Former => {
            CheckResult::note(CHECK, "the data directory has the former operator's token, which was replaced", copy)
        }
        TokenMatch::Other => {
            CheckResult::wrong(CHECK, "the database has another operator's token: a start fails", copy)
        }
        TokenMatch::Missing => CheckResult::wrong(
            CHECK,
            "another scheduler set up this database, and the data directory has no operator-token: a start fails",
            copy,
        ),
    })
}

#[cfg(test)]
mod tests {
    use sqlx::{Executor, PgPool};

    use super::*;
    use crate::app::data_dir::DataDir;
    use crate::app::doctor::State;
    use crate::app::token_and_client_file::Precedence;

    async fn opened(pool: &PgPool, data_dir: &Path) -> Vec<CheckResult> {
        let server = Some(open(&pool.connect_options().as_ref().clone().into(), data_dir).await);
        let facts = DatabaseFacts { programs: None, server, permitted: true };
        if let Some(offset) = facts.clock_offset() {
            assert!(offset.abs() < TimeDelta::seconds(10), "it is this machine's clock: {offset}");
        }
        facts.results(false, None)
    }

    fn about<'a>(results: &'a [CheckResult], check: &str) -> &'a CheckResult {
        results.iter().find(|result| result.check == check).unwrap_or_else(|| panic!("no {check} in {results:?}"))
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_database_is_judged_by_its_schema_and_by_whose_token_it_has(pool: PgPool) {
        let base = tempfile::tempdir().unwrap();
        let first = DataDir::lock(&base.path().join("first")).unwrap();
        let second = base.path().join("second");
        let results = opened(&pool, first.path()).await;
        assert_eq!((about(&results, DATABASE).state, about(&results, SCHEMA).state), (State::Ok, State::Ok));
        assert!(results.iter().all(|result| result.check != "token"), "nobody has made one yet");

        token_and_client_file::token(&crate::store::Db::of(pool.clone()), &first, Precedence::Database).await.unwrap();
        let token = async |data_dir: &Path| about(&opened(&pool, data_dir).await, "token").state;
        assert_eq!((token(first.path()).await, token(&second).await), (State::Ok, State::Wrong));
        std::fs::create_dir(&second).unwrap();
        std::fs::write(second.join("operator-token"), "another").unwrap();
        assert_eq!(token(&second).await, State::Wrong);

        pool.execute("insert into _sqlx_migrations values (2999, 'x', now(), true, '', 0)").await.unwrap();
        let results = opened(&pool, first.path()).await;
        let schema = about(&results, SCHEMA);
        assert_eq!(schema.state, State::Wrong);
        assert!(schema.text.starts_with("the database's schema is newer than this program (it has migration 2999)"));
        assert!(schema.remedy.is_none() && schema.text.ends_with(": run the newer landfall"), "{schema:?}");
    }

    #[sqlx::test(migrations = false)]
    async fn a_database_of_somebody_elses_tables_is_named(pool: PgPool) {
        pool.execute("drop schema public cascade; create schema public; create table wp_posts (title text)")
            .await
            .unwrap();
        let base = tempfile::tempdir().unwrap();
        let results = opened(&pool, base.path()).await;
        let schema = about(&results, SCHEMA);
        assert!(schema.state == State::Note && schema.text.contains("wp_posts"), "{schema:?}");
        pool.execute("create table tasks (title text)").await.unwrap();
        let results = opened(&pool, base.path()).await;
        let schema = about(&results, SCHEMA);
        assert!(schema.state == State::Wrong && schema.text.contains("of another program (it has a table tasks"));
        assert!(schema.text.ends_with(": give landfall a database of its own (`createdb`)"), "{schema:?}");
    }

    #[tokio::test]
    async fn a_database_that_cannot_be_reached_is_named_without_its_password() {
        let base = tempfile::tempdir().unwrap();
        let look = async |url: &str| look(Some(url), base.path(), Uid::effective()).await.results(false, None);
        let results = look("postgres://landfall:hunter2@127.0.0.1:1/landfall").await;
        let database = about(&results, DATABASE);
        assert!(database.state == State::Wrong && database.text.contains("127.0.0.1:1"), "{database:?}");
        assert!(!format!("{results:?}").contains("hunter2"), "{results:?}");
        let results = look("mysql://landfall:hunter2@127.0.0.1/landfall").await;
        assert!(about(&results, DATABASE).state == State::Wrong && !format!("{results:?}").contains("hunter2"));
    }

    #[test]
    fn a_server_of_postgres_before_13_is_too_old() {
        let server = |major| ServerFacts { major, read_only: false, now: DateTime::UNIX_EPOCH };
        assert_eq!(judge_server(&server(12), "x").state, State::Wrong);
        assert_eq!(judge_server(&server(13), "x").state, State::Ok);
        let programs = |major: &str| {
            Ok(CheckedPostgres { program: PathBuf::from("/x/postgres"), major: major.to_owned(), made: false })
        };
        assert_eq!(judge_programs(&programs("12")).state, State::Wrong);
        assert_eq!(judge_programs(&programs("19")).state, State::Ok);
    }

    #[test]
    fn the_clocks_are_compared_halfway_between_question_and_answer() {
        let at = |seconds| DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds);
        assert_eq!(difference(at(10), at(12), at(14)), TimeDelta::zero());
        assert_eq!(difference(at(110), at(12), at(114)), TimeDelta::seconds(100));
    }

    #[test]
    fn a_scheduler_without_a_private_server_has_another_database() {
        let facts = DatabaseFacts { programs: None, server: None, permitted: true };
        assert_eq!(facts.results(true, None)[0].state, State::Skip);
        let others = DatabaseFacts { permitted: false, ..facts };
        assert!(others.results(true, None)[0].text.starts_with("only root"));
        let facts = DatabaseFacts { permitted: true, ..others };
        let holder = Holder { pid: 7, name: "landfall".to_owned() };
        assert_eq!(facts.results(true, Some(&holder))[0].state, State::Note);
    }
}
