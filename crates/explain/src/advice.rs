//! The table of remedies: which change removes the flushes of which sites.

use serde::Deserialize;
use shootdown_recording::record::Frame;

use crate::change::Change;

const TABLE: &str = include_str!("../advice.toml");
/// Largest number of remedies for one site.
const REMEDIES_MAX: usize = 2;

/// The table of remedies.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remedies {
    advice: Vec<Remedy>,
}

/// A remedy.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remedy {
    cause: String,
    frames: Option<Vec<String>>,
    /// Number of innermost calls that are compared with `frames`; `None` for all.
    within: Option<usize>,
    /// The change of the program, or of its environment.
    pub change: String,
    /// The change of the recording that predicts what is saved.
    pub replay: Change,
    /// The disadvantage of the change.
    pub price: String,
    /// The programs that did it, or other evidence.
    pub source: String,
}

/// A remedy with its predicted effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The remedy.
    pub remedy: Remedy,
    /// Number of requests that it removes, of all causes.
    pub saves: u64,
    /// `true` if the changed recording was replayed, `false` if the requests were counted.
    pub is_replayed: bool,
}

impl Remedies {
    /// Returns the table of the crate.
    ///
    /// # Panics
    ///
    /// Does not panic: a test parses the table.
    #[must_use]
    pub fn new() -> Self {
        toml::from_str(TABLE).expect("the table of remedies is valid")
    }

    /// Returns the remedies for a site, the most special first.
    #[must_use]
    pub fn of(&self, cause: &str, frames: &[Frame]) -> Vec<&Remedy> {
        let mut remedies: Vec<&Remedy> = Vec::new();
        for remedy in self.advice.iter().filter(|remedy| remedy.fits(cause, frames)) {
            // Of two general remedies, the first is the more special one.
            let is_new = remedies.last().is_none_or(|last| last.frames.is_some());
            if is_new && remedies.len() < REMEDIES_MAX {
                remedies.push(remedy);
            }
        }
        remedies
    }
}

impl Default for Remedies {
    fn default() -> Self {
        Self::new()
    }
}

impl Remedy {
    fn fits(&self, cause: &str, frames: &[Frame]) -> bool {
        let names = |part: &String| {
            let contains = |frame: &Frame| frame.function.contains(part.as_str());
            // Java's machine code has names of Java; its runtime is known by its library.
            let is_from = |frame: &Frame| frame.file.contains(part.as_str());
            let mut compared = frames.iter().take(self.within.unwrap_or(usize::MAX));
            compared.any(|frame| contains(frame) || is_from(frame))
        };
        cause.starts_with(&self.cause)
            && self.frames.as_ref().is_none_or(|parts| parts.iter().any(names))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shootdown_recording::record::Layer;

    fn frame(function: &str) -> Frame {
        let function = function.to_owned();
        Frame { layer: Layer::User, function, file: String::new(), line: 0 }
    }

    #[test]
    fn special_remedy_comes_before_the_general_one() {
        let remedies = Remedies::new();
        let changes = |cause, frames: &[&str]| {
            let frames: Vec<_> = frames.iter().map(|name| frame(name)).collect();
            let found = remedies.of(cause, &frames);
            found.iter().map(|it| it.change[..4].to_owned()).collect::<Vec<_>>()
        };
        let dontneed = "madvise(MADV_DONTNEED)";
        assert_eq!(changes(dontneed, &["madvise", "je_arena_decay"]), ["jema", "keep"]);
        assert_eq!(changes(dontneed, &["madvise", "release_pages"]), ["keep"]);
        assert_eq!(changes("madvise(MADV_FREE)", &["runtime.sysUnusedOS"]), ["Go: ", "make"]);
        assert_eq!(changes("munmap", &[]), ["reus"]);
        assert_eq!(changes(dontneed, &["madvise", "start_thread"])[0], "keep", "a thread's end");
        assert_eq!(changes(dontneed, &["madvise", "start_thread"]).len(), 2);
        assert_eq!(changes(dontneed, &["madvise", "work", "start_thread"]).len(), 1);
        assert!(changes("unknown", &["main"]).is_empty());
    }

    #[test]
    fn every_remedy_has_its_price_and_source() {
        for remedy in Remedies::new().advice {
            assert!(!remedy.price.is_empty() && !remedy.source.is_empty(), "{}", remedy.change);
        }
    }
}
