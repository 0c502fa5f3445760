//! The table of remedies: which change removes the flushes of which sites.

use serde::Deserialize;
use shootdown_recording::record::Frame;

use crate::change::Change;

const TABLE: &str = include_str!("../advice.toml");
/// Largest number of remedies for one site.
const REMEDIES_MAX: usize = 2;
/// Fewest calls of a stack that reaches its beginning: the kernel's caller, the thread's first
/// function, and the one that calls it. Frame pointers may lead to the first alone.
const THREAD_CALLS_MIN: usize = 3;

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
    /// Parts of names that no call has: functions with these `frames` that another library has.
    #[serde(default)]
    without: Vec<String>,
    /// The file that has all calls.
    all_in: Option<String>,
    /// `true` if it may follow another remedy that fits every site.
    #[serde(default)]
    also: bool,
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
    /// Number of requests of the site that it removes.
    pub saves: u64,
    /// Number of requests that it removes of all sites, if the changed recording was replayed.
    pub saves_in_all: Option<u64>,
    /// `true` if the changed recording was replayed, `false` if the requests were counted.
    pub is_replayed: bool,
    /// The reason why the requests were counted although a replay could show the effect.
    pub doubt: Option<&'static str>,
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
    pub fn of(&self, cause: &str, frames: &[Frame]) -> Vec<Remedy> {
        let mut remedies: Vec<&Remedy> = Vec::new();
        for remedy in self.advice.iter().filter(|remedy| remedy.fits(cause, frames)) {
            // Of two general remedies, the first is the more special one.
            let is_new = remedies.last().is_none_or(|last| {
                (last.is_special() || remedy.also) && last.change != remedy.change
            });
            if is_new && remedies.len() < REMEDIES_MAX {
                remedies.push(remedy);
            }
        }
        remedies.into_iter().map(|remedy| remedy.for_program(frames)).collect()
    }

    /// Returns the causes that have a remedy.
    #[cfg(test)]
    pub(crate) fn causes(&self) -> impl Iterator<Item = &str> {
        self.advice.iter().map(|remedy| &*remedy.cause)
    }
}

impl Default for Remedies {
    fn default() -> Self {
        Self::new()
    }
}

/// The text that stands for the variable which configures the program's jemalloc, and its end.
const JEMALLOC: &str = "{JEMALLOC}";
const CONF: &str = "MALLOC_CONF";

impl Remedy {
    fn is_special(&self) -> bool {
        self.frames.is_some() || self.all_in.is_some()
    }

    fn fits(&self, cause: &str, frames: &[Frame]) -> bool {
        let is_named = |part: &str, frame: &Frame| match part.as_bytes() {
            [b'=', ..] => frame.function == part[1..],
            [b'/', ..] => frame.file.ends_with(part),
            // Java's machine code has names of Java; its runtime is known by its library.
            _ => frame.function.contains(part) || frame.file.contains(part),
        };
        let within = self.within.unwrap_or(usize::MAX);
        let names = |part: &String| frames.iter().take(within).any(|frame| is_named(part, frame));
        let is_in = |file: &String| {
            frames.len() >= THREAD_CALLS_MIN && frames.iter().all(|it| it.file.contains(&**file))
        };
        cause.starts_with(&self.cause)
            && self.frames.as_ref().is_none_or(|parts| parts.iter().any(names))
            && !self.without.iter().any(names)
            && self.all_in.as_ref().is_none_or(is_in)
    }

    /// Returns the words of the change that set a variable (`NAME=VALUE`) or are an option
    /// (`--name`). A change that has some needs nothing else.
    #[must_use]
    pub fn settings(&self) -> Vec<String> {
        let words = self.change.split_whitespace().map(|word| word.trim_end_matches(','));
        words.filter(|word| is_setting(word)).map(str::to_owned).collect()
    }

    /// Returns the remedy with the variable that the program reads: jemalloc's functions and its
    /// variable have the same prefix (`duckdb_je_`, `_rjem_je_`).
    fn for_program(&self, frames: &[Frame]) -> Self {
        let prefix = frames.iter().find_map(|frame| {
            let (prefix, _) = frame.function.split_once("je_")?;
            let is_name = prefix.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
            is_name.then_some(prefix)
        });
        let variable = match prefix {
            None | Some("") => CONF.to_owned(),
            Some("_rjem_") => format!("_RJEM_{CONF}"),
            Some(prefix) => format!("{}JE_{CONF}", prefix.to_uppercase()),
        };
        Self { change: self.change.replace(JEMALLOC, &variable), ..self.clone() }
    }
}

