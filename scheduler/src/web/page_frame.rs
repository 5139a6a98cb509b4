//! The frame of every page: the head of the document, the header, the navigation and the footer.

use axum::response::Html;
use landfall_proto::json::rfc3339;
use maud::{DOCTYPE, Markup, html};

use super::form::Visitor;
use crate::machine::clock::now;

/// The pages in the navigation: path and title.
const NAVIGATION: [(&str, &str); 5] =
    [("/", "Overview"), ("/map", "Map"), ("/fleet", "Fleet"), ("/batches", "Batches"), ("/trends", "Trends")];

/// A page without navigation.
pub(super) fn bare(title: &str, body: &Markup) -> Html<String> {
    document(title, &html! { main { h1 { (title) } (body) } })
}

/// The parts of a page.
#[derive(Debug, Clone)]
pub(super) struct Page {
    pub(super) title: String,
    /// The path of the page's entry in the navigation.
    pub(super) section: &'static str,
    /// The buttons, which only operators see.
    pub(super) actions: Markup,
    /// The part that is updated while the page is open.
    pub(super) live: Markup,
}

impl Page {
    /// Renders the whole document. `path` is the page's own path, which the browser needs
    /// for updates.
    pub(super) fn document(&self, visitor: &Visitor, path: &str) -> Html<String> {
        let current = |section: &str| (section == self.section).then_some("page");
        document(
            &self.title,
            &html! {
                a.skip href="#content" { "Skip to content" }
                header.bar {
                    a.brand href="/" { "Landfall" }
                    nav aria-label="Pages" { @for (path, title) in NAVIGATION {
                        a href=(path) aria-current=[current(path)] { (title) }
                    } }
                    form.search action="/site" role="search" {
                        input type="search" name="name" placeholder="Site" aria-label="Find a site" required maxlength="300";
                    }
                    @match visitor {
                        Visitor::Operator(form) => form method="post" action="/sign-out" {
                            (form.field()) button type="submit" { "Sign out" }
                        },
                        Visitor::Guest => a href="/sign-in" { "Sign in" },
                    }
                }
                main id="content" {
                    h1 { (self.title) }
                    p.lost id="lost" role="status" hidden { "The scheduler does not answer. This page shows what was last known, and goes on by itself." }
                    (self.actions)
                    div id="live" data-page=(path) { (self.live) }
                }
                footer { p { "Landfall " (crate::VERSION) " · " span id="updated" { "updated " (rfc3339(now())) } } }
            },
        )
    }
}

fn document(title: &str, body: &Markup) -> Html<String> {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Landfall" }
                link rel="icon" href="/static/icon.svg" type="image/svg+xml";
                link rel="stylesheet" href="/static/style.css";
                script src="/static/live.js" defer {}
            }
            body { (body) }
        }
    };
    Html(page.into_string())
}
