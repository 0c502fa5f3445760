//! Runs random programs, searches for one that fails, and shrinks it.

use std::env;
use std::rc::Rc;

use crate::memory_model::model::checked;
use shootdown_designs::{Arm64, Engine, Linux70, Linux412, Naive, engine};
use shootdown_program::OnFault;
use shootdown_run::{Limits, Memory, Outcome, RunError, Settings, Supply, run};
use shootdown_sim::{Machine, Sim, Time, machine};
use shootdown_vm::{ErasedCoherence, Policy, Replication};

use crate::memory_model::faulty::{Fault, Faulty};
use crate::memory_model::program::{NODES, Program, Reading, Sizes};

/// The design under which a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Design {
    Ours,
    /// The engine, with upper page tables for each CPU.
    Replicated,
    Linux70,
    /// Linux 7.3, with a scheduler that preempts often.
    Linux73,
    Luf,
    UnmapBatched,
    Linux412,
    Abis,
    Arm64,
    Naive,
    /// The engine, with a fault.
    Faulty(Fault),
}

impl Design {
    /// The correct designs.
    pub(crate) const ALL: [Self; 10] = [
        Self::Ours,
        Self::Replicated,
        Self::Linux70,
        Self::Linux73,
        Self::Luf,
        Self::UnmapBatched,
        Self::Linux412,
        Self::Abis,
        Self::Arm64,
        Self::Naive,
    ];

    /// Returns the design's name in the environment.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Faulty(fault) => format!("{fault:?}"),
            design => format!("{design:?}"),
        }
        .to_lowercase()
    }

    fn of_name(name: &str) -> Option<Self> {
        let faulty = Fault::ALL.map(Self::Faulty);
        Self::ALL.into_iter().chain(faulty).find(|design| design.name() == name)
    }
}

/// The engine, with replicas in every space.
pub(crate) fn replicated(sim: Rc<Sim>) -> Engine<1> {
    let policy = Policy { replication: Replication::Always, ..engine::POLICY };
    Engine::new(sim).with_policy(policy)
}

/// A program, and the parameters of its run.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) design: Design,
    pub(crate) seed: u64,
    pub(crate) room: Room,
    pub(crate) program: Program,
}

/// The amount of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Too little memory: pages are reclaimed.
    Short,
    /// Enough memory; pages move from one node to another.
    Nodes,
    /// Enough memory; the memory manager does not record where pages are mapped.
    Enough,
}

impl Room {
    /// Returns the name in the environment, which follows the design's.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Short => "",
            Self::Nodes => "-nodes",
            Self::Enough => "-enough",
        }
    }

    const fn frames(self, sizes: Sizes) -> usize {
        match (self, sizes) {
            // Enough for memory that cannot be reclaimed, but not for all files.
            (Self::Short, Sizes::Small) => 288,
            // As above, and two large pages. The first frame does not exist: one frame less than a
            // large page has is before the first large page.
            (Self::Short, Sizes::Large) => 3 * 512 - 1,
            (Self::Nodes | Self::Enough, _) => 1 << 13,
        }
    }

    const fn supply(self, reading: Reading) -> Supply {
        match (self, reading) {
            (Self::Enough, _) => Supply::Enough,
            (_, Reading::PageByPage) => Supply::Reclaimed,
            (_, Reading::Ahead) => Supply::ReclaimedReadAhead,
        }
    }
}

/// Largest number of attempts to shrink a program.
const SHRINKS_MAX: usize = 400;

impl Case {
    pub(crate) fn new(design: Design, seed: u64, room: Room) -> Self {
        let program = Program::new(seed);
        let program = if room == Room::Enough { program.without_moves() } else { program };
        Self { design, seed, room, program }
    }

    /// Parses `CONTENTS_REPLAY`: the design, the seed, and the operations to perform.
    pub(crate) fn of_environment() -> Option<Self> {
        let words = env::var("CONTENTS_REPLAY").ok()?;
        let mut words = words.split(':');
        let name = words.next()?;
        let suffixed = [Room::Enough, Room::Nodes]
            .into_iter()
            .find_map(|room| Some((name.strip_suffix(room.suffix())?, room)));
        let (name, room) = suffixed.unwrap_or((name, Room::Short));
        let design = Design::of_name(name).expect("the name of a design");
        let seed = words.next()?.parse().expect("a seed is a number");
        let mut case = Self::new(design, seed, room);
        if let Some(kept) = words.next() {
            case.program.kept = kept.split(',').flat_map(indices).collect();
        }
        Some(case)
    }

    pub(crate) fn run(&self) -> Result<Outcome, RunError> {
        match self.design {
            Design::Ours => self.run_under(Engine::<1>::new),
            Design::Replicated => self.run_under(replicated),
            Design::Linux70 => self.run_under(Linux70::uncounted),
            Design::Linux73 => self.run_under(|sim| Linux70::waiting_preemptibly(sim, None)),
            Design::Luf => self.run_under(Linux70::luf),
            Design::UnmapBatched => self.run_under(Linux412::batched),
            Design::Linux412 => self.run_under(Linux412::new),
            Design::Abis => self.run_under(|sim| Linux412::abis(sim, None)),
            Design::Arm64 => self.run_under(Arm64::skip),
            Design::Naive => self.run_under(Naive::new),
            Design::Faulty(fault) => self.run_under(|sim| Faulty::boxed(fault.design(sim), fault)),
        }
    }

