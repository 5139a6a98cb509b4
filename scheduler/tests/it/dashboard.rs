//! Reads and uses the dashboard over its socket, as browsers and attackers do.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use sqlx::{ConnectOptions as _, PgPool};

use super::json_schema::differences;
use super::serving::{Serving, ask, client_file, serve, until};

/// Time limit of every answer. It is longer than a minute, because the dashboard may keep a page
/// for a minute before it draws the page again.
const PATIENCE: Duration = Duration::from_secs(90);

/// A scheduler, and the data with which a browser uses its dashboard.
struct Dashboard {
    scheduler: Serving,
    home: PathBuf,
    /// Host and port.
    address: String,
    token: String,
    pool: PgPool,
    _folder: tempfile::TempDir,
}

#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value).next().unwrap_or_default()
    }

    /// The cookie that the answer sets.
    fn cookie(&self) -> String {
        self.header("set-cookie").split(';').next().unwrap().to_owned()
    }

    /// The value of the hidden field `form` in the page's first form.
    fn form(&self) -> String {
        let (_, rest) = self.body.split_once("name=\"form\" value=\"").expect("a form");
        rest.split('"').next().unwrap().to_owned()
    }
}

impl Dashboard {
    fn start(pool: PgPool) -> Self {
        let url = pool.connect_options().to_url_lossy().to_string();
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_owned();
        let scheduler = serve(&home, &url, "one");
        let file = client_file(&home, "one");
        let value = |key: &str| file.lines().find_map(|line| line.strip_prefix(key)).unwrap().replace('"', "");
        let address = value("scheduler = ").replace("http://", "");
        let token = value("token = ");
        let dashboard = Self { scheduler, home, address, token, pool, _folder: folder };
        until("it answers", || dashboard.get("/health/ready", &[]).status == 200);
        dashboard
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut stream = self.connect();
        let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| *name == "host") {
            head.push_str(&format!("host: {}\r\n", self.address));
        }
        headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        stream.write_all(format!("{head}\r\n{body}").as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer to {path}: {text}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.send("GET", path, headers, "")
    }

    fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        self.send("POST", path, headers, body)
    }

    /// Signs in; returns the cookie.
    fn sign_in(&self) -> String {
        let answer = self.post("/sign-in", &[], &format!("token={}&to=/fleet", self.token));
        assert_eq!((answer.status, answer.header("location")), (303, "/fleet"), "{answer:?}");
        let set = answer.header("set-cookie");
        assert!(set.contains("HttpOnly") && set.contains("SameSite=Strict"), "{set}");
        answer.cookie()
    }

    async fn run(&self, statement: &'static str) {
        sqlx::query(statement).execute(&self.pool).await.unwrap();
    }

    /// Stores an agent, a batch and a site, all with hostile names.
    async fn fill(&self) {
        self.run(
            "insert into agents (name, city, carrier, capacity, credential_hash)
             values ('<script>alert(1)</script>', '<b>X', 'C', 4, decode(repeat('00', 32), 'hex'))",
        )
        .await;
        self.run("insert into batches (name, strategy) values ('autumn', 'random')").await;
        self.run("insert into sites (name) values ('a.example')").await;
        self.run(
            "insert into tasks (batch_id, site_id, state, reason, reason_kind)
             select b.id, s.id, 'failed', '<img src=x onerror=alert(1)>', 'guard' from batches b, sites s",
        )
        .await;
    }
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn pages_are_for_operators_who_signed_in(pool: PgPool) {
    let dashboard = Dashboard::start(pool);
    dashboard.fill().await;
    for path in ["/", "/map", "/fleet", "/batches/autumn", "/live?page=/"] {
        let answer = dashboard.get(path, &[]);
        assert_eq!(answer.status, 303, "{path}");
        assert!(answer.header("location").starts_with("/sign-in?to="), "{answer:?}");
    }
    let wrong = dashboard.post("/sign-in", &[], "token=guess");
    assert_eq!((wrong.status, wrong.header("set-cookie")), (401, ""));
    assert!(wrong.body.contains("the operator token is wrong"), "{wrong:?}");

    let cookie = dashboard.sign_in();
    let cookie = [("cookie", cookie.as_str())];
    let agent = "/agents/%3Cscript%3Ealert%281%29%3C%2Fscript%3E";
    let site = "/site?name=a.example";
    for path in ["/", "/map", "/map?view=globe", "/fleet", agent, "/batches", "/batches/autumn", site, "/trends"] {
        let answer = dashboard.get(path, &cookie);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        assert!(answer.body.len() < 500_000, "{path} weighs {}", answer.body.len());
        let body = &answer.body;
        assert!(!body.contains("<script>") && !body.contains("<img") && !body.contains("<b>X"), "{path}: {body}");
        assert!(answer.header("content-security-policy").contains("default-src 'none'"), "{path}: {}", answer.head);
    }
    for (path, status) in [("/nothing", 404), ("/agents/nobody", 404), ("/map?epoch=7", 404), ("/map?epoch=x", 404)] {
        assert_eq!(dashboard.get(path, &cookie).status, status, "{path}");
    }
    let foreign = dashboard.get("/", &[("host", "evil.example"), cookie[0]]);
    assert_eq!(foreign.status, 421, "{foreign:?}");

    // The cookie becomes invalid when the token is replaced.
    dashboard.run("update settings set operator_token_hash = decode(repeat('ab', 32), 'hex')").await;
    assert_eq!(dashboard.get("/", &cookie).status, 303);
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn only_forms_of_the_dashboard_change_something(pool: PgPool) {
    let dashboard = Dashboard::start(pool);
    dashboard.fill().await;
    let cookie = dashboard.sign_in();
    let cookie = ("cookie", cookie.as_str());
    let page = "/agents/%3Cscript%3Ealert%281%29%3C%2Fscript%3E";
    let drain = format!("{page}/drain");
    let form = format!("form={}", dashboard.get(page, &[cookie]).form());
    let bearer = format!("Bearer {}", dashboard.token);
    let refused: [(&[(&str, &str)], &str); 5] = [
        (&[cookie], ""),
        (&[cookie], "form=00"),
        (&[cookie, ("origin", "http://evil.example")], &form),
        (&[cookie, ("sec-fetch-site", "cross-site")], &form),
        (&[("authorization", &bearer)], "form="),
    ];
    for (headers, body) in refused {
        assert_eq!(dashboard.post(&drain, headers, body).status, 403, "{headers:?}");
    }
    assert_eq!(dashboard.post(&drain, &[], &form).header("location"), "/sign-in?to=%2F", "a guest signs in first");
    let draining = "select draining_since is not null from agents";
    assert!(!sqlx::query_scalar::<_, bool>(draining).fetch_one(&dashboard.pool).await.unwrap());
    let done = dashboard.post(&drain, &[cookie], &form);
    assert_eq!((done.status, done.header("location")), (303, format!("{page}?done=drain").as_str()), "{done:?}");
    assert!(sqlx::query_scalar::<_, bool>(draining).fetch_one(&dashboard.pool).await.unwrap());
    assert!(dashboard.get(&format!("{page}?done=drain"), &[cookie]).body.contains("Done: drain."));
    let unknown = dashboard.post("/agents/nobody/drain", &[cookie], &form);
    assert_eq!(unknown.status, 404, "{unknown:?}");
    let large = format!("{form}&x={}", "x".repeat(20_000));
    assert_eq!(dashboard.post(&drain, &[cookie], &large).status, 413);

    let retry = dashboard.post("/batches/autumn/retry", &[cookie], &form);
    assert_eq!(retry.status, 303, "{retry:?}");
    let rounds: i64 = sqlx::query_scalar("select count(*) from tasks").fetch_one(&dashboard.pool).await.unwrap();
    assert_eq!(rounds, 2);
    let out = dashboard.post("/sign-out", &[cookie], &form);
    assert!(out.header("set-cookie").starts_with("landfall=; ") && out.header("set-cookie").contains("Max-Age=0"));
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn a_watched_page_changes_by_itself(pool: PgPool) {
    let dashboard = Dashboard::start(pool);
    let cookie = dashboard.sign_in();
    let mut stream = dashboard.connect();
    let head = format!("GET /live?page=/fleet HTTP/1.1\r\nhost: {}\r\ncookie: {cookie}\r\n\r\n", dashboard.address);
    stream.write_all(head.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("No agents yet")), "the first drawing");
    dashboard.fill().await;
    let changed = lines.find(|line| line.contains("alert(1)")).unwrap();
    assert!(changed.contains("&lt;script&gt;alert(1)"), "{changed}");
    let cookie = [("cookie", cookie.as_str())];
    assert_eq!(dashboard.get("/live?page=/nothing", &cookie).status, 404);
    // The page of an unknown agent sends one event, `gone`, and is not drawn again.
    let mut stream = dashboard.connect();
    let head = format!("GET /live?page=/agents/nobody HTTP/1.1\r\nhost: {}\r\n", dashboard.address);
    stream.write_all(format!("{head}{}: {}\r\n\r\n", cookie[0].0, cookie[0].1).as_bytes()).unwrap();
    assert!(BufReader::new(stream).lines().map(Result::unwrap).any(|line| line == "event: gone"));
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn programs_get_the_same_data_as_json(pool: PgPool) {
    let dashboard = Dashboard::start(pool);
    dashboard.fill().await;
    let bearer = format!("Bearer {}", dashboard.token);
    let bearer = [("authorization", bearer.as_str())];
    let json = |path: &str| -> serde_json::Value {
        let answer = dashboard.get(path, &bearer);
        assert_eq!((answer.status, answer.header("content-type")), (200, "application/json"), "{path}: {answer:?}");
        serde_json::from_str(&answer.body).unwrap()
    };
    let described = json("/api/v1/openapi.json");
    for path in described["paths"].as_object().unwrap().keys() {
        let value = json(&path.replace("{name}", "autumn").replace("/explanation", "/explanation?site=a.example"));
        let schema = &described["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"];
        assert_eq!(differences(&value, schema, &described), Vec::<String>::new(), "{path}: {value}");
    }
    assert_eq!(json("/api/v1/agents")[0]["city"], "<b>X");
    for (path, headers, status) in [
        ("/api/v1/status", &[][..], 401),
        ("/api/v1/status", &[("authorization", "Bearer guess")], 401),
        ("/api/v1/nothing", &bearer, 404),
        ("/api/v1/batches/nothing/throughput", &bearer, 404),
        ("/api/v1/explanation", &bearer, 400),
    ] {
        let answer = dashboard.get(path, headers);
        let said: serde_json::Value =
            serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{path}: {error}: {answer:?}"));
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        assert!(!said["error"].as_str().unwrap().is_empty(), "{path}");
    }
    assert_eq!(dashboard.get("/health/live", &[]).body, "live\n");
    let metrics = dashboard.get("/metrics", &[]);
    assert!(metrics.status == 200 && metrics.body.contains("landfall_agents{service=\"never-connected\"} 1\n"));
    assert!(dashboard.home.exists());
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn commands_answer_as_their_json_schemas_say(pool: PgPool) {
    let dashboard = Dashboard::start(pool);
    dashboard.fill().await;
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/json-schemas.json");
    let document: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    // An event is visible only when the transactions of other tests that began before it have ended.
    let events = ["events", "--format", "json", "--data-dir", "one"];
    until("an event to be visible", || !ask(&dashboard.home, &events).out.is_empty());
    let empty = ["landmarks list", "embedding history", "sites circuits", "agents tokens", "report accuracy --by city"];
    for command in [
        "agents list",
        "agents tokens",
        "batches list",
        "batches show autumn",
        "contact show",
        "embedding history",
        "events",
        "explain a.example",
        "landmarks list",
        "report accuracy --by city",
        "report agents",
        "report assignments --batch autumn",
        "report failures --by city",
        "report throughput --batch autumn",
        "sites circuits",
        "sites list --batch autumn",
        "sites show a.example",
        "status",
    ] {
        let words: Vec<&str> = command.split(' ').chain(["--format", "json", "--data-dir", "one"]).collect();
        let ran = ask(&dashboard.home, &words);
        assert_eq!(ran.code, 0, "{command}: {}", ran.err);
        // Events are printed as one object per line, lists as one array.
        let values = serde_json::Deserializer::from_str(&ran.out).into_iter::<serde_json::Value>();
        let rows: Vec<serde_json::Value> = values
            .flat_map(|value| match value.unwrap() {
                serde_json::Value::Array(rows) => rows,
                one => vec![one],
            })
            .collect();
        assert_eq!(rows.is_empty(), empty.contains(&command), "{command}: {rows:?}");
        let name = command.replace("explain a.example", "explain");
        let schema = &document["$defs"][name.split(' ').take(2).collect::<Vec<_>>().join("-")];
        for row in &rows {
            assert_eq!(differences(row, schema, &document), Vec::<String>::new(), "{command}: {row}");
        }
    }
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn a_form_that_does_not_end_is_refused(pool: PgPool) {
    let dashboard = Dashboard::start(pool);
    let mut stream = dashboard.connect();
    let head = format!("POST /sign-in HTTP/1.1\r\nhost: {}\r\ncontent-length: 90\r\n\r\ntoken=", dashboard.address);
    stream.write_all(head.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert_eq!(line, "HTTP/1.1 408 Request Timeout\r\n");
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn half_requests_are_ended_and_delay_nobody(pool: PgPool) {
    let mut dashboard = Dashboard::start(pool);
    let beginnings = [&b""[..], b"G", b"PRI * HTTP/2.0\r\n\r\nSM"];
    let mut halves: Vec<TcpStream> = Vec::new();
    for number in 0..600 {
        let mut half = dashboard.connect();
        half.write_all(beginnings[number % beginnings.len()]).unwrap();
        halves.push(half);
    }
    let began = Instant::now();
    assert_eq!(dashboard.get("/health/live", &[]).status, 200);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    for mut half in halves {
        match half.read(&mut [0; 1]) {
            Ok(read) => assert_eq!(read, 0, "the connection was ended"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
        }
    }
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    assert!(dashboard.scheduler.0.try_wait().unwrap().is_none(), "the scheduler runs");
}

#[test]
fn prometheus_loads_the_alerts_without_edits() {
    let ops = concat!(env!("CARGO_MANIFEST_DIR"), "/../ops/prometheus");
    for check in [["check", "rules", "alerts.yml"], ["check", "config", "scrape.yml"]] {
        let Ok(ran) = std::process::Command::new("promtool").args(check).current_dir(ops).output() else {
            eprintln!("skipped: promtool is not installed; ops/setup.sh installs it");
            return;
        };
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("SUCCESS"), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    }
}
