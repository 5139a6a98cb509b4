//! Finds names by a prefix, and names that look similar to another name.
//!
//! Names are sorted by their bytes (collation "C"), so that an index can find all names with a
//! given prefix. Invariant: a lookup reads at most a few thousand entries of an index, however many
//! names are stored.

use sqlx::PgConnection;

use crate::model::similar_names;

use super::Error;
use crate::store::rows_and_errors::Rows;

/// Maximum number of names with the same prefix that are read.
pub const MOST_BEGINNINGS: i64 = 1_000;
/// An unknown name is compared with this many stored names that sort before it, and this many that
/// sort after it. Most fleets have fewer agents than this number, so a mistyped agent name is
/// compared with the names of all agents.
const NEIGHBOURS: i64 = 500;
/// Maximum length in bytes of a text that is looked up. No stored name is longer.
const LONGEST: usize = 500;

/// The kind of thing that has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noun {
    Batch,
    /// An agent that has not been removed.
    Agent,
    /// An agent, even if it has been removed.
    FormerAgent,
    Site,
    /// The agent named in an open enrolment token.
    Token,
}

/// Runs a statement on the names of one [`Noun`]. Each literal below is the text that follows
/// `from` in the statement.
macro_rules! of_noun {
    ($noun:expr, $statement:ident, $conn:expr, $($argument:expr),+) => {
        match $noun {
            Noun::Batch => $statement!("batches where true", $conn, $($argument),+),
            Noun::Agent => $statement!("agents where removed_at is null", $conn, $($argument),+),
            Noun::FormerAgent => $statement!("agents where true", $conn, $($argument),+),
            Noun::Site => $statement!("sites where true", $conn, $($argument),+),
            Noun::Token => $statement!(
                "(select agent_name as name from enrolments
                  where used_at is null and revoked_at is null and expires_at > now()) tokens where true",
                $conn,
                $($argument),+
            ),
        }
    };
}

/// Selects all names with a prefix. Names with the same prefix form a range in sort order, which
/// ends at the prefix followed by U+10FFFF. This character sorts after every character that a name
/// may contain.
macro_rules! beginning {
    ($names:literal, $conn:expr, $beginning:expr) => {
        sqlx::query_scalar!(
            "select name as \"name!\" from "
                + $names
                + " and name >= $1 and name < $1 || chr(1114111)
             order by name limit $2",
            $beginning,
            MOST_BEGINNINGS,
        )
        .all($conn)
        .await
    };
}

