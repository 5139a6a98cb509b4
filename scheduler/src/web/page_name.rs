//! The enum `PageName` names each page, and reads a page's name from a path and query.

use axum::http::Uri;

use super::form::Form;

/// A page, identified by its path and query.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum PageName {
    Overview,
    Map { epoch: String, globe: bool },
    Fleet,
    Agent(String),
    Batches,
    Batch(String),
    Site(String),
    Trends,
}

impl PageName {
    pub(super) fn of(uri: &Uri) -> Option<Self> {
        let query = Form::of_query(uri);
        let named = |name: &str| percent_decoded(name);
        match uri.path().trim_matches('/').split('/').collect::<Vec<_>>().as_slice() {
            [""] => Some(Self::Overview),
            ["map"] => {
                Some(Self::Map { epoch: query.field("epoch").to_owned(), globe: query.field("view") == "globe" })
            }
            ["fleet"] => Some(Self::Fleet),
            ["agents", name] => named(name).map(Self::Agent),
            ["batches"] => Some(Self::Batches),
            ["batches", name] => named(name).map(Self::Batch),
            ["site"] => Some(Self::Site(query.field("name").to_owned())),
            ["trends"] => Some(Self::Trends),
            _ => None,
        }
    }
}

/// Decodes `%XX`; `None` if a code is invalid or the result is not UTF-8.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            plain => plain,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_found_by_its_path_and_query() {
        let of = |path: &str| PageName::of(&path.parse().unwrap());
        assert_eq!(of("/"), Some(PageName::Overview));
        assert_eq!(of("/agents/%E7%A7%8B%2F1"), Some(PageName::Agent("秋/1".to_owned())));
        assert_eq!(of("/map?epoch=7&view=globe"), Some(PageName::Map { epoch: "7".to_owned(), globe: true }));
        assert_eq!(of("/site?name=https%3A%2F%2Fa.cn"), Some(PageName::Site("https://a.cn".to_owned())));
        for unknown in ["/x", "/agents", "/agents/%F", "/agents/%FF", "/agents/a/b", "/batches/a/cancel"] {
            assert_eq!(of(unknown), None, "{unknown}");
        }
    }
}
