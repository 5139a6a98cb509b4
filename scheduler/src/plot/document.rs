//! Renders an HTML page as a single file, with its style sheet. `maud` escapes texts.

use maud::{DOCTYPE, Markup, PreEscaped, html};

/// The default style sheet of pages, for light and dark screens.
pub const STYLE: &str = include_str!("style.css");

/// Renders an HTML page as a single file.
pub fn document(title: &str, style: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(style)) }
            }
            body { main { (body) } }
        }
    };
    page.into_string()
}
