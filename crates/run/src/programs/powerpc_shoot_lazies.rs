//! The two workloads of the study of lazy address spaces on POWER: threads that block and wake each
//! other, so that their CPUs enter and leave the idle loop, and processes that exit while CPUs idle
//! with their address spaces.

use shootdown_sim::Rng;

use shootdown_program::operation::{Access, AreaId, Operation, ProgramId, Start, Steps, Workload};

use super::parts::{measured, on_cpu_0, steps};

const AREA: AreaId = AreaId(0);

/// "As many software threads as CPUs (so each switch will go in and out of idle)": pairs of threads
/// of one process, each on a CPU of its own, that pass a byte back and forth through two pipes
/// (`context_switch1_threads` of will-it-scale, with half as many tasks as CPUs).
///
/// Like will-it-scale, the workload measures while all threads run. The pair that starts last
/// begins and ends the measurement; the others start before and continue after it. Read
/// [`Counts::switches`](shootdown_sim::Counts::switches) of all CPUs in that time, not the
/// iterations, which are those of one pair. A switch of the study enters and leaves idle, and is
/// two switches of the scheduler: see [`Self::switches`].
#[derive(Clone, Copy, Debug)]
pub struct ContextSwitches {
    /// Number of CPUs and of threads; even. Neighbours are a pair.
    pub cpus: u32,
    /// Number of times that the measured pair passes the byte forth and back.
    pub rounds: u64,
    /// Seed of the delay of up to 10 µs after which each pair begins. The delays decide the order
    /// in which CPUs queue for a shared cache line, and so how often the line moves to a neighbour.
    pub seed: u64,
}
/// Number of rounds of a pair before it is measured.
const WARM_UP: u64 = 3;
const HEAD_START_NS: u64 = 10_000;
/// Upper bound of the number of rounds in a head start, on a fast machine.
const HEAD_START_ROUNDS: u64 = 20;

impl ContextSwitches {
    /// Converts switches of the scheduler to switches that enter and leave idle.
    #[must_use]
    pub const fn switches(scheduler_switches: u64) -> u64 {
        scheduler_switches / 2
    }

    const fn pairs(&self) -> u32 {
        self.cpus / 2
    }

    /// Returns an upper bound of the rounds by which the first pairs are ahead of the last one.
    /// Each pair starts two others, as in a binary heap. Each level takes about one round; the
    /// bound allows two.
    const fn rounds_ahead(&self) -> u64 {
        HEAD_START_ROUNDS + 2 * (self.pairs().ilog2() as u64 + 1)
    }

    /// Returns the delay of a pair. The last pair begins when all others have.
    fn head_start_ns(&self, pair: u32) -> u64 {
        if pair == self.pairs() {
            return HEAD_START_NS;
        }
        Rng::stream(self.seed, pair.into()).below(HEAD_START_NS)
    }

    /// Returns the thread of a pair that writes first.
    const fn first_of(pair: u32) -> ProgramId {
        ProgramId(2 * pair - 1)
    }

    fn main(&self) -> Steps {
        let threads = 1..=self.cpus;
        let spawn = threads.clone().map(|thread| Operation::Spawn(ProgramId(thread)));
        let ready = threads.clone().map(|_| Operation::Block);
        let join = threads.map(|thread| Operation::Join(ProgramId(thread)));
        let start = [Operation::Wake(Self::first_of(1))];
        steps![[Operation::map_own(AREA, self.cpus.into())], spawn, ready, start, join]
    }
}

impl Workload for ContextSwitches {
    fn name(&self) -> String {
        "context-switches".to_owned()
    }

    fn processes(&self) -> Vec<Start> {
        on_cpu_0()
    }

