//! What a kernel does, in words that can be typed.

use std::fmt;
use std::str::FromStr;

use super::{Config, Programs, SPACES_MAX};
use crate::hardware::{PAGES, SLOTS};

/// What a kernel does on a CPU, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Runs a thread of this space from now on, which is in user mode for a while; what follows are
    /// its system calls.
    Run(usize),
    /// Goes idle, with the space still loaded.
    Idle,
    /// Loads the kernel's own root.
    Leave,
    /// Takes a page of a space away, flushes, waits, and gives its frame to somebody else.
    Unmap(usize, usize),
    /// The same, and takes no interrupt while it waits.
    UnmapMasked(usize, usize),
    /// Maps a page of a space that was taken away, if its frame has been given back: nobody has to
    /// be told.
    Map(usize, usize),
    /// Reclaims a page of a space: takes it, and flushes that with others.
    Reclaim(usize, usize),
    /// Lets nobody write to a page of a space any more.
    Protect(usize, usize),
    /// Moves a page of a space to another frame: takes it away, flushes, waits, copies it, and maps
    /// it again.
    Migrate(usize, usize),
    /// Takes a table out of a space, with its pages, flushes, and frees it when nobody walks it.
    UnmapTable(usize, usize),
    /// The same, but that CPUs which are lazy on the space are left alone: the table is in
    /// quarantine until they have forgotten the way to it, or, if that is full, until they are
    /// interrupted.
    FreeTable(usize, usize),
    /// Puts a large page where a table is, which is freed with its pages; and takes the large page
    /// away, flushes that, and gives its frame to somebody else.
    UnmapLarge(usize, usize),
    /// Takes a page of a space and the same of its [neighbour](Self::spaces) away: two flushes, of
    /// which the first is polled, and then joined with the second.
    UnmapJoined(usize, usize),
    /// Reclaims a page of a space, and the same of its neighbour, in one batch.
    ReclaimBoth(usize, usize),
    /// Has all CPUs forget the way to tables of a space that are in quarantine, and frees these.
    FlushWalkers(usize),
    /// Takes CPUs out of a space's roster that do not use it.
    TrimCpumask(usize),
    /// Pins the tag of a space for a device, which uses the space for a while.
    Pin(usize),
    /// Has other CPUs let go of dead spaces.
    Reap,
    /// Takes a page of the kernel's own away, which all CPUs use, and gives its frame to somebody
    /// else.
    UnmapKernel(usize),
    /// Waits until nobody runs the space any more, nor will: its tables are freed when nobody walks
    /// them.
    Retire(usize),
    /// Goes offline, and comes back.
    OfflineOnline,
}

impl Op {
    /// The space that it is about, or the first of two.
    #[must_use]
    pub const fn space(self) -> Option<usize> {
        match self {
            Self::Run(space)
            | Self::Unmap(space, _)
            | Self::UnmapMasked(space, _)
            | Self::Map(space, _)
            | Self::Reclaim(space, _)
            | Self::Protect(space, _)
            | Self::Migrate(space, _)
            | Self::UnmapTable(space, _)
            | Self::FreeTable(space, _)
            | Self::UnmapLarge(space, _)
            | Self::UnmapJoined(space, _)
            | Self::ReclaimBoth(space, _)
            | Self::FlushWalkers(space)
            | Self::TrimCpumask(space)
            | Self::Pin(space)
            | Self::Retire(space) => Some(space),
            Self::Idle | Self::Leave | Self::Reap | Self::UnmapKernel(_) | Self::OfflineOnline => {
                None
            }
        }
    }

    /// The spaces that it is about: the neighbour of an even space is the next one, and the other
    /// way round.
    pub fn spaces(self) -> impl Iterator<Item = usize> {
        let has_two = matches!(self, Self::UnmapJoined(..) | Self::ReclaimBoth(..));
        let neighbour = self.space().filter(|_| has_two).map(|space| space ^ 1);
        self.space().into_iter().chain(neighbour)
    }

    /// What a CPU that does it does, for a history.
    #[must_use]
    pub fn story(self) -> String {
        match self {
            Self::Run(space) => format!("runs space {space}"),
            Self::Idle => "goes idle".to_owned(),
            Self::Leave => "leaves its space".to_owned(),
            Self::Unmap(space, page) => format!("unmaps page {page} of space {space}"),
            Self::UnmapMasked(space, page) => {
                format!("unmaps page {page} of space {space}, with interrupts masked")
            }
            Self::Map(space, page) => format!("maps page {page} of space {space}"),
            Self::Reclaim(space, page) => format!("reclaims page {page} of space {space}"),
            Self::Protect(space, page) => format!("write-protects page {page} of space {space}"),
            Self::Migrate(space, page) => format!("migrates page {page} of space {space}"),
            Self::UnmapTable(space, slot) => format!("unmaps table {slot} of space {space}"),
            Self::FreeTable(space, slot) => {
                format!("unmaps table {slot} of space {space}, and holds it back from lazy CPUs")
            }
            Self::UnmapLarge(space, slot) => {
                format!("replaces table {slot} of space {space} by a large page, and unmaps that")
            }
            Self::UnmapJoined(space, page) => {
                format!("unmaps page {page} of spaces {space} and {}", space ^ 1)
            }
            Self::ReclaimBoth(space, page) => {
                format!("reclaims page {page} of spaces {space} and {}", space ^ 1)
            }
            Self::FlushWalkers(space) => format!("has the tables of space {space} forgotten"),
            Self::TrimCpumask(space) => format!("trims the roster of space {space}"),
            Self::Pin(space) => format!("pins space {space} for a device"),
            Self::Reap => "has dead spaces let go of".to_owned(),
            Self::UnmapKernel(page) => format!("unmaps kernel page {page}"),
            Self::Retire(space) => format!("retires space {space}"),
            Self::OfflineOnline => "goes offline, and comes back".to_owned(),
        }
    }

