//! The tests from Google's robots.txt parser that check which paths a crawler may fetch. Names,
//! rules and paths are the same as in Google's tests.
//!
//! Two of Google's tests are omitted because they contradict RFC 9309. In one test, `index.html` in
//! a rule stands for its folder. In the other test, an escape in a rule is compared as written,
//! whereas the RFC compares the decoded form (section 2.2.2).

use super::robots_rules::RobotsRules;
use crate::crawl::html::site_urls::tests::path_of;
use crate::net::user_agent::UserAgent;

/// Whether FooBot may fetch a path. In the robots.txt, this crawler's product token replaces
/// FooBot.
fn allowed(robots: &str, path: &str) -> bool {
    let robots = robots.replace("FooBot", UserAgent::PRODUCT);
    let url = format!("http://example.cn{path}");
    RobotsRules::parse(robots.as_bytes(), UserAgent::PRODUCT).allow(&path_of(&url))
}

fn check(name: &str, robots: &str, cases: &[(&str, bool)]) {
    for (path, expected) in cases {
        assert_eq!(allowed(robots, path), *expected, "{name}: {path} by\n{robots}");
    }
}

#[test]
fn lines_and_groups() {
    check("GoogleOnly_SystemTest", "", &[("/", true)]);
    check("ID_LineSyntax_Line", "user-agent: FooBot\ndisallow: /\n", &[("/x/y", false)]);
    check("ID_LineSyntax_Line, incorrect", "foo: FooBot\nbar: /\n", &[("/x/y", true)]);
    check("ID_LineSyntax_Line, accepted", "user-agent FooBot\ndisallow /\n", &[("/x/y", false)]);
    let groups = "allow: /foo/bar/\n\nuser-agent: FooBot\ndisallow: /\nallow: /x/\nuser-agent: BarBot\ndisallow: /\nallow: /y/\n\n\n\
        allow: /w/\nuser-agent: BazBot\n\nuser-agent: FooBot\nallow: /z/\ndisallow: /\n";
    let cases = [("/x/b", true), ("/z/d", true), ("/y/c", false), ("/w/a", false), ("/foo/bar/", false)];
    check("ID_LineSyntax_Groups", groups, &cases);
    let other_rules = "User-agent: BarBot\nSitemap: https://foo.bar/sitemap\nUser-agent: *\nDisallow: /\n";
    check("ID_LineSyntax_Groups_OtherRules", other_rules, &[("/", false)]);
    let unknown = "User-agent: FooBot\nInvalid-Unknown-Line: unknown\nUser-agent: *\nDisallow: /\n";
    check("ID_LineSyntax_Groups_OtherRules", unknown, &[("/", false)]);
}

#[test]
fn names_and_case() {
    for robots in [
        "USER-AGENT: FooBot\nALLOW: /x/\nDISALLOW: /\n",
        "user-agent: FooBot\nallow: /x/\ndisallow: /\n",
        "uSeR-aGeNt: FooBot\nAlLoW: /x/\ndIsAlLoW: /\n",
    ] {
        check("ID_REPLineNamesCaseInsensitive", robots, &[("/x/y", true), ("/a/b", false)]);
    }
    let upper = format!("User-Agent: {}\nAllow: /x/\nDisallow: /\n", UserAgent::PRODUCT.to_uppercase());
    check("ID_UserAgentValueCaseInsensitive", &upper, &[("/x/y", true), ("/a/b", false)]);
    let spaced = "User-Agent: *\nDisallow: /\nUser-Agent: FooBot bar\nAllow: /x/\nDisallow: /\n";
    check("GoogleOnly_AcceptUserAgentUpToFirstSpace", spaced, &[("/x/y", true), ("/a/b", false)]);
    check(
        "ID_GlobalGroups_Secondary",
        "user-agent: *\nallow: /\nuser-agent: FooBot\ndisallow: /\n",
        &[("/x/y", false)],
    );
    let others = "user-agent: FooBot\nallow: /\nuser-agent: BarBot\ndisallow: /\nuser-agent: BazBot\ndisallow: /\n";
    check("ID_GlobalGroups_Secondary", others, &[("/x/y", true)]);
    check("ID_AllowDisallow_Value_CaseSensitive", "user-agent: FooBot\ndisallow: /x/\n", &[("/x/y", false)]);
    check("ID_AllowDisallow_Value_CaseSensitive", "user-agent: FooBot\ndisallow: /X/\n", &[("/x/y", true)]);
}

#[test]
fn the_longest_match_wins() {
    let rules = |lines: &str| format!("user-agent: FooBot\n{lines}\n");
    for (lines, path, expected) in [
        ("disallow: /x/page.html\nallow: /x/", "/x/page.html", false),
        ("allow: /x/page.html\ndisallow: /x/", "/x/page.html", true),
        ("allow: /x/page.html\ndisallow: /x/", "/x/", false),
        ("disallow: \nallow: ", "/x/page.html", true),
        ("disallow: /\nallow: /", "/x/page.html", true),
        ("disallow: /x\nallow: /x/", "/x", false),
        ("disallow: /x\nallow: /x/", "/x/", true),
        ("disallow: /x/page.html\nallow: /x/page.html", "/x/page.html", true),
        ("allow: /page\ndisallow: /*.html", "/page.html", false),
        ("allow: /page\ndisallow: /*.html", "/page", true),
        ("allow: /x/page.\ndisallow: /*.html", "/x/page.html", true),
        ("allow: /x/page.\ndisallow: /*.html", "/x/y.html", false),
    ] {
        check("ID_LongestMatch", &rules(lines), &[(path, expected)]);
    }
    let own = "User-agent: *\nDisallow: /x/\nUser-agent: FooBot\nDisallow: /y/\n";
    check("ID_LongestMatch", own, &[("/x/page", true), ("/y/page", false)]);
}