fn is_setting(word: &str) -> bool {
    let name = word.split_once('=').map_or("", |(name, _)| name);
    let is_letter = |letter: char| letter.is_ascii_uppercase() || letter == '_';
    let is_variable = name.starts_with(is_letter)
        && name.chars().all(|letter| is_letter(letter) || letter.is_ascii_digit());
    is_variable || word.starts_with("--")
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
        assert_eq!(changes(dontneed, &["madvise", "release_pages"]), ["keep", "pass"]);
        assert_eq!(changes("madvise(MADV_FREE)", &["runtime.sysUnusedOS"]), ["Go: ", "make"]);
        assert_eq!(changes("munmap", &[]), ["reus", "read"]);
        assert_eq!(changes(dontneed, &["madvise", "start_thread"])[0], "keep", "a thread's end");
        let ended = changes(dontneed, &["madvise", "start_thread"]);
        assert_ne!(ended, changes(dontneed, &["madvise", "work", "start_thread"]));
        assert!(changes("unknown", &["main"]).is_empty());
    }

    #[test]
    fn advice_fits_the_program_in_the_stack() {
        let remedies = Remedies::new();
        let first = |cause, frames: &[&str]| {
            let frames: Vec<_> = frames.iter().map(|name| frame(name)).collect();
            remedies.of(cause, &frames)[0].change.clone()
        };
        let dontneed = "madvise(MADV_DONTNEED)";
        for (function, variable) in [
            ("je_pages_purge_forced", " MALLOC_CONF="),
            ("duckdb_je_arena_decay", " DUCKDB_JE_MALLOC_CONF="),
            ("_rjem_je_arena_decay", " _RJEM_MALLOC_CONF="),
        ] {
            let change = first(dontneed, &["madvise", function]);
            assert!(change.contains(variable) && !change.contains("muzzy"), "{change}");
        }
        assert!(first("brk", &["sbrk", "brk_shrink"]).starts_with("keep"), "no allocator");
        assert!(first("brk", &["[libc+0x1]", "cfree", "work"]).starts_with("glibc"));
        assert!(first("munmap", &["munmap", "free_buffer"]).starts_with("reuse"));
        assert!(first("munmap", &["munmap", "free", "work"]).starts_with("glibc"));
        assert!(first("munmap", &["munmap", "je_free", "free"]).starts_with("reuse"));
        for (file, beginning) in [("/usr/bin/ag", "The Silver"), ("/usr/bin/agent", "reuse")] {
            let frame = Frame { file: file.into(), ..frame("[ag+0xb830]") };
            assert!(remedies.of("munmap", &[frame])[0].change.starts_with(beginning), "{file}");
        }
        assert!(first("mremap", &["mremap", "realloc", "grow"]).starts_with("glibc"));
        assert!(!first("mremap (same size)", &["mremap"]).contains("grow"));
        assert!(!first("mprotect", &["mprotect"]).contains("pkey_mprotect"));
        for cause in ["mprotect", "munmap", dontneed] {
            assert!(first(cause, &["v8::internal::Heap::TearDown()"]).starts_with("keep workers"));
        }
    }

    #[test]
    fn settings_are_the_words_that_need_no_edit() {
        let settings = |cause, function| {
            let remedies = Remedies::new().of(cause, &[frame(function)]);
            remedies[0].settings().join(" ")
        };
        let dontneed = "madvise(MADV_DONTNEED)";
        assert_eq!(settings(dontneed, "je_purge"), "MALLOC_CONF=dirty_decay_ms:60000");
        assert_eq!(
            settings("brk", "free"),
            "MALLOC_TRIM_THRESHOLD_=1073741824 MALLOC_MMAP_THRESHOLD_=33554432"
        );
        assert_eq!(settings("munmap", "grep_searcher::search"), "--no-mmap");
        // Settings of the kernel are not those of one program.
        for (cause, function) in [("NUMA", "x"), ("munmap", "free_buffer"), ("compaction", "x")] {
            assert_eq!(settings(cause, function), "");
        }
    }

    #[test]
    fn end_of_thread_is_known_without_private_names() {
        let in_libc = |function: &str| Frame { file: "/lib/libc.so.6".into(), ..frame(function) };
        let stripped = ["madvise", "[libc.so.6+0x96820]", "[libc.so.6+0x113b5c]"].map(in_libc);
        let remedies = Remedies::new();
        let change =
            |frames: &[Frame]| remedies.of("madvise(MADV_DONTNEED)", frames)[0].change.clone();
        assert!(change(&stripped).contains("pool: glibc"), "{}", change(&stripped));
        assert!(!change(&stripped[..2]).contains("pool: glibc"), "a stack that was cut");
        let called = [&stripped[..1], &[frame("work")], &stripped[1..]].concat();
        assert!(!change(&called).contains("pool: glibc"));
    }

    #[test]
    fn every_cause_has_advice() {
        let remedies = Remedies::new();
        for cause in crate::causes::Causes::new().of_table() {
            let has_advice =
                remedies.causes().any(|it| cause.starts_with(it) || it.starts_with(cause));
            assert!(has_advice, "{cause}");
        }
    }

    #[test]
    fn every_remedy_has_its_price_and_source() {
        for remedy in Remedies::new().advice {
            assert!(!remedy.price.is_empty() && !remedy.source.is_empty(), "{}", remedy.change);
        }
    }
}
