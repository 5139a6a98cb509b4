//! The servers that a database URL names, and the walk that finds the server to use.
//!
//! sqlx knows one server only. A URL may name several, of which at most one accepts changes: the
//! primary. Every connection of the scheduler and of its commands begins with this walk, or goes to
//! the server that the walk found last.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, Row as _};
use url::{Url, form_urlencoded};

use crate::store::rows_and_errors::Error;

/// Maximum time to reach one of several servers, and to learn whether it accepts changes. A server
/// that needs longer is passed over. The limit allows for a lost packet, and for three servers
/// within a scheduler's patience of ten seconds.
const EACH_PATIENCE: Duration = Duration::from_secs(3);
/// Maximum time to reach the only server.
const ONLY_PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of servers in a URL. More than a handful would take minutes to try.
const MOST_SERVERS: usize = 8;

/// Which of several servers is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// The first server that accepts changes. While no server does, the first that answers.
    Writable,
    /// The first server that answers.
    Any,
}

/// The servers of one database, in the order in which they are tried.
#[derive(Clone)]
pub struct Servers {
    list: Arc<[PgConnectOptions]>,
    wanted: Wanted,
    /// The index of the server that accepted changes last, which is tried first. So a deaf server
    /// at the head of the list delays only the first of all connections. Clones share the index.
    found: Arc<AtomicUsize>,
}

/// Why a text is not the URL of a database. No message repeats the URL, which may contain a
/// password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("the database URL is not a Postgres URL (postgres://USER:PASSWORD@HOST:PORT/DATABASE)")]
    NotPostgres,
    #[error("the database URL names {hosts} hosts and {ports} ports: give one port, or one for each host")]
    Ports { hosts: usize, ports: usize },
    #[error("the database URL names {0} hosts, but at most {MOST_SERVERS} are tried")]
    TooMany(usize),
    #[error(
        "target_session_attrs in the database URL must be read-write, primary or any, because a scheduler writes, but \
         is {0}"
    )]
    SessionAttributes(String),
    /// A server on another machine, and nothing that says whether it must prove its identity.
    #[error(
        "the database URL names the host {0} without sslmode: add sslmode=verify-full (with sslrootcert=FILE, if its \
         certificate is of your own authority), or say which protection is missing: sslmode=require encrypts without \
         checking the server, sslmode=prefer sends the password in clear text to a server that declines encryption"
    )]
    NoSslMode(String),
}

/// A new connection.
#[derive(Debug)]
pub struct Reached {
    pub conn: PgConnection,
    /// Whether the server accepts changes.
    pub writable: bool,
    /// How to reach the same server again.
    pub server: PgConnectOptions,
}

/// No server could be reached: each with its error.
#[derive(Debug)]
pub struct ConnectError(Vec<(String, sqlx::Error)>);

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (place, error)) in self.0.iter().enumerate() {
            f.write_str(if index == 0 { "reach the database at " } else { "; at " })?;
            match error {
                // sqlx's own message also contains a line number of Postgres' source.
                sqlx::Error::Database(said) => write!(f, "{place}: {}", said.message())?,
                error => write!(f, "{place}: {error}")?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for ConnectError {}

impl ConnectError {
    /// Whether a server, or a pooler before it, refused the beginning of the connection itself.
    pub fn is_refused_beginning(&self) -> bool {
        const PROTOCOL_VIOLATION: &str = "08P01";
        let code = |error: &sqlx::Error| Some(error.as_database_error()?.code()?.into_owned());
        self.0.iter().any(|(_, error)| code(error).as_deref() == Some(PROTOCOL_VIOLATION))
    }
}

impl From<ConnectError> for Error {
    fn from(ConnectError(tried): ConnectError) -> Self {
        tried.into_iter().next().map_or(sqlx::Error::PoolTimedOut, |(_, error)| error).into()
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list.iter().map(place)).finish()
    }
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<String> = self.list.iter().map(place).collect();
        f.write_str(&places.join(", "))
    }
}

/// Where a server is: the folder of its socket, or its host and port.
pub fn place(server: &PgConnectOptions) -> String {
    match server.get_socket() {
        Some(folder) => folder.display().to_string(),
        None => format!("{}:{}", server.get_host(), server.get_port()),
    }
}

impl From<PgConnectOptions> for Servers {
    fn from(only: PgConnectOptions) -> Self {
        Self::of(vec![only], Wanted::Any)
    }
}