#[test]
fn encodings_and_special_characters() {
    let rules = |lines: &str| format!("User-agent: FooBot\nDisallow: /\n{lines}\n");
    let query = "Allow: /foo/bar?qux=taz&baz=http://foo.bar?tar&par";
    check("ID_Encoding", &rules(query), &[("/foo/bar?qux=taz&baz=http://foo.bar?tar&par", true)]);
    for rule in ["Allow: /foo/bar/ツ", "Allow: /foo/bar/%E3%83%84", "Allow: /foo/bar/%e3%83%84"] {
        check("ID_Encoding", &rules(rule), &[("/foo/bar/ツ", true), ("/foo/bar/%E3%83%84", true)]);
    }
    // The examples from the table in RFC 9309, 2.2.2.
    check("2.2.2", &rules("Allow: /foo/bar/%62%61%7A"), &[("/foo/bar/baz", true), ("/foo/bar/%62%61%7A", true)]);
    check("2.2.2", &rules("Allow: /foo/bar/baz"), &[("/foo/bar/%62%61%7A", true)]);
    let star = "User-agent: FooBot\nDisallow: /foo/bar/quz\nAllow: /foo/*/qux\n";
    check(
        "ID_SpecialCharacters, *",
        star,
        &[("/foo/bar/quz", false), ("/foo/quz", true), ("/foo//quz", true), ("/foo/bax/quz", true)],
    );
    let end = "User-agent: FooBot\nDisallow: /foo/bar$\nAllow: /foo/bar/qux\n";
    check(
        "ID_SpecialCharacters, $",
        end,
        &[("/foo/bar", false), ("/foo/bar/qux", true), ("/foo/bar/", true), ("/foo/bar/baz", true)],
    );
    let comments = "User-agent: FooBot\n# Disallow: /\nDisallow: /foo/quz#qux\nAllow: /\n";
    check("ID_SpecialCharacters, #", comments, &[("/foo/bar", true), ("/foo/quz", false)]);
}

#[test]
fn the_documented_examples() {
    let of = |rule: &str| format!("user-agent: FooBot\ndisallow: /\nallow: {rule}\n");
    for (rule, yes, no) in [
        (
            "/fish",
            "/fish /fish.html /fish/salmon.html /fishheads /fishheads/yummy.html /fish.html?id=anything",
            "/bar /Fish.asp /catfish /?id=fish",
        ),
        (
            "/fish*",
            "/fish /fish.html /fish/salmon.html /fishheads /fish.html?id=anything",
            "/bar /Fish.bar /catfish /?id=fish",
        ),
        (
            "/fish/",
            "/fish/ /fish/salmon /fish/?salmon /fish/salmon.html /fish/?id=anything",
            "/bar /fish /fish.html /Fish/Salmon.html",
        ),
        (
            "/*.php",
            "/filename.php /folder/filename.php /folder/filename.php?parameters //folder/any.php.file.html /filename.php/",
            "/bar / /windows.PHP /php",
        ),
        (
            "/*.php$",
            "/filename.php /folder/filename.php",
            "/bar /filename.php?parameters /filename.php/ /filename.php5 /aaaphpaaa",
        ),
        ("/fish*.php", "/fish.php /fishheads/catfish.php?parameters", "/bar /Fish.PHP"),
    ] {
        yes.split(' ').for_each(|path| check("ID_DocumentationChecks", &of(rule), &[(path, true)]));
        no.split(' ').for_each(|path| check("ID_DocumentationChecks", &of(rule), &[(path, false)]));
    }
    for (lines, path, expected) in [
        ("allow: /p\ndisallow: /", "/page", true),
        ("allow: /folder\ndisallow: /folder", "/folder/page", true),
        ("allow: /page\ndisallow: /*.htm", "/page.htm", false),
        ("allow: /$\ndisallow: /", "/", true),
        ("allow: /$\ndisallow: /", "/page.html", false),
    ] {
        check("ID_DocumentationChecks, precedence", &format!("user-agent: FooBot\n{lines}\n"), &[(path, expected)]);
    }
}

#[test]
fn line_ends_and_byte_order_marks() {
    for end in ["\n", "\r\n", "\r"] {
        let robots = ["User-Agent: foo", "Allow: /some/path", "User-Agent: FooBot", "", "", "Disallow: /"].join(end);
        check("ID_LinesNumbersAreCountedCorrectly", &robots, &[("/x", false)]);
    }
    check(
        "ID_UTF8ByteOrderMarkIsSkipped",
        "\u{feff}User-Agent: FooBot\nDisallow: /x\n",
        &[("/x", false), ("/y", true)],
    );
}

#[test]
fn sitemaps_are_found_wherever_they_stand() {
    let first = "Sitemap: http://foo.bar/s.xml\nUser-Agent: FooBot\nDisallow: /\n";
    let within =
        "User-Agent: other\nAllow: /some/path\nsItEmAp: http://foo.bar/s.xml\nUser-Agent: FooBot\nDisallow: /\n";
    for robots in [first, within] {
        let robots = robots.replace("FooBot", UserAgent::PRODUCT);
        let rules = RobotsRules::parse(robots.as_bytes(), UserAgent::PRODUCT);
        assert_eq!(rules.sitemaps().collect::<Vec<_>>(), ["http://foo.bar/s.xml"]);
    }
}
