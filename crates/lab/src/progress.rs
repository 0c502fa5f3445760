//! Progress bars on standard error, shown only if standard error is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The time between two redraws of a bar that shows the elapsed time.
pub(crate) const PERIOD: Duration = Duration::from_millis(250);

/// Returns a bar of `length` steps, or of unknown length, that is drawn as `template` describes.
pub(crate) fn bar(length: Option<u64>, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr());
    // If the template does not parse, the bar keeps the default style.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