    fn steps(&self, program: ProgramId) -> Steps {
        let ProgramId(number) = program;
        if number == 0 {
            return self.main();
        }
        let (page, pairs, pair) = (u64::from(number - 1), self.pairs(), number.div_ceil(2));
        // The thread writes and reads the byte on its stack.
        let byte = move |access| Operation::Touch { area: AREA, pages: page..page + 1, access };
        let ready = [
            Operation::Migrate(number as usize - 1),
            byte(Access::Write),
            Operation::Wake(ProgramId(0)),
        ];
        let rounds = WARM_UP + self.rounds + if pair == pairs { 0 } else { self.rounds_ahead() };
        if number.is_multiple_of(2) {
            let partner = ProgramId(number - 1);
            let turn = move |_| {
                let (read, write) = (byte(Access::Write), byte(Access::Read));
                [Operation::Block, read, write, Operation::Wake(partner)]
            };
            return steps![ready, (0..rounds).flat_map(turn)];
        }
        let partner = ProgramId(number + 1);
        let turn = move |_| {
            let (write, read) = (byte(Access::Read), byte(Access::Write));
            [write, Operation::Wake(partner), Operation::Block, read]
        };
        let others = [2 * pair, 2 * pair + 1].into_iter().filter(move |&other| other <= pairs);
        let start = others.map(|other| Operation::Wake(Self::first_of(other)));
        let start = start.chain([Operation::Compute(self.head_start_ns(pair))]);
        let before = ready.into_iter().chain([Operation::Block]).chain(start);
        if pair != pairs {
            return steps![before, (0..rounds).flat_map(turn)];
        }
        let (warm_up, measured) = (0..WARM_UP, WARM_UP..rounds);
        let end = Operation::End { iterations: 2 * self.rounds };
        steps![before, warm_up.flat_map(turn), [Operation::Begin], measured.flat_map(turn), [end]]
    }
}

/// Short-lived processes, one after the other on each group of CPUs. Each process has a thread on
/// every CPU of its group. When the process exits, those CPUs idle with its address space loaded.
///
/// An iteration is the exit of a process. No other operation flushes a translation that another CPU
/// could have. All interrupts are therefore sent for exits, or for the copies of pages after a
/// fork, of which only the parent has translations.
#[derive(Clone, Copy, Debug)]
pub struct ExitStorm {
    /// Number of CPUs. Each group has one CPU, and one for each thread. The remaining CPUs idle.
    pub cpus: u32,
    /// Number of processes of each group.
    pub processes: u32,
    /// Number of threads of each process, without its first.
    pub threads: u32,
    /// Seed of the times that threads sleep. They decide which CPUs are idle when their process
    /// ends, and for how long.
    pub seed: u64,
}

/// Number of pages of a process that forks.
const STORM_PAGES: u64 = 8;
/// Largest time that a thread sleeps.
const SLEEP_NS: u64 = 20_000;

impl ExitStorm {
    /// Returns the number of groups of CPUs.
    #[must_use]
    pub const fn groups(&self) -> u32 {
        self.cpus / self.cpus_per_group()
    }

    const fn cpus_per_group(&self) -> u32 {
        1 + self.threads
    }

    /// Returns the number of programs of a group: its parent, and the threads of all its processes.
    const fn programs_per_group(&self) -> u32 {
        1 + self.processes * (1 + self.threads)
    }

    fn parent(&self, program: ProgramId) -> Steps {
        let children = (0..self.processes).flat_map({
            let per_process = 1 + self.threads;
            move |index| {
                let child = ProgramId(program.0 + 1 + index * per_process);
                [Operation::Fork(child), Operation::Join(child)]
            }
        });
        let map = Operation::map_own(AREA, STORM_PAGES);
        let before = [map, Operation::write(AREA, 0..STORM_PAGES)];
        measured(before, children, self.processes.into())
    }
}

impl Workload for ExitStorm {
    fn name(&self) -> String {
        "exit-storm".to_owned()
    }

    fn processes(&self) -> Vec<Start> {
        let start = |group| Start {
            program: ProgramId(group * self.programs_per_group()),
            cpu: Some((group * self.cpus_per_group()) as usize),
        };
        (0..self.groups()).map(start).collect()
    }

    fn steps(&self, program: ProgramId) -> Steps {
        let (group, number) =
            (program.0 / self.programs_per_group(), program.0 % self.programs_per_group());
        if number == 0 {
            return self.parent(program);
        }
        let thread = (number - 1) % (1 + self.threads);
        let cpu = group * self.cpus_per_group() + thread;
        let migrate = Operation::Migrate(cpu as usize);
        let all = 0..STORM_PAGES;
        if thread == 0 {
            let threads = (1..=self.threads).map(move |thread| ProgramId(program.0 + thread));
            let spawn = threads.clone().map(Operation::Spawn);
            let join = threads.map(Operation::Join);
            return steps![[migrate, Operation::write(AREA, all)], spawn, join];
        }
        let sleep = Rng::stream(self.seed, program.0.into()).below(SLEEP_NS);
        let steps = [
            migrate,
            Operation::read(AREA, all.clone()),
            Operation::Sleep(sleep),
            Operation::read(AREA, all),
        ];
        Box::new(steps.into_iter())
    }
}
