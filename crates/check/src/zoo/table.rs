//! The bugs of `zoo.toml`, each with its program.

use std::sync::LazyLock;

use serde::Deserialize;

use super::{
    Bug, Program, domains, errata, frames, guests, hardware, isolated, marks, presence, reclaim,
    sharers, tables, unflushed, waiting,
};
use crate::hardware::Violation;
use crate::profile::Profile;

/// Every bug, in the order of the file.
pub(super) static BUGS: LazyLock<Vec<Bug>> = LazyLock::new(|| {
    let file: File = toml::from_str(include_str!("../../zoo.toml")).expect("a test reads the file");
    file.bug.into_iter().map(Entry::bug).collect()
});

/// The programs of all bugs.
const PROGRAMS: [&[Program]; 13] = [
    presence::PROGRAMS,
    tables::PROGRAMS,
    sharers::PROGRAMS,
    reclaim::PROGRAMS,
    frames::PROGRAMS,
    marks::PROGRAMS,
    waiting::PROGRAMS,
    hardware::PROGRAMS,
    errata::PROGRAMS,
    guests::PROGRAMS,
    isolated::PROGRAMS,
    domains::PROGRAMS,
    unflushed::PROGRAMS,
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    bug: Vec<Entry>,
}

/// An entry of the file, which describes the fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    source: String,
    story: String,
    profile: Option<String>,
    #[serde(default)]
    finds: Kind,
    spaces: Option<usize>,
    #[serde(default)]
    words: Vec<String>,
    #[serde(default)]
    kernel: bool,
}

/// A kind of violations.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    #[default]
    UsesStale,
    UsesKernelsStale,
    WalksFreed,
    UsesForeign,
    InterruptsForNothing,
    IsStuck,
    IsWrittenLate,
    FaultsOnMapped,
}

impl Entry {
    /// Returns the bug, whose texts live as long as the process.
    fn bug(self) -> Bug {
        let program = PROGRAMS.iter().copied().flatten().find(|program| program.bug == self.name);
        let words = self.words.into_iter().map(|word| &*word.leak()).collect();
        Bug {
            program: program.unwrap_or_else(|| panic!("{} has no program", self.name)),
            name: self.name.leak(),
            source: self.source.leak(),
            story: self.story.leak(),
            profile: self.profile.map_or(Profile::X86, |name| {
                Profile::named(&name).unwrap_or_else(|| panic!("there is no profile {name}"))
            }),
            finds: self.finds.finds(),
            spaces: self.spaces.unwrap_or(1),
            has_kernel_table: self.kernel,
            words: Vec::leak(words),
        }
    }
}

impl Kind {
    /// Returns the function that is `true` for violations of this kind.
    fn finds(self) -> fn(Violation) -> bool {
        use Violation as V;
        match self {
            Self::UsesStale => |it| matches!(it, V::UsesFlushed { .. } | V::UsesReused { .. }),
            Self::UsesKernelsStale => |it| matches!(it, V::UsesReusedKernel { .. }),
            Self::WalksFreed => |it| matches!(it, V::WalksFreed { .. } | V::DeviceWalksFreed),
            Self::UsesForeign => |it| matches!(it, V::UsesForeign { .. }),
            Self::InterruptsForNothing => |it| matches!(it, V::InterruptedForNothing { .. }),
            Self::IsStuck => |it| matches!(it, V::Stuck),
            Self::IsWrittenLate => |it| matches!(it, V::WritesLate { .. }),
            Self::FaultsOnMapped => |it| matches!(it, V::FaultsOnMapped { .. }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_has_a_bug() {
        let programs = PROGRAMS.iter().copied().flatten();
        let without: Vec<_> = programs
            .map(|program| program.bug)
            .filter(|name| BUGS.iter().all(|bug| bug.name != *name))
            .collect();
        assert!(without.is_empty(), "{without:?}");
    }
}