impl FromStr for Servers {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let parts = UrlParts::split(text).ok_or(UrlError::NotPostgres)?;
        let several = parts.hosts.len() > 1;
        if parts.hosts.len() > MOST_SERVERS {
            return Err(UrlError::TooMany(parts.hosts.len()));
        }
        let wanted = match (parts.session_attributes.as_deref(), several) {
            (Some("read-write" | "primary"), _) | (None, true) => Wanted::Writable,
            (Some("any"), _) | (None, false) => Wanted::Any,
            (Some(other), _) => return Err(UrlError::SessionAttributes(other.to_owned())),
        };
        let urls = parts.urls()?;
        let list = urls.iter().map(PgConnectOptions::from_url).collect::<Result<Vec<_>, _>>();
        let list = list.map_err(|_| UrlError::NotPostgres)?;
        let remote = list.iter().find(|server| !is_on_this_machine(server));
        match remote {
            // sqlx reads this variable too, as libpq does.
            Some(server) if !parts.has_ssl_mode && std::env::var_os("PGSSLMODE").is_none() => {
                Err(UrlError::NoSslMode(server.get_host().to_owned()))
            }
            _ => Ok(Self::of(list, wanted)),
        }
    }
}

fn is_on_this_machine(server: &PgConnectOptions) -> bool {
    let host = server.get_host();
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    server.get_socket().is_some()
        || host.eq_ignore_ascii_case("localhost")
        || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// The parts of a URL that may name several hosts. Such a URL is not one of [`Url`], whose grammar
/// has one host.
#[derive(Debug)]
struct UrlParts<'a> {
    /// Everything before the hosts: the scheme, and the user's name and password.
    head: &'a str,
    /// Each host with its port, as text.
    hosts: Vec<(String, Option<String>)>,
    path: &'a str,
    /// The parameters that apply to every host.
    query: String,
    session_attributes: Option<String>,
    has_ssl_mode: bool,
    ports: usize,
}

impl<'a> UrlParts<'a> {
    fn split(text: &'a str) -> Option<Self> {
        let scheme = ["postgres://", "postgresql://"].into_iter().find(|scheme| text.starts_with(scheme))?;
        let text = text.split_once('#').map_or(text, |(text, _)| text);
        let authority_end = text[scheme.len()..].find(['/', '?']).map_or(text.len(), |at| scheme.len() + at);
        let (authority, rest) = text.split_at(authority_end);
        let hosts_start = authority.rfind('@').map_or(scheme.len(), |at| at + 1);
        let (head, named) = authority.split_at(hosts_start);
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut parts = Self {
            head,
            hosts: named.split(',').map(with_port).collect(),
            path,
            query: String::new(),
            session_attributes: None,
            has_ssl_mode: false,
            ports: 0,
        };
        parts.read_query(query);
        Some(parts)
    }

    /// Reads the parameters. Hosts and ports among them replace those before the path, as in libpq.
    fn read_query(&mut self, query: &str) {
        let (mut hosts, mut ports) = (None, None);
        let mut others = form_urlencoded::Serializer::new(String::new());
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*key {
                "host" => hosts = Some(value.into_owned()),
                "port" => ports = Some(value.into_owned()),
                "target_session_attrs" => self.session_attributes = Some(value.into_owned()),
                _ => {
                    self.has_ssl_mode |= matches!(&*key, "sslmode" | "ssl-mode");
                    others.append_pair(&key, &value);
                }
            }
        }
        self.query = others.finish();
        if let Some(hosts) = hosts {
            let port = self.hosts.first().and_then(|(_, port)| port.clone());
            self.hosts = hosts.split(',').map(|host| (host.to_owned(), port.clone())).collect();
        }
        if let Some(ports) = ports {
            let ports: Vec<&str> = ports.split(',').collect();
            self.ports = ports.len();
            let count = ports.len();
            for (index, (_, port)) in self.hosts.iter_mut().enumerate() {
                *port = ports.get(if count == 1 { 0 } else { index }).map(|port| (*port).to_owned());
            }
        }
    }

    /// One URL for each host.
    fn urls(&self) -> Result<Vec<Url>, UrlError> {
        if self.ports > 1 && self.ports != self.hosts.len() {
            return Err(UrlError::Ports { hosts: self.hosts.len(), ports: self.ports });
        }
        let url = |(host, port): &(String, Option<String>)| {
            // Without a host, sqlx takes the variable PGHOST, or else this machine.
            let placeholder = if host.is_empty() { "" } else { "localhost" };
            let url = format!("{}{placeholder}{}?{}", self.head, self.path, self.query);
            let mut url = Url::parse(&url).map_err(|_| UrlError::NotPostgres)?;
            if host.starts_with('/') {
                url.query_pairs_mut().append_pair("host", host);
            } else if !host.is_empty() {
                url.set_host(Some(host)).map_err(|_| UrlError::NotPostgres)?;
            }
            if let Some(port) = port.as_deref().filter(|port| !port.is_empty()) {
                let port = port.parse::<u16>().map_err(|_| UrlError::NotPostgres)?;
                url.query_pairs_mut().append_pair("port", &port.to_string());
            }
            Ok(url)
        };
        self.hosts.iter().map(url).collect()
    }
}

