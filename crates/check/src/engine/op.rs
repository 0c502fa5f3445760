//! The operations of a kernel, and their syntax.

use std::fmt;
use std::str::FromStr;

use super::{Config, Programs, SPACES_MAX};
use crate::hardware::{PAGES, SLOTS};

/// Defines the operations. Each has numbers, the name in programs, and a verb phrase. `changes` is
/// for those that remove entries of their spaces' tables, or forbid writes by them.
macro_rules! operations {
    ($(
        $(#[$doc:meta])*
        $op:ident$(($one:ident $(, $two:ident)?))? $name:literal $($changes:ident)?:
            $what:literal $(, $argument:expr)?;
    )*) => {
        /// An operation that a kernel performs on a CPU.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Op {
            $($(#[$doc])* $op $((operations!(@type $one) $(, operations!(@type $two))?))?,)*
        }

        impl Op {
            /// Returns the operation with a name and numbers.
            fn of(name: &str, numbers: &[usize]) -> Option<Self> {
                Some(match (name, numbers) {
                    $(($name, &[$($one $(, $two)?)?]) => Self::$op $(($one $(, $two)?))?,)*
                    _ => return None,
                })
            }

            /// Returns the name of the operation, its first number, and its second number.
            const fn parts(self) -> (&'static str, Option<usize>, Option<usize>) {
                match self {
                    $(Self::$op $(($one $(, $two)?))? => (
                        $name,
                        operations!(@option $($one)?),
                        operations!(@option $($($two)?)?),
                    ),)*
                }
            }

            /// Returns `true` if the operation removes entries of its spaces' tables, or forbids
            /// writes by them.
            pub(super) const fn changes_primary(self) -> bool {
                match self { $(Self::$op { .. } => operations!(@is $($changes)?),)* }
            }

            /// Describes the operation as a verb phrase, for a history.
            pub fn describe(self) -> String {
                match self {
                    $(Self::$op $(($one $(, $two)?))? => format!($what $(, $argument)?),)*
                }
            }
        }
    };
    (@type $number:ident) => { usize };
    (@option) => { None };
    (@option $number:ident) => { Some($number) };
    (@is) => { false };
    (@is changes) => { true };
}

operations! {
    /// Runs a thread of this space, which is in user mode for a while. The following operations are
    /// its system calls.
    Run(space) "run": "runs space {space}";
    /// Goes idle, with the space still loaded.
    Idle "idle": "goes idle";
    /// Loads the kernel's own root.
    Leave "leave": "leaves its space";
    /// Unmaps a page of a space, flushes, waits, and reuses its frame.
    Unmap(space, page) "unmap" changes: "unmaps page {page} of space {space}";
    /// As [`Op::Unmap`], with interrupts masked while the CPU waits.
    UnmapMasked(space, page) "unmap-masked" changes:
        "unmaps page {page} of space {space}, with interrupts masked";
    /// As [`Op::Unmap`]. The thread sleeps until the CPUs that it waits for wake it.
    UnmapAsleep(space, page) "unmap-asleep" changes:
        "unmaps page {page} of space {space}, and sleeps until the flush is done";
    /// Maps an unmapped page of a space, if its frame is free. This requires no flush.
    Map(space, page) "map": "maps page {page} of space {space}";
    /// Reclaims a page of a space: unmaps it and flushes it in a batch.
    Reclaim(space, page) "reclaim" changes: "reclaims page {page} of space {space}";
    /// Write-protects a page of a space.
    Protect(space, page) "protect" changes: "write-protects page {page} of space {space}";
    /// Reclaims a page of a space that is read-only from the beginning: unmaps it without a flush,
    /// and flushes what is due when its frame is reused.
    DeferAndReuse(space, page) "defer-and-reuse" changes:
        "defers the flush of page {page} of space {space}, and reuses its frame";
    /// Handles a guest's fault on a page, in a secondary table that is filled from the space's: see
    /// [`PrimaryChanges`](shootdown::PrimaryChanges). The guest then uses the page. Operations that
    /// unmap pages of such a space are changes.
    Shadow(space, page) "shadow": "handles a guest's fault on page {page} of space {space}";
    /// Moves a page of a space to another frame: unmaps it, flushes, waits, copies it, and maps it
    /// again.
    Migrate(space, page) "migrate" changes: "migrates page {page} of space {space}";
    /// Removes a table and its pages from a space, flushes, and frees the table when no CPU can
    /// walk it.
    UnmapTable(space, slot) "unmap-table" changes: "unmaps table {slot} of space {space}";
    /// As [`Op::UnmapTable`], but does not interrupt CPUs that are lazy on the space. The table
    /// stays in quarantine until these CPUs have forgotten their pointers to it. If the quarantine
    /// is full, they are interrupted.
    FreeTable(space, slot) "free-table" changes:
        "unmaps table {slot} of space {space}, and quarantines it";
    /// Replaces a table by a large page, and frees the table and its pages. Then unmaps the large
    /// page, flushes, and reuses its frame.
    UnmapLarge(space, slot) "unmap-large" changes:
        "replaces table {slot} of space {space} by a large page, and unmaps it";
    /// Unmaps a page of a space and the same page of its [neighbour](Self::spaces) by two flushes.
    /// The first is polled, and then joined with the second.
    UnmapJoined(space, page) "unmap-joined" changes:
        "unmaps page {page} of spaces {space} and {}", space ^ 1;
    /// Reclaims a page of a space and the same page of its neighbour in one batch.
    ReclaimBoth(space, page) "reclaim-both" changes:
        "reclaims page {page} of spaces {space} and {}", space ^ 1;
    /// Frees the pages of a table, which were zeroed where they are and left mapped: claims their
    /// entries, flushes all of them once, and tests each page for zeros. The first is found to be
    /// zero, and its frame is reused; the second is in use again, and mapped back.
    FreeDiscarded(space, slot) "free-discarded" changes:
        "frees the discarded pages of table {slot} of space {space}";
    /// Makes all CPUs forget their pointers to the space's tables in quarantine, and frees these
    /// tables.
    FlushWalkers(space) "flush-walkers": "flushes the walkers of space {space}";
    /// Trims from a space's CPU mask the CPUs that do not use it.
    TrimCpumask(space) "trim-cpumask": "trims the CPU mask of space {space}";
    /// Pins the tag of a space for a device, which then uses the space for a while.
    Pin(space) "pin": "pins space {space} for a device";
    /// Attaches a device with a TLB of its own to a space, which the device then uses for a while.
    Attach(space) "attach": "attaches a device to space {space}";
    /// A hypervisor stops this CPU for a while. If the CPU runs a space, it then continues in user
    /// mode.
    Stop "stop": "is stopped by its hypervisor";
    /// Walks a table of the space that this CPU runs by software, with interrupts masked. A
    /// hypervisor stops the CPU after it has read the pointer to the table, for a while. If the CPU
    /// runs another space, it does nothing; if flushes are broadcast, it is stopped, and walks
    /// nothing.
    StopInWalk(space, slot) "stop-in-walk":
        "walks table {slot} of space {space}, and is stopped by its hypervisor";
    /// Makes other CPUs drop their hazards of dead spaces.
    Reap "reap": "reaps dead spaces";
    /// Unmaps a kernel page, which all CPUs use, and reuses its frame.
    UnmapKernel(page) "unmap-kernel": "unmaps kernel page {page}";
    /// Removes the kernel's page table with its pages, flushes, and frees the table.
    UnmapKernelTable "unmap-kernel-table": "unmaps the kernel's page table";
    /// Waits until no CPU runs the space or will run it, and retires it. Its tables are freed when
    /// no CPU can walk them.
    Retire(space) "retire": "retires space {space}";
    /// Goes offline, and comes back online.
    OfflineOnline "offline-online": "goes offline, and comes back";
    /// Is in user mode for a while, where flushes of the kernel's pages do not interrupt it. If the
    /// CPU runs no space, it sleeps in the same way.
    StayInUser "stay-in-user": "is in user mode, without interrupts for the kernel";
}

impl Op {
    /// Returns the space of the operation, or the first of two.
    fn space(self) -> Option<usize> {
        match self {
            Self::UnmapKernel(_) => None,
            _ => self.parts().1,
        }
    }

    /// Returns the spaces of the operation. The neighbour of an even space is the next one; the
    /// neighbour of an odd space is the previous one.
    pub fn spaces(self) -> impl Iterator<Item = usize> {
        let has_two = matches!(self, Self::UnmapJoined(..) | Self::ReclaimBoth(..));
        let neighbour = self.space().filter(|_| has_two).map(|space| space ^ 1);
        self.space().into_iter().chain(neighbour)
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

/// The reason why a text is not a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadProgram {
    /// The text is not an operation.
    #[error("`{}` is not an operation", .0.escape_debug())]
    Unknown(String),
    /// The space, page or table does not exist.
    #[error(
        "`{}`: spaces are 0 to {}, pages 0 to {}, tables and kernel pages 0 to {}",
        .0.escape_debug(), SPACES_MAX - 1, SLOTS * PAGES - 1, SLOTS - 1
    )]
    OutOfRange(String),
    /// A CPU uses a space after retiring one, or a space is retired twice.
    #[error("CPU {0} uses a space after retiring one, or a space is retired twice")]
    UsedAfterRetire(usize),
    /// There are more than 64 CPUs, or none.
    #[error("{0} CPUs; there can be 1 to 64")]
    Cpus(usize),
}

impl FromStr for Op {
    type Err = BadProgram;

    fn from_str(text: &str) -> Result<Self, BadProgram> {
        let unknown = || BadProgram::Unknown(text.to_owned());
        let (name, numbers) = text.split_once(' ').unwrap_or((text, ""));
        let numbers = numbers.split('.').filter(|number| !number.is_empty());
        let numbers = numbers.map(str::parse).collect::<Result<Vec<usize>, _>>();
        let numbers = numbers.map_err(|_| unknown())?;
        let op = Self::of(name, &numbers).ok_or_else(unknown)?;
        let (_, space, page) = op.parts();
        let (spaces, pages) = match op {
            Self::UnmapKernel(_) => (SLOTS, 1),
            Self::UnmapTable(..)
            | Self::FreeTable(..)
            | Self::UnmapLarge(..)
            | Self::StopInWalk(..)
            | Self::FreeDiscarded(..) => (SPACES_MAX, SLOTS),
            _ => (SPACES_MAX, SLOTS * PAGES),
        };
        if space.is_some_and(|space| space >= spaces) || page.is_some_and(|page| page >= pages) {
            return Err(BadProgram::OutOfRange(text.to_owned()));
        }
        Ok(op)
    }
}

impl Programs {
    /// Parses operations separated by commas, and CPUs separated by bars: `run 0, idle | unmap
    /// 0.1`. There are as many CPUs as the text has, and at least as many spaces as it names.
    ///
    /// # Errors
    ///
    /// If the text is not a program, or if no kernel may perform it.
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

    /// Returns an error if no kernel may perform the programs. A CPU that retires a space waits for
    /// all other CPUs to finish with it. Afterwards, it may only reap, and no other CPU may retire
    /// that space.
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
    fn program_text_round_trips() {
        let text = "run 0, idle, leave, map 0.3, migrate 1.0, offline-online | unmap 2.1, \
                    unmap-masked 0.0, reclaim 0.2, protect 0.1 | unmap-table 1.1, unmap-kernel 1, \
                    free-table 0.1, unmap-large 0.0, unmap-joined 0.3, reclaim-both 1.2, \
                    flush-walkers 0, defer-and-reuse 0.0, free-discarded 1.0, trim-cpumask 1, \
                    pin 2, attach 1, stop, unmap-kernel-table, stop-in-walk 1.0, stay-in-user, \
                    shadow 0.1, retire 2, reap";
        let programs = Programs::parse(Config::new(1), text).unwrap();
        assert_eq!(programs.config.cpus, 3);
        assert_eq!(programs.len(), 29);
        assert_eq!(programs.to_string(), text);
        let empty = Programs::parse(Config::new(2), "run 1 | ").unwrap();
        assert_eq!(empty.ops, [vec![Op::Run(1)], vec![]]);
        let neighbours =
            Programs::parse(Config { spaces: 1, ..Config::new(1) }, "unmap-joined 2.0");
        assert_eq!(neighbours.unwrap().config.spaces, 4);
    }

    #[test]
    fn invalid_program_is_rejected() {
        let bad = |text: &str| Programs::parse(Config::new(1), text).unwrap_err().to_string();
        for text in ["fly 0", "run", "run x", "idle 0", "unmap 0", "run 0.0", "unmap 0.1.2"] {
            assert!(bad(text).contains("is not an operation"), "{text}: {}", bad(text));
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