    /// Its name, as one types it, and what it is about.
    fn parts(self) -> (&'static str, Option<usize>, Option<usize>) {
        let name = match self {
            Self::Run(_) => "run",
            Self::Idle => "idle",
            Self::Leave => "leave",
            Self::Unmap(..) => "unmap",
            Self::UnmapMasked(..) => "unmap-masked",
            Self::Map(..) => "map",
            Self::Reclaim(..) => "reclaim",
            Self::Protect(..) => "protect",
            Self::Migrate(..) => "migrate",
            Self::UnmapTable(..) => "unmap-table",
            Self::FreeTable(..) => "free-table",
            Self::UnmapLarge(..) => "unmap-large",
            Self::UnmapJoined(..) => "unmap-joined",
            Self::ReclaimBoth(..) => "reclaim-both",
            Self::FlushWalkers(_) => "flush-walkers",
            Self::TrimCpumask(_) => "trim-cpumask",
            Self::Pin(_) => "pin",
            Self::Reap => "reap",
            Self::UnmapKernel(_) => "unmap-kernel",
            Self::Retire(_) => "retire",
            Self::OfflineOnline => "offline-online",
        };
        let page = match self {
            Self::Unmap(_, page)
            | Self::UnmapMasked(_, page)
            | Self::Map(_, page)
            | Self::Reclaim(_, page)
            | Self::Protect(_, page)
            | Self::Migrate(_, page)
            | Self::UnmapTable(_, page)
            | Self::FreeTable(_, page)
            | Self::UnmapLarge(_, page)
            | Self::UnmapJoined(_, page)
            | Self::ReclaimBoth(_, page) => Some(page),
            _ => None,
        };
        match self {
            Self::UnmapKernel(page) => (name, Some(page), None),
            _ => (name, self.space(), page),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            (name, None, _) => f.write_str(name),
            (name, Some(space), None) => write!(f, "{name} {space}"),
            (name, Some(space), Some(page)) => write!(f, "{name} {space}.{page}"),
        }
    }
}

/// Why a text is no program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadProgram {
    /// It is no operation.
    Unknown(String),
    /// There is no such space, page or table.
    OutOfRange(String),
    /// A space is retired before the last use of it on that CPU, or twice.
    UsedAfterRetire(usize),
    /// There are more CPUs than 64, or none.
    Cpus(usize),
}

impl fmt::Display for BadProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(text) => write!(f, "`{}` is no operation", text.escape_debug()),
            Self::OutOfRange(text) => write!(
                f,
                "`{}`: spaces are 0 to {}, pages 0 to {}, tables and kernel pages 0 to {}",
                text.escape_debug(),
                SPACES_MAX - 1,
                SLOTS * PAGES - 1,
                SLOTS - 1
            ),
            Self::UsedAfterRetire(cpu) => {
                write!(f, "CPU {cpu} goes on after it has retired a space, or one is retired twice")
            }
            Self::Cpus(cpus) => write!(f, "{cpus} CPUs; there can be 1 to 64"),
        }
    }
}

impl std::error::Error for BadProgram {}

impl FromStr for Op {
    type Err = BadProgram;

    fn from_str(text: &str) -> Result<Self, BadProgram> {
        let unknown = || BadProgram::Unknown(text.to_owned());
        let (name, what) = text.split_once(' ').unwrap_or((text, ""));
        let (first, second) = what.split_once('.').unwrap_or((what, ""));
        let number = |text: &str| text.parse::<usize>().map_err(|_| unknown());
        let op = match (name, first, second) {
            ("idle", "", "") => Self::Idle,
            ("leave", "", "") => Self::Leave,
            ("offline-online", "", "") => Self::OfflineOnline,
            ("reap", "", "") => Self::Reap,
            ("flush-walkers", space, "") => Self::FlushWalkers(number(space)?),
            ("trim-cpumask", space, "") => Self::TrimCpumask(number(space)?),
            ("pin", space, "") => Self::Pin(number(space)?),
            ("run", space, "") => Self::Run(number(space)?),
            ("retire", space, "") => Self::Retire(number(space)?),
            ("unmap-kernel", page, "") => Self::UnmapKernel(number(page)?),
            _ => {
                let (space, page) = (number(first)?, number(second)?);
                match name {
                    "unmap" => Self::Unmap(space, page),
                    "unmap-masked" => Self::UnmapMasked(space, page),
                    "map" => Self::Map(space, page),
                    "reclaim" => Self::Reclaim(space, page),
                    "protect" => Self::Protect(space, page),
                    "migrate" => Self::Migrate(space, page),
                    "unmap-table" => Self::UnmapTable(space, page),
                    "free-table" => Self::FreeTable(space, page),
                    "unmap-large" => Self::UnmapLarge(space, page),
                    "unmap-joined" => Self::UnmapJoined(space, page),
                    "reclaim-both" => Self::ReclaimBoth(space, page),
                    _ => return Err(unknown()),
                }
            }
        };
        let (_, space, page) = op.parts();
        let (spaces, pages) = match op {
            Self::UnmapKernel(_) => (SLOTS, 1),
            Self::UnmapTable(..) | Self::FreeTable(..) | Self::UnmapLarge(..) => {
                (SPACES_MAX, SLOTS)
            }
            _ => (SPACES_MAX, SLOTS * PAGES),
        };
        if space.is_some_and(|space| space >= spaces) || page.is_some_and(|page| page >= pages) {
            return Err(BadProgram::OutOfRange(text.to_owned()));
        }
        Ok(op)
    }
}