/// Splits `HOST:PORT`. The colons of an address of IPv6 are in brackets.
fn with_port(host: &str) -> (String, Option<String>) {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name.to_owned(), Some(port.to_owned())),
        _ => (host.to_owned(), None),
    }
}

impl Servers {
    fn of(list: Vec<PgConnectOptions>, wanted: Wanted) -> Self {
        Self { list: list.into(), wanted, found: Arc::default() }
    }

    /// Connects to the first server in the list that is of use.
    ///
    /// # Errors
    /// If no server answers.
    pub async fn connect(&self) -> Result<Reached, ConnectError> {
        let patience = if self.list.len() > 1 { EACH_PATIENCE } else { ONLY_PATIENCE };
        let (mut read_only, mut failed) = (None, Vec::new());
        let found = self.found.load(Ordering::Relaxed);
        let others = (0..self.list.len()).filter(|index| *index != found);
        for index in std::iter::once(found).chain(others) {
            let server = &self.list[index];
            let reached = match tokio::time::timeout(patience, reach(server)).await {
                Ok(Ok(reached)) => reached,
                Ok(Err(error)) => {
                    failed.push((place(server), error));
                    continue;
                }
                Err(_) => {
                    let late = io::Error::new(io::ErrorKind::TimedOut, format!("no answer in {patience:?}"));
                    failed.push((place(server), late.into()));
                    continue;
                }
            };
            if reached.writable || self.wanted == Wanted::Any {
                self.found.store(index, Ordering::Relaxed);
                return Ok(reached);
            }
            read_only.get_or_insert(reached);
        }
        read_only.ok_or(ConnectError(failed))
    }

    /// The first server in the list, for programs that walk the list themselves.
    pub fn first(&self) -> &PgConnectOptions {
        &self.list[0]
    }
}

async fn reach(server: &PgConnectOptions) -> Result<Reached, sqlx::Error> {
    let mut conn = server.connect().await?;
    let writable = !is_read_only(&mut conn).await?;
    Ok(Reached { conn, writable, server: server.clone() })
}

/// Whether the server of this connection accepts no changes: a standby, or a server that is told to
/// begin each transaction as read-only.
pub async fn is_read_only(conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
    const ASK: &str = "select pg_is_in_recovery() or current_setting('default_transaction_read_only')::boolean";
    sqlx::raw_sql(ASK).fetch_one(conn).await?.try_get(0)
}

/// Whether a pooler before the database gives the transactions of one connection to different
/// connections of its own. Then nothing that a connection remembers can be relied on: prepared
/// statements, LISTEN, and time-outs.
///
/// If the pooler does, a second connection gets the free connection that the first one had just
/// now, or the first one gets another while the second holds it.
pub async fn shares_connections(reached: &mut Reached) -> Result<bool, sqlx::Error> {
    let before = process_id(&mut reached.conn).await?;
    let mut other = reached.server.connect().await?;
    sqlx::raw_sql("begin").execute(&mut other).await?;
    let of_other = process_id(&mut other).await?;
    let after = process_id(&mut reached.conn).await?;
    sqlx::raw_sql("rollback").execute(&mut other).await?;
    other.close().await?;
    Ok(of_other == before || after != before)
}

