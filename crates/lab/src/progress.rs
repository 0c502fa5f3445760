//! Progress, on standard error, and only if that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often a bar is drawn that shows the time.
pub(crate) const PERIOD: Duration = Duration::from_millis(250);

/// A bar of that length, if it is known, in the words of `template`.
pub(crate) fn bar(length: Option<u64>, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr());
    // A bar in the default style is better than none.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
