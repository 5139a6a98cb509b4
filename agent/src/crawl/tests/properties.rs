//! Property tests of the parsers. Whatever the input, no parser panics, each parser's output is
//! bounded, and the result does not depend on how the bytes are split into pieces. Other parsers
//! have tests of this kind in their own files.

use std::io::Read as _;
use std::time::UNIX_EPOCH;

use proptest::prelude::*;

use super::*;
use crate::crawl::frontier::checkpoint::CheckpointState;
use crate::crawl::html::links::tests::extract as links;
use crate::crawl::html::site_urls::tests::{path_of, site};
use crate::crawl::html::site_urls::{normal_escapes, normal_form};
use crate::crawl::html::sitemap_parser::tests::read as sitemap;
use crate::crawl::politeness::page_directives::{forbids_following, header_forbids_following, is_for_us};
use crate::crawl::politeness::pauses::retry_after;
use crate::crawl::politeness::robots_rules::RobotsRules;
use crate::testing::deflate;

/// Bytes that often contain markup, escapes or invalid characters.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..8),
        prop::sample::select(vec![
            &b"<a href="[..],
            b"<base href='",
            b"<meta charset=",
            b"<meta name=robots content=nofollow>",
            b"<iframe src=\"/x",
            b"</a>",
            b">",
            b"\"",
            b"'",
            b"<!--",
            b"-->",
            b"<script>",
            b"</script>",
            b"/a/../b?c=%e4",
            b"http://example.cn/",
            b"&#x10ffff;",
            b"&amp;",
            b"\xe4\xb8\xad",
            b"\xff\xfe",
            b"\xef\xbb\xbf",
            b"<![CDATA[",
            b"]]>",
            b"<urlset><url><loc>",
            b"</loc></url>",
            b"\n",
            b"\r\n",
            b"User-agent: *",
            b"Disallow: /",
            b"Allow: /*$",
            b"Crawl-delay: ",
            b"Sitemap: ",
            b"\0",
            b"9999999999",
        ])
        .prop_map(<[u8]>::to_vec),
    ];
    prop::collection::vec(part, 0..40).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn a_page_gives_the_same_links_in_pieces_of_any_size(
        html in bytes(),
        label in prop_oneof![
            prop::sample::select(vec!["utf-8", "gbk", "gb18030", "shift_jis", "utf-16le", "iso-2022-jp", "replacement", "x-user-defined"])
                .prop_map(str::to_owned),
            "\\PC{0,12}",
        ],
        labelled in any::<bool>(),
        piece in 1_usize..30,
    ) {
        let charset = labelled.then_some(label.as_str());
        let whole = links(&html, charset, html.len());
        prop_assert!(whole.paths.len() <= html.len());
        for path in &whole.paths {
            prop_assert!(site("http://example.cn").url(path).is_some());
        }
        prop_assert_eq!(links(&html, charset, piece), whole);
    }

    #[test]
    fn a_sitemap_lists_the_same_in_pieces_of_any_size(
        text in bytes(),
        zipped in any::<bool>(),
        damage in prop::option::of((any::<prop::sample::Index>(), 0_u32..8)),
        piece in 1_usize..30,
    ) {
        let mut text = if zipped { gzip(&text) } else { text };
        if let Some((at, bit)) = damage.filter(|_| !text.is_empty()) {
            let at = at.index(text.len());
            text[at] ^= 1 << bit;
        }
        let whole = sitemap(&text, text.len());
        let again = sitemap(&text, piece);
        // The point at which damage is detected may depend on the pieces, but a damaged file never
        // counts as complete.
        prop_assert_eq!(again.cut, whole.cut);
        if !whole.cut {
            prop_assert_eq!(again, whole);
        }
    }

    #[test]
    fn any_robots_txt_is_read_and_bounded(text in bytes(), path in "/x[a-z/%*$?=.]{0,20}") {
        let path = path_of(&path);
        let rules = RobotsRules::parse(&text, "StudyBot");
        rules.allow(&path);
        rules.crawl_delay();
        prop_assert!(rules.sitemaps().map(str::len).sum::<usize>() <= 3 * text.len());
        // Using the rules must not change them.
        prop_assert_eq!(RobotsRules::parse(&text, "StudyBot").allow(&path), rules.allow(&path));
    }

    #[test]
    fn any_directives_are_read(values in prop::collection::vec("(\\PC|nofollow|none|,|:| |landfall-agent){0,12}", 0..4)) {
        let forbidden = header_forbids_following(values.iter().map(String::as_str), "StudyBot");
        let said = values.iter().any(|value| value.to_lowercase().contains("no"));
        prop_assert!(said || !forbidden);
        for value in &values {
            forbids_following(value);
            is_for_us(value, "StudyBot");
        }
    }

    #[test]
    fn any_retry_after_is_a_pause_of_a_day_at_most(
        text in prop_oneof!["\\PC{0,40}", "[0-9]{0,30}", "(Mon|Sun), [0-9]{2} (Nov|Feb) [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT"],
        now in any::<u32>(),
    ) {
        let now = UNIX_EPOCH + Duration::from_secs(now.into());
        prop_assert!(retry_after(&text, now).is_none_or(|pause| pause <= Duration::from_secs(86_400)));
        if let Ok(seconds) = text.parse::<u64>() {
            prop_assert_eq!(retry_after(&text, now), Some(Duration::from_secs(seconds.min(86_400))));
        }
    }

    #[test]
    fn any_text_has_a_normal_form_that_is_no_longer(text in "(\\PC|%|[0-9a-f]|[;/?&=]){0,40}") {
        let normal = normal_form(&text);
        prop_assert!(normal.len() <= text.len());
        prop_assert!(normal_escapes(&text).len() <= text.len());
        prop_assert_eq!(&normal_form(&normal), &normal);
    }

    #[test]
    fn a_checkpoint_of_any_bytes_is_refused_or_resumed(
        paths in prop::collection::vec("/[a-z]{1,6}", 1..20),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        rubbish in prop::option::of(prop::collection::vec(any::<u8>(), 0..60)),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut checkpoint = checkpoint_of(&paths).await;
            // Damage the inflated body. Damage to the deflated bytes would only test the
            // decompressor.
            let mut body = Vec::new();
            flate2::read::DeflateDecoder::new(&checkpoint[1..]).read_to_end(&mut body).unwrap();
            for (at, byte) in &damage {
                let at = at.index(body.len());
                body[at] = *byte;
            }
            checkpoint.truncate(1);
            checkpoint.extend(deflate(rubbish.as_ref().unwrap_or(&body)));
            drop(CheckpointState::read(rubbish.as_deref().unwrap_or_default()));
            let storage = CrawlStorage { checkpoint, ..CrawlStorage::default() };
            let (mut frontier, _) = storage.open("http://example.cn", 10, 100).await.unwrap();
            let mut visited = 0;
            while let Some(entry) = frontier.next().await.unwrap() {
                assert!(entry.path.as_str().starts_with('/') && visited < 100);
                frontier.visited();
                visited += 1;
            }
            frontier.checkpoint().await.unwrap();
        });
    }
}

#[test]
fn a_page_that_confuses_the_parser_keeps_its_earlier_links() {
    let html = b"<a href=/before><script  href=><iframe </iframe >";
    for piece in [1, 9, html.len()] {
        let found = links(html, None, piece);
        assert!(found.paths.len() <= 1 && found.paths.iter().all(|path| path.as_str() == "/before"), "{found:?}");
    }
}

/// The checkpoint of a crawl that has found these paths and visited one of them.
async fn checkpoint_of(paths: &[String]) -> Vec<u8> {
    let (mut frontier, _) = CrawlStorage::default().open("http://example.cn", 10, 100).await.unwrap();
    paths.iter().for_each(|path| frontier.offer(&path_of(path), 1));
    frontier.end_step();
    frontier.next().await.unwrap();
    frontier.visited();
    frontier.checkpoint().await.unwrap().bytes
}