/// The number of the process that serves a connection. The simple protocol is used, because a
/// pooler may refuse prepared statements.
async fn process_id(conn: &mut PgConnection) -> Result<i32, sqlx::Error> {
    sqlx::raw_sql("select pg_backend_pid()").fetch_one(conn).await?.try_get(0)
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;
    use tokio::net::TcpListener;

    use super::*;

    fn places(url: &str) -> String {
        url.parse::<Servers>().map_or_else(|error| format!("{error}"), |servers| servers.to_string())
    }

    #[test]
    fn a_url_names_several_servers_as_libpq_does() {
        for (url, expected) in [
            ("postgres://u@127.0.0.1/landfall", "127.0.0.1:5432"),
            ("postgresql:///landfall?host=/run/postgresql", "/run/postgresql"),
            (
                "postgres://u:p%40ss@127.0.0.1:1,127.0.0.2:2,[::1]:3/x?sslmode=require",
                "127.0.0.1:1, 127.0.0.2:2, [::1]:3",
            ),
            ("postgres://a.org,b.org:6/x?sslmode=verify-full", "a.org:5432, b.org:6"),
            ("postgres:///x?host=a.org,b.org&port=7,8&sslmode=require", "a.org:7, b.org:8"),
            ("postgres:///x?host=/run/a,localhost&port=7", "/run/a, localhost:7"),
            ("postgres://127.0.0.1,127.0.0.2/x?port=9&target_session_attrs=read-write", "127.0.0.1:9, 127.0.0.2:9"),
        ] {
            assert_eq!(places(url), expected, "{url}");
        }
        let servers: Servers = "postgres://u:p%40ss@127.0.0.1,127.0.0.2/x?application_name=a%20b".parse().unwrap();
        let second = &servers.list[1];
        assert_eq!((second.get_username(), second.get_database()), ("u", Some("x")));
        assert_eq!(second.get_application_name(), Some("a b"));
        assert_eq!((servers.wanted, format!("{servers:?}").contains("p@ss")), (Wanted::Writable, false));
    }

    #[test]
    fn a_wrong_url_is_refused_with_what_to_write() {
        for (url, expected) in [
            ("mysql://u:hunter2@127.0.0.1/landfall", "is not a Postgres URL"),
            ("landfall", "is not a Postgres URL"),
            ("", "is not a Postgres URL"),
            ("postgres://u@localhost:port/x", "is not a Postgres URL"),
            ("postgres://u@localhost:70000/x", "is not a Postgres URL"),
            ("postgres://u:hunter2@localhost,local host/x", "is not a Postgres URL"),
            ("postgres://localhost/x?sslmode=maybe", "is not a Postgres URL"),
            ("postgres:///x?host=a,b,c&port=1,2&sslmode=require", "names 3 hosts and 2 ports"),
            ("postgres://a,b,c,d,e,f,g,h,i/x?sslmode=require", "names 9 hosts, but at most 8"),
            ("postgres://localhost/x?target_session_attrs=standby", "must be read-write, primary or any"),
            (
                "postgres://u:hunter2@db.example.org/x",
                "names the host db.example.org without sslmode: add sslmode=verify-full",
            ),
            ("postgres://localhost,10.0.0.7/x", "names the host 10.0.0.7 without sslmode"),
        ] {
            let said = places(url);
            assert!(said.contains(expected) && !said.contains("hunter2"), "{url}: {said}");
        }
    }

    /// A server of the list, without and with the setting that makes it read-only.
    fn of(pool: &PgPool, read_only: bool) -> PgConnectOptions {
        let options = pool.connect_options().as_ref().clone();
        if read_only { options.options([("default_transaction_read_only", "on")]) } else { options }
    }

    #[sqlx::test(migrations = false)]
    async fn the_first_server_that_accepts_changes_is_taken_and_else_the_first_that_answers(pool: PgPool) {
        let deaf = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let deaf = PgConnectOptions::new_without_pgpass().host("127.0.0.1").port(deaf.local_addr().unwrap().port());
        let gone = PgConnectOptions::new_without_pgpass().host("127.0.0.1").port(1);
        let list =
            |list: &[&PgConnectOptions]| Servers::of(list.iter().map(|one| (*one).clone()).collect(), Wanted::Writable);
        let (primary, standby) = (of(&pool, false), of(&pool, true));
        let servers = list(&[&deaf, &gone, &standby, &primary]);
        let reached = servers.connect().await.unwrap();
        assert!(reached.writable && reached.server.get_options().is_none());
        let clone = servers.clone();
        let again = tokio::time::timeout(EACH_PATIENCE / 2, clone.connect());
        assert!(again.await.expect("the deaf server is not asked again").unwrap().writable);
        let reached = list(&[&gone, &standby, &standby]).connect().await.unwrap();
        assert!(!reached.writable, "it can be read at least");
        let any = Servers { wanted: Wanted::Any, ..list(&[&standby, &primary]) };
        assert!(!any.connect().await.unwrap().writable);
        let said = list(&[&gone, &deaf]).connect().await.unwrap_err().to_string();
        assert!(
            said.starts_with("reach the database at 127.0.0.1:1: ") && said.contains(": no answer in 3s"),
            "{said}"
        );
    }

    #[sqlx::test(migrations = false)]
    async fn connections_of_a_server_itself_are_not_shared(pool: PgPool) {
        let mut reached = Servers::from(of(&pool, false)).connect().await.unwrap();
        assert!(!shares_connections(&mut reached).await.unwrap());
    }
}
