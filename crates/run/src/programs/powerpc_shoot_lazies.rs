//! The two workloads of the study of lazy spaces on POWER: threads that hand their CPUs to the idle
//! loop and get them back, and processes that exit while CPUs idle on them.

use shootdown_sim::Rng;

use shootdown_program::operation::{Access, AreaId, Operation, ProgramId, Start, Steps, Workload};

use super::parts::steps;

const AREA: AreaId = AreaId(0);

/// "As many software threads as CPUs (so each switch will go in and out of idle)": pairs of threads
/// of one process, each on a CPU of its own, that hand a byte back and forth through two pipes
/// (`context_switch1_threads` of will-it-scale, with half as many tasks as CPUs).
///
/// Like will-it-scale, it measures while all are running: the pair that starts last begins and ends
/// the measurement, and the others have started before and go on after. So what is to be read is
/// [`Counts::switches`](shootdown_sim::Counts::switches) of all CPUs in that time, not the
/// iterations, which are those of one pair. Each switch of the seed's goes in and out of idle, and
/// is two of the scheduler's: see [`Self::switches`].
#[derive(Clone, Copy, Debug)]
pub struct ContextSwitches {
    /// CPUs, and threads: an even number. Neighbours are a pair.
    pub cpus: u32,
    /// How often the measured pair hands the byte there and back.
    pub rounds: u64,
    /// Each pair computes for a while first, up to 10 µs, depending on this: in which order CPUs
    /// queue for a line that they share does, and so, how often it goes to a neighbour.
    pub seed: u64,
}

/// So often a pair hands its byte there and back before it is measured.
const WARM_UP: u64 = 3;
const HEAD_START_NS: u64 = 10_000;
/// How many rounds that may be, on a fast machine.
const HEAD_START_ROUNDS: u64 = 20;

impl ContextSwitches {
    /// How many switches in and out of idle so many of the scheduler's are.
    #[must_use]
    pub const fn switches(scheduler_switches: u64) -> u64 {
        scheduler_switches / 2
    }

    const fn pairs(&self) -> u32 {
        self.cpus / 2
    }

    /// How many rounds the first pairs may be ahead of the last: the start goes from pair to pair,
    /// as in a heap, and takes about a round on each level, for which two are allowed.
    const fn rounds_ahead(&self) -> u64 {
        HEAD_START_ROUNDS + 2 * (self.pairs().ilog2() as u64 + 1)
    }

    /// The last pair begins when all others have.
    fn head_start_ns(&self, pair: u32) -> u64 {
        if pair == self.pairs() {
            return HEAD_START_NS;
        }
        Rng::stream(self.seed, pair.into()).below(HEAD_START_NS)
    }

    /// Who of a pair writes first.
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
        vec![Start { program: ProgramId(0), cpu: Some(0) }]
    }

    fn steps(&self, program: ProgramId) -> Steps {
        let ProgramId(number) = program;
        if number == 0 {
            return self.main();
        }
        let (page, pairs, pair) = (u64::from(number - 1), self.pairs(), number.div_ceil(2));
        // The byte that is written and read is on the thread's stack.
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

/// Short-lived processes, one after the other on each group of CPUs. Each has a thread on every CPU
/// of its group; when it exits, those CPUs idle, with its space loaded.
///
/// An iteration is the exit of a process. Besides it, nothing is flushed that another CPU could
/// have: whatever interrupts are sent, are sent for exits, or for the copying of pages after a
/// fork, of which the parent alone has translations.
#[derive(Clone, Copy, Debug)]
pub struct ExitStorm {
    /// CPUs, of which each group has one and one for each thread. What is left over, idles.
    pub cpus: u32,
    /// How many processes live and die in each group.
    pub processes: u32,
    /// How many threads each has beside its first.
    pub threads: u32,
    /// How long threads sleep depends on this, and so, which CPUs are idle when their process ends,
    /// and for how long.
    pub seed: u64,
}

/// What a process has in memory when it forks.
const STORM_PAGES: u64 = 8;
/// A thread sleeps for up to so long.
const SLEEP_NS: u64 = 20_000;

impl ExitStorm {
    /// How many groups of CPUs there are.
    #[must_use]
    pub const fn groups(&self) -> u32 {
        self.cpus / self.cpus_per_group()
    }

    const fn cpus_per_group(&self) -> u32 {
        1 + self.threads
    }

    /// How many programs a group has: its parent, and the threads of all its processes.
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
        let before = [map, Operation::write(AREA, 0..STORM_PAGES), Operation::Begin];
        let end = Operation::End { iterations: self.processes.into() };
        steps![before, children, [end]]
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
        let here = Operation::Migrate(cpu as usize);
        let all = 0..STORM_PAGES;
        if thread == 0 {
            let threads = (1..=self.threads).map(move |thread| ProgramId(program.0 + thread));
            let spawn = threads.clone().map(Operation::Spawn);
            let join = threads.map(Operation::Join);
            return steps![[here, Operation::write(AREA, all)], spawn, join];
        }
        let sleep = Rng::stream(self.seed, program.0.into()).below(SLEEP_NS);
        let steps = [
            here,
            Operation::read(AREA, all.clone()),
            Operation::Sleep(sleep),
            Operation::read(AREA, all),
        ];
        Box::new(steps.into_iter())
    }
}