    fn run_under<C: Into<ErasedCoherence>>(
        &self,
        design: impl FnOnce(Rc<Sim>) -> C,
    ) -> Result<Outcome, RunError> {
        let round = include_str!("../../../../sim/tests/round.toml");
        let mut machine = Machine::from_toml(round).unwrap().with_cpus(self.program.cpus).unwrap();
        for time in [&mut machine.interrupt.deliver_socket, &mut machine.interrupt.deliver_system] {
            *time = *time * self.program.slowness;
        }
        if self.design == Design::Linux73 {
            machine.scheduler = machine::Policy::Eevdf;
            machine.kernel.timeslice = Time::from_ns(5000);
        }
        let Program { sizes, reading, .. } = self.program;
        let settings = Settings {
            kept_free_frames: None,
            jitter: None,
            memory: Memory {
                frames: self.room.frames(sizes),
                nodes: if self.room == Room::Enough { 1 } else { NODES as usize },
                supply: self.room.supply(reading),
            },
            limits: Limits { threads: 32, time: Time::from_ms(10_000) },
            contents: Some(checked),
            on_fault: OnFault::Survived,
        };
        run(machine, settings, Rc::new(self.program.clone()), design)
    }

    /// Returns `true` if a word in memory was wrong.
    pub(crate) fn is_wrong(&self) -> bool {
        self.run().is_ok_and(|outcome| outcome.wrong_contents != 0)
    }

    /// Runs the case.
    ///
    /// # Panics
    ///
    /// Panics if the run fails or finds an error, and prints a smaller program that does so.
    #[track_caller]
    pub(crate) fn must_be_right(&self) -> Outcome {
        let is_right = |outcome: &Outcome| {
            outcome.wrong_contents == 0 && outcome.violations == 0 && outcome.hazards == 0
        };
        match self.run() {
            Ok(outcome) if is_right(&outcome) => outcome,
            Err(error) => panic!("{}: {error}", self.words()),
            Ok(_) => {
                let smaller = self.shrunken(|case| case.run().is_ok_and(|it| !is_right(&it)));
                panic!("{}", smaller.report());
            }
        }
    }

    /// Removes as many operations as possible, while the case still `fails`.
    pub(crate) fn shrunken(&self, fails: impl Fn(&Self) -> bool) -> Self {
        let mut smallest = self.clone();
        let mut part = smallest.program.kept.len().div_ceil(2);
        let mut tries = 0;
        while part > 0 {
            let mut start = 0;
            while start < smallest.program.kept.len() && tries < SHRINKS_MAX {
                let mut smaller = smallest.clone();
                let end = (start + part).min(smaller.program.kept.len());
                smaller.program.kept.drain(start..end);
                tries += 1;
                if fails(&smaller) {
                    smallest = smaller;
                } else {
                    start += part;
                }
            }
            part /= 2;
        }
        smallest
    }

    /// Returns the operations, the errors, and a command that repeats the run.
    pub(crate) fn report(&self) -> String {
        let outcome = self.run();
        let found = outcome.map(|outcome| {
            let wrong = outcome.first_wrong_contents.iter().map(ToString::to_string);
            let violations = outcome.first_violations.iter().map(|first| format!("{first:?}"));
            wrong.chain(violations).collect::<Vec<_>>().join("\n")
        });
        let again = "cargo test -p shootdown-run --test all memory_model::replay";
        format!("{}\n{found:?}\nCONTENTS_REPLAY={} {again}", self.program, self.words())
    }

    /// Returns the value of `CONTENTS_REPLAY` for this case.
    pub(crate) fn words(&self) -> String {
        let (suffix, kept) = (self.room.suffix(), ranges(&self.program.kept));
        format!("{}{suffix}:{}:{kept}", self.design.name(), self.seed)
    }
}

/// Number of programs that a test tries.
pub(crate) fn programs() -> u64 {
    number("CONTENTS_PROGRAMS").unwrap_or(48)
}

/// Returns this number of seeds.
pub(crate) fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let first = number("CONTENTS_SEED").unwrap_or(0);
    first..first + count
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Formats indices, such as `0-3,17`.
fn ranges(indices: &[usize]) -> String {
    let runs = indices.chunk_by(|one, next| one + 1 == *next);
    let range = |run: &[usize]| match run {
        [only] => only.to_string(),
        _ => format!("{}-{}", run[0], run[run.len() - 1]),
    };
    runs.map(range).collect::<Vec<_>>().join(",")
}

fn indices(range: &str) -> std::ops::RangeInclusive<usize> {
    let index = |text: &str| text.parse().expect("the number of an operation");
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    index(first)..=index(last)
}