macro_rules! around {
    ($names:literal, $conn:expr, $name:expr, $spellings:expr) => {
        sqlx::query_scalar!(
            "(select name as \"name!\" from "
                + $names
                + " and name < $1 order by name desc limit $2)
             union all
             (select name from "
                + $names
                + " and name >= $1 order by name limit $2)
             union all
             (select name from "
                + $names
                + " and name = any($3))",
            $name,
            NEIGHBOURS,
            $spellings,
        )
        .all($conn)
        .await
    };
}

/// At most [`MOST_BEGINNINGS`] names that begin with this text, sorted; none if the text is empty.
pub async fn beginning_with(conn: &mut PgConnection, noun: Noun, text: &str) -> Result<Vec<String>, Error> {
    if !is_storable(text) {
        return Ok(Vec::new());
    }
    of_noun!(noun, beginning, conn, text)
}

/// At most three stored names that are similar to this name, the most similar first. Among more
/// than a thousand names, finds only names that differ by one edit, and similar names that sort
/// close to this name.
pub async fn nearest_to(conn: &mut PgConnection, noun: Noun, name: &str) -> Result<Vec<String>, Error> {
    if !is_storable(name) {
        return Ok(Vec::new());
    }
    let spellings = similar_names::respelled(name);
    let around: Result<Vec<String>, Error> = of_noun!(noun, around, conn, name, &spellings);
    Ok(similar_names::nearest(name, around?))
}

/// Whether a stored name could begin with this text. In Postgres, a text cannot contain the
/// character U+0000.
fn is_storable(text: &str) -> bool {
    !text.is_empty() && text.len() <= LONGEST && !text.contains('\0')
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::store::fixtures::{self, Conn};

    /// Stores a hundred thousand sites; every thousandth begins with `www.`.
    async fn many_sites(conn: &mut PgConnection) {
        fixtures::execute(
            conn,
            "insert into sites (name)
             select case when n % 1000 = 0 then 'www.' else '' end || 'site-' || n || '.example.cn'
             from generate_series(0, 99999) n",
        )
        .await;
        fixtures::execute(conn, "insert into sites (name) values ('harbin.example.org')").await;
        fixtures::execute(conn, "analyze sites").await;
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_lookup_among_many_sites_reads_few_of_them(mut conn: Conn) {
        many_sites(&mut conn).await;
        let known = beginning_with(&mut conn, Noun::Site, "harb").await.expect("look");
        assert_eq!(known, ["harbin.example.org"]);
        let many = beginning_with(&mut conn, Noun::Site, "site-1").await.expect("look");
        assert_eq!((many.len(), many[0].as_str()), (1_000, "site-1.example.cn"));
        for (asked, meant) in [
            ("harbni.example.org", "harbin.example.org"),
            ("arbin.example.org", "harbin.example.org"),
            ("siite-99901.example.cn", "site-99901.example.cn"),
            ("site-7000.example.cn", "www.site-7000.example.cn"),
        ] {
            let near = nearest_to(&mut conn, Noun::Site, asked).await.expect("look");
            assert_eq!(near.first().map(String::as_str), Some(meant), "{asked}: {near:?}");
        }
        let mut times = Vec::new();
        for number in 0..20 {
            let began = Instant::now();
            nearest_to(&mut conn, Noun::Site, &format!("unheard-of-{number}.example.cn")).await.expect("look");
            beginning_with(&mut conn, Noun::Site, "site-1").await.expect("look");
            times.push(began.elapsed());
        }
        times.sort_unstable();
        println!("a beginning and the nearest name: median {:?}", times[times.len() / 2]);
        // Comparing the name with all hundred thousand names would take a second.
        assert!(times[times.len() / 2] < Duration::from_millis(100), "{times:?}");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn names_are_found_by_their_bytes_and_by_noun(mut conn: Conn) {
        for name in ["harbin-cernet", "harbin_unicom", "Harbin", "tokyo-iij"] {
            fixtures::agent(&mut conn, name).await;
        }
        for batch in ["100%", "100_percent", "秋季", "秋分"] {
            fixtures::batch(&mut conn, batch, "random").await;
        }
        fixtures::execute(&mut conn, "update agents set removed_at = now() where name = 'harbin-cernet'").await;
        let mut begin = async |noun, text: &str| beginning_with(&mut conn, noun, text).await.expect("look").join(" ");
        assert_eq!(begin(Noun::FormerAgent, "harbin").await, "harbin-cernet harbin_unicom");
        assert_eq!(begin(Noun::Agent, "harbin").await, "harbin_unicom", "a removed agent is not in the fleet");
        assert_eq!(begin(Noun::Batch, "100%").await, "100%", "no character is a pattern");
        assert_eq!(begin(Noun::Batch, "100_").await, "100_percent");
        assert_eq!(begin(Noun::Batch, "秋").await, "秋分 秋季");
        for none in ["", "\0", "harbin\u{10ffff}"] {
            assert_eq!(begin(Noun::FormerAgent, none).await, "", "{none:?}");
        }
        assert_eq!(begin(Noun::Token, "h").await, "");
        let near = nearest_to(&mut conn, Noun::Agent, "HARBIN").await.expect("look");
        assert_eq!(near, ["Harbin", "harbin_unicom"]);
    }
}
