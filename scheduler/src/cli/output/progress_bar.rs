//! Progress bars for long work. They are shown on standard error, only on a terminal, and
//! erased at the end.

use std::ops::Deref;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// The interval at which a bar is redrawn without progress, so that the displayed times advance.
const REDRAW: Duration = Duration::from_millis(250);

/// A bar that is erased when dropped.
#[derive(Debug)]
pub(in crate::cli) struct Bar(ProgressBar);

impl Bar {
    /// A bar for a known number of items, with the rate and the remaining time.
    pub(in crate::cli) fn counted(length: u64, what: &str) -> Self {
        let template = format!(
            "[{{elapsed_precise}}] {{bar:30}} {{human_pos}}/{{human_len}} {what}, {{per_sec}}, {{eta}} left {{msg}}"
        );
        Self::new(ProgressBar::new(length), &template)
    }

    /// A counter for an unknown number of items, with the rate.
    pub(in crate::cli) fn uncounted(what: &str) -> Self {
        let template = format!("[{{elapsed_precise}}] {{spinner}} {{human_pos}} {what}, {{per_sec}}");
        Self::new(ProgressBar::no_length(), &template)
    }

    /// A counter of written bytes, whose total is unknown until the end.
    pub(in crate::cli) fn written_bytes() -> Self {
        Self::new(
            ProgressBar::no_length(),
            "[{elapsed_precise}] {spinner} {decimal_bytes} written, {decimal_bytes_per_sec}",
        )
    }

    /// A bar of read bytes. Its length is set as soon as the total number of bytes is known.
    pub(in crate::cli) fn read_bytes() -> Self {
        let template =
            "[{elapsed_precise}] {bar:30} {decimal_bytes}/{decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left";
        Self::new(ProgressBar::new(0), template)
    }

    pub(in crate::cli) fn new(bar: ProgressBar, template: &str) -> Self {
        // A template can be invalid only through a mistake in this program. The bar then has the
        // default style.
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style);
        if !bar.is_hidden() {
            bar.tick();
            bar.enable_steady_tick(REDRAW);
        }
        Self(bar)
    }
}

impl Deref for Bar {
    type Target = ProgressBar;

    fn deref(&self) -> &ProgressBar {
        &self.0
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