impl Programs {
    /// From operations behind commas, and CPUs behind bars: `run 0, idle | unmap 0.1`. There are
    /// as many CPUs as the text has, and spaces as many as it names at least.
    ///
    /// # Errors
    ///
    /// If it is none, or one that no kernel may do.
    pub fn parse(config: Config, text: &str) -> Result<Self, BadProgram> {
        let ops_of = |cpu: &str| {
            let ops = cpu.split(',').map(str::trim).filter(|op| !op.is_empty());
            ops.map(str::parse).collect::<Result<Vec<Op>, _>>()
        };
        let ops = text.split('|').map(ops_of).collect::<Result<Vec<_>, _>>()?;
        if ops.is_empty() || ops.len() > 64 {
            return Err(BadProgram::Cpus(ops.len()));
        }
        let named = ops.iter().flatten().flat_map(|op| op.spaces());
        let spaces = named.max().map_or(1, |last| last + 1).max(config.spaces);
        let programs = Self { config: Config { cpus: ops.len(), spaces, ..config }, ops };
        programs.check()?;
        Ok(programs)
    }

    /// Whether a kernel may do that: a CPU that retires a space waits for all others to be done
    /// with it, so all that it does afterwards is to reap, and no other CPU retires it.
    pub(super) fn check(&self) -> Result<(), BadProgram> {
        let mut retired = [false; SPACES_MAX];
        for (cpu, ops) in self.ops.iter().enumerate() {
            let mut has_retired = false;
            for op in ops {
                match *op {
                    Op::Retire(space) if !retired[space] => {
                        (retired[space], has_retired) = (true, true);
                    }
                    Op::Reap => {}
                    _ if has_retired || matches!(op, Op::Retire(_)) => {
                        return Err(BadProgram::UsedAfterRetire(cpu));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_reads_as_it_is_written() {
        let text = "run 0, idle, leave, map 0.3, migrate 1.0, offline-online | unmap 2.1, \
                    unmap-masked 0.0, reclaim 0.2, protect 0.1 | unmap-table 1.1, unmap-kernel 1, \
                    free-table 0.1, unmap-large 0.0, unmap-joined 0.3, reclaim-both 1.2, flush-walkers 0, \
                    trim-cpumask 1, pin 2, retire 2, reap";
        let programs = Programs::parse(Config::new(1), text).unwrap();
        assert_eq!(programs.config.cpus, 3);
        assert_eq!(programs.len(), 21);
        assert_eq!(programs.to_string(), text);
        let empty = Programs::parse(Config::new(2), "run 1 | ").unwrap();
        assert_eq!(empty.ops, [vec![Op::Run(1)], vec![]]);
        let neighbours =
            Programs::parse(Config { spaces: 1, ..Config::new(1) }, "unmap-joined 2.0");
        assert_eq!(neighbours.unwrap().config.spaces, 4);
    }

    #[test]
    fn what_no_kernel_may_do_is_no_program() {
        let bad = |text: &str| Programs::parse(Config::new(1), text).unwrap_err().to_string();
        for text in ["fly 0", "run", "run x", "idle 0", "unmap 0", "run 0.0", "unmap 0.1.2"] {
            assert!(bad(text).contains("is no operation"), "{text}: {}", bad(text));
        }
        for text in ["run 12", "unmap 0.4", "unmap-table 0.2", "unmap-kernel 2"] {
            assert!(bad(text).contains("spaces are 0 to 11"), "{text}: {}", bad(text));
        }
        assert!(
            bad("free-table 0.2").contains("tables") && bad("flush-walkers 12").contains("0 to 11")
        );
        for text in ["retire 0, run 0", "retire 0, idle", "retire 0 | retire 0"] {
            assert!(bad(text).contains("retire"), "{text}: {}", bad(text));
        }
        assert!(bad(&"|".repeat(64)).contains("65 CPUs"));
        assert!(Programs::parse(Config::new(1), "run 0, retire 1, retire 0").is_ok());
    }
}
