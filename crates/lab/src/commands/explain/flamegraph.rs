//! A flame graph of shootdown cost: a call is as wide as the CPU time of the flushes below it.

use inferno::flamegraph::color::{BackgroundColor, Color};
use inferno::flamegraph::{Options, from_lines};
use shootdown_explain::{Analysis, Explanation};

use super::folded;
use crate::error::{Help, UserError, bad_input, cannot_run, shown};
use crate::render::{duration, grouped};

/// The largest number of letters of the command in the title.
const COMMAND_LETTERS_MAX: usize = 60;
/// The height of a graph whose height is not known.
const HEIGHT: u32 = 400;
/// Calls that are narrower, in percent of the graph, are not drawn.
const WIDTH_MIN_PERCENT: f64 = 0.05;

/// Returns the graph as an SVG document, which zooms and searches in a browser.
///
/// # Errors
///
/// If there is no flush to draw.
pub(crate) fn graph(analysis: &Analysis, explanation: &Explanation) -> Result<String, NotDrawn> {
    let total = explanation.total;
    if total.cpu_ns == 0 {
        return Err(NotDrawn::NoShootdowns);
    }
    let mut options = Options::default();
    options.title = format!("TLB shootdowns of {}", command(&analysis.header.command));
    options.subtitle = Some(format!(
        "{} requests, {} interrupts, {} of CPU time",
        grouped(total.requests),
        grouped(total.interrupts),
        duration(total.cpu_ns)
    ));
    (options.count_name, options.name_type) = ("ns".to_owned(), "Call:".to_owned());
    options.bgcolors = Some(BackgroundColor::Flat(Color { r: 255, g: 255, b: 255 }));
    options.min_width = WIDTH_MIN_PERCENT;
    // The same function has the same colour in every graph.
    (options.hash, options.deterministic) = (true, true);
    let stacks = folded::stacks(analysis, explanation);
    let mut svg = Vec::new();
    from_lines(&mut options, sorted(&stacks), &mut svg).map_err(|_| NotDrawn::Failed)?;
    String::from_utf8(svg).map_err(|_| NotDrawn::Failed)
}

/// Returns the height of a graph in pixels.
pub(super) fn height(svg: &str) -> u32 {
    let after = svg.split("<svg ").nth(1).and_then(|rest| rest.split(" height=\"").nth(1));
    let digits = after.and_then(|rest| rest.split('"').next());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(HEIGHT)
}

/// Returns the lines in an order that does not depend on costs, and so do places in the graph.
fn sorted(stacks: &str) -> Vec<&str> {
    let mut lines: Vec<_> = stacks.lines().collect();
    lines.sort_unstable();
    lines
}

/// Returns the start of a command.
fn command(words: &[String]) -> String {
    let words = shown(words.join(" "));
    if words.chars().count() <= COMMAND_LETTERS_MAX {
        return words;
    }
    words.chars().take(COMMAND_LETTERS_MAX).chain(['…']).collect()
}

/// There is no flame graph.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotDrawn {
    #[error("no thread asked another CPU to flush, so a flame graph would be empty")]
    NoShootdowns,
    #[error("the flame graph could not be drawn")]
    Failed,
}

impl UserError for NotDrawn {
    fn help(&self) -> Help {
        let remedy = "use --format text or --format folded";
        match self {
            Self::NoShootdowns => bad_input(remedy),
            Self::Failed => cannot_run(remedy),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn height_is_that_of_the_document() {
        assert_eq!(
            height("<?xml?><svg version=\"1\" width=\"1\" height=\"230\"><a height=\"1\">"),
            230
        );
        assert_eq!(height("nothing"), HEIGHT);
    }

    #[test]
    fn long_command_is_cut() {
        assert_eq!(command(&["a".into(), "b\n".into()]), "a b\\n");
        let long = command(&["x".repeat(100)]);
        assert!(long.ends_with("x…") && long.chars().count() == COMMAND_LETTERS_MAX + 1);
    }
}
