//! Searches for violations by the engine until time is up: all short programs in every schedule,
//! and large ones at random, on each requested architecture, on all of the host's CPUs.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::num::NonZero;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use shootdown::{Lifetime, Rule};

use crate::engine::{Config, Programs, SPACES_MAX, Tags};
use crate::explore::{self, Budget, Found, Search, at_random, by_priorities, shortest};
use crate::profile::Profile;
use crate::sometimes::Sometimes;

/// The scope of a campaign.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The architectures.
    pub profiles: Vec<Profile>,
    /// CPUs of large programs: 2 to 64.
    pub cpus: usize,
    /// Total time, including the time to shrink a counter-example. An eighth is reserved for
    /// shrinking. An early counter-example gets all the time that is left.
    pub time: Duration,
    /// Seed of all random choices.
    pub seed: u64,
    /// A rule that the engine breaks.
    pub broken: Option<Rule>,
}

/// The progress of a campaign, readable while it runs.
#[derive(Debug, Default)]
pub struct Progress {
    /// Short programs that were searched exhaustively.
    pub short: AtomicUsize,
    /// States of all short programs.
    pub states: AtomicU64,
    /// Runs of large programs.
    pub runs: AtomicU64,
    /// Steps of all programs.
    pub steps: AtomicU64,
    /// Smaller programs that were tried since a violation was found; 0 before that.
    pub tried: AtomicUsize,
    /// Operations of the smallest program that still fails.
    pub smallest: AtomicUsize,
}

/// The result of a campaign.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Number of short programs, on all architectures together.
    pub short_total: usize,
    /// Number of short programs that were searched exhaustively.
    pub short: usize,
    /// States of the short programs.
    pub states: u64,
    /// Runs of large programs.
    pub runs: u64,
    /// Steps of all programs.
    pub steps: u64,
    /// The expected events that some run covered.
    pub reached: BTreeSet<Sometimes>,
    /// The violation, if there is one.
    pub counter_example: Option<CounterExample>,
}

/// A program that fails, and the run that shows it.
#[derive(Clone, Debug)]
pub struct CounterExample {
    /// The program of each CPU.
    pub programs: Programs,
    /// The architecture.
    pub profile: Profile,
    /// The violation, and how to repeat it.
    pub found: Found,
}

/// One unit of work.
enum Task {
    /// A short program, in every schedule.
    Short(Profile, Programs),
    /// A large program in random schedules, by the number of the task.
    Large(u64),
}

/// A violation, after the number of its task.
type Failure = (usize, Profile, Programs, Found);

/// A time that no search takes: a century.
pub const UNLIMITED: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Schedules of each large program. Half of them are by priorities.
const SCHEDULES: usize = 4;
/// Operations of each CPU of a large program.
const LENGTH: usize = 12;
/// Large programs between two short ones, which take longer.
const LARGE_PER_SHORT: usize = 20;

impl Campaign {
    /// Runs the campaign. `progress` is updated while it runs.
    pub fn run(&self, progress: &Progress) -> Verdict {
        let short = self.short_programs();
        let start = Instant::now();
        // The rest is for shrinking a counter-example.
        let (end, next) = (start + self.time * 7 / 8, AtomicUsize::new(0));
        let (reached, found) = (Mutex::new(BTreeSet::new()), Mutex::new(None::<Failure>));
        let work = || {
            loop {
                let index = next.fetch_add(1, Relaxed);
                // The violation with the lowest task number counts, so that the host's timing does
                // not matter.
                let is_late = matches!(&*locked(&found), Some((first, ..)) if *first < index);
                if is_late || Instant::now() >= end {
                    return;
                }
                let task = task(&short, index);
                let (profile, programs, search) = self.execute(&task, end);
                count(progress, &task, &search);
                locked(&reached).extend(&search.reached);
                if let Some(bad) = search.found {
                    let mut found = locked(&found);
                    if found.as_ref().is_none_or(|(first, ..)| *first > index) {
                        *found = Some((index, profile, programs, bad));
                    }
                }
            }
        };
        thread::scope(|scope| {
            let threads = thread::available_parallelism().map_or(1, NonZero::get);
            (0..threads).for_each(|_| drop(scope.spawn(work)));
        });
        let found = found.into_inner().unwrap_or_default();
        let counter_example = found.map(|(_, profile, programs, found)| {
            let shrinking = Shrinking { end: start + self.time, seed: self.seed, progress };
            CounterExample { programs, profile, found }.shrink(&shrinking)
        });
        Verdict {
            short_total: short.len(),
            short: progress.short.load(Relaxed),
            states: progress.states.load(Relaxed),
            runs: progress.runs.load(Relaxed),
            steps: progress.steps.load(Relaxed),
            reached: reached.into_inner().unwrap_or_default(),
            counter_example,
        }
    }

    /// Runs these tasks on this thread, and ends after the first that fails. Returns its number.
    ///
    /// The [time](Self::time) has no effect, so that the result is the same on any host. A part of
    /// the tasks finds the counter-example that the whole campaign would find in it.
    pub fn run_tasks(&self, tasks: Range<usize>) -> (Verdict, Option<usize>) {
        let (short, progress) = (self.short_programs(), Progress::default());
        let (mut verdict, mut failed) = (Verdict::default(), None);
        let end = Instant::now() + UNLIMITED;
        for index in tasks {
            let task = task(&short, index);
            verdict.short_total += usize::from(matches!(task, Task::Short(..)));
            let (profile, programs, search) = self.execute(&task, end);
            count(&progress, &task, &search);
            verdict.reached.extend(&search.reached);
            if let Some(found) = search.found {
                let shrinking = Shrinking { end, seed: self.seed, progress: &progress };
                let bad = CounterExample { programs, profile, found };
                (verdict.counter_example, failed) = (Some(bad.shrink(&shrinking)), Some(index));
                break;
            }
        }
        verdict.short = progress.short.load(Relaxed);
        verdict.states = progress.states.load(Relaxed);
        verdict.runs = progress.runs.load(Relaxed);
        verdict.steps = progress.steps.load(Relaxed);
        (verdict, failed)
    }

    /// The events that some run of a sufficiently long campaign must cover.
    pub fn expected(&self) -> BTreeSet<Sometimes> {
        let mut expected = Sometimes::all().collect::<BTreeSet<_>>();
        let tags: Vec<_> = self.profiles.iter().flat_map(|profile| self.tags(*profile)).collect();
        if !tags.iter().any(|it| matches!(it, Tags::Broadcast(_) | Tags::Domains(_))) {
            expected.remove(&Sometimes::Broadcast);
            expected.remove(&Sometimes::PinnedForDevice);
        }
        if !tags.iter().any(|it| matches!(it, Tags::Domains(_))) {
            expected.remove(&Sometimes::BroadcastInDomains);
        }
        if !tags.iter().any(|it| matches!(it, Tags::Global(_) | Tags::Renamed(_))) {
            expected.remove(&Sometimes::RolledOverDuringFlush);
        }
        if tags.iter().all(|&it| it == Tags::PerCpu(0)) {
            expected.remove(&Sometimes::KeptItsTag);
        }
        if self.cpus < 3 {
            expected.remove(&Sometimes::Coalesced);
        }
        expected
    }

    fn short_programs(&self) -> Vec<(Profile, Programs)> {
        let of_profile = |&profile: &Profile| {
            let tags = self.tags(profile)[0];
            let tags = match tags {
                Tags::Broadcast(_) => Tags::Broadcast(3),
                Tags::Domains(_) => Tags::Domains(3),
                other => other,
            };
            let config = Config { tags, broken: self.broken, ..Config::new(2) };
            Programs::all_short(config, 1).map(move |programs| (profile, programs))
        };
        self.profiles.iter().flat_map(of_profile).collect()
    }

    /// The kinds of tags that an architecture has, the most common first.
    fn tags(&self, profile: Profile) -> Vec<Tags> {
        // Broadcasts need one tag more than there are CPUs. Another one is for a device.
        let broadcast = Tags::Broadcast(self.cpus + 2);
        match (profile.name, profile.name.split('-').next()) {
            ("x86-1718", _) if self.cpus < 62 => vec![broadcast, Tags::PerCpu(2)],
            ("x86-ept" | "x86-npt", _) => vec![Tags::PerCpu(2), Tags::PerCpu(1)],
            ("arm64-tlbid", _) if self.cpus < 62 => vec![Tags::Domains(self.cpus + 2)],
            // The workaround: without PCIDs, INVLPG works.
            ("x86-invlpg", _) => vec![Tags::PerCpu(0)],
            (_, Some("x86")) => vec![Tags::PerCpu(2), Tags::PerCpu(1), Tags::PerCpu(0)],
            (_, Some("arm64")) if self.cpus < 62 => vec![broadcast, Tags::Global(4)],
            (_, Some("arm64")) => vec![Tags::Global(4)],
            (_, Some("riscv")) => vec![Tags::Global(4), Tags::PerCpu(0)],
            _ => vec![Tags::Renamed(3)],
        }
    }

    fn execute(&self, task: &Task, end: Instant) -> (Profile, Programs, Search) {
        let time = end.saturating_duration_since(Instant::now());
        match task {
            Task::Short(profile, programs) => {
                let budget = Budget { time, states: usize::MAX };
                (*profile, programs.clone(), explore::search(programs, *profile, None, budget))
            }
            &Task::Large(number) => {
                let (profile, programs) = self.large_program(number);
                let seed = self.seed.wrapping_add(number);
                let budget = Budget { time, states: SCHEDULES / 2 };
                let mut found = at_random(&programs, profile, seed, budget);
                if found.found.is_none() {
                    found = found.and(by_priorities(&programs, profile, 3, seed, budget));
                }
                (profile, programs, found)
            }
        }
    }

    /// Returns large program `number`. The numbers take the architectures in turn, and the kinds of
    /// tags of each.
    fn large_program(&self, number: u64) -> (Profile, Programs) {
        let (profiles, seed) = (self.profiles.len() as u64, self.seed.wrapping_add(number));
        let profile = self.profiles[(number % profiles) as usize];
        let kinds = self.tags(profile);
        let tags = kinds[(number / profiles) as usize % kinds.len()];
        let lifetimes = [Lifetime::Handoff, Lifetime::Shoot, Lifetime::Counted];
        let lifetime = lifetimes[(seed % 3) as usize];
        // Use more spaces than tags where all CPUs share the tags.
        let has_broadcasts = matches!(tags, Tags::Broadcast(_) | Tags::Domains(_));
        let spaces = if has_broadcasts { SPACES_MAX } else { 5 };
        let Self { cpus, broken, .. } = *self;
        // CPU sets of two words leave too few tags for broadcasts.
        let is_wide = seed % 2 == 0 && lifetime == Lifetime::Handoff && !has_broadcasts;
        let cpu_words = 1 + usize::from(is_wide);
        let config = Config { cpus, spaces, tags, lifetime, cpu_words, broken, fault: None };
        (profile, Programs::at_random(config, LENGTH, seed))
    }
}

/// Returns task `index`: a few large programs, then a short one, and so on.
fn task(short: &[(Profile, Programs)], index: usize) -> Task {
    let turn = index / (LARGE_PER_SHORT + 1);
    match (index % (LARGE_PER_SHORT + 1), short.get(turn)) {
        (LARGE_PER_SHORT, Some((profile, programs))) => Task::Short(*profile, programs.clone()),
        _ => Task::Large(index as u64),
    }
}

fn count(progress: &Progress, task: &Task, search: &Search) {
    progress.steps.fetch_add(search.steps, Relaxed);
    if let Task::Short(..) = task {
        progress.short.fetch_add(usize::from(search.is_complete), Relaxed);
        progress.states.fetch_add(search.states as u64, Relaxed);
    } else {
        progress.runs.fetch_add(search.runs, Relaxed);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A thread that panics poisons the lock, and the scope passes the panic on.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl CounterExample {
    /// Searches a program for a violation: first with as few changes of CPU as possible, then in
    /// every schedule, then at random. The budget is for all of it.
    pub fn search(programs: &Programs, profile: Profile, seed: u64, budget: Budget) -> Search {
        let end = Instant::now() + budget.time;
        let left = |states| {
            let time = end.saturating_duration_since(Instant::now());
            Budget { time, states }
        };
        let (states, tries) = (budget.states, RANDOM_SCHEDULES);
        let searches: [&dyn Fn() -> Search; 4] = [
            &|| shortest(programs, profile, 3, left(states / 4)),
            &|| explore::search(programs, profile, None, left(states)),
            &|| at_random(programs, profile, seed, left(tries)),
            &|| by_priorities(programs, profile, 3, seed, left(tries)),
        ];
        let mut total = Search::default();
        for next in searches {
            total = total.and(next());
            if total.found.is_some() || total.is_complete {
                break;
            }
        }
        total
    }

    /// Shrinks the program, and then looks for the shortest run that fails, as far as time allows.
    fn shrink(self, how: &Shrinking<'_>) -> Self {
        let Self { programs, profile, found } = self;
        let &Shrinking { end, seed, progress } = how;
        progress.smallest.store(programs.len(), Relaxed);
        let now = Instant::now();
        // The last third is for the shortest run.
        let end_of_tries = now + end.saturating_duration_since(now) * 2 / 3;
        let smallest = RefCell::new((programs.clone(), found));
        let fails = |programs: &Programs| {
            let time = || end_of_tries.saturating_duration_since(Instant::now());
            let budget = || Budget { time: time(), states: SHRINK_SCHEDULES };
            if time().is_zero() {
                return false;
            }
            progress.tried.fetch_add(1, Relaxed);
            let found = at_random(programs, profile, seed, budget()).found;
            let by_priorities = || by_priorities(programs, profile, 3, seed, budget()).found;
            // A race of two operations may be rare at random, and has few schedules.
            let few_changes = || {
                let budget = Budget { time: time(), states: SHORTEST_STATES };
                (programs.len() <= 2).then(|| shortest(programs, profile, 3, budget).found)?
            };
            let found = found.or_else(by_priorities).or_else(few_changes);
            let Some(found) = found else { return false };
            progress.smallest.store(programs.len(), Relaxed);
            smallest.replace((programs.clone(), found));
            true
        };
        // The last program that failed is the smallest.
        let _ = programs.shrink(fails);
        let (programs, found) = smallest.into_inner();
        let time = end.saturating_duration_since(Instant::now());
        let budget = Budget { time, states: SHORTEST_STATES };
        let shortest = Self::search(&programs, profile, seed, budget).found;
        Self { programs, profile, found: shortest.unwrap_or(found) }
    }
}

/// The settings for shrinking a counter-example.
struct Shrinking<'p> {
    /// The time at which shrinking ends.
    end: Instant,
    /// Seed of all random choices.
    seed: u64,
    progress: &'p Progress,
}

/// Schedules of each kind in which a smaller program must fail.
const SHRINK_SCHEDULES: usize = 400;

/// Maximum number of states in the search for the shortest run: a few seconds.
const SHORTEST_STATES: usize = 400_000;

/// Random schedules of one program.
const RANDOM_SCHEDULES: usize = 5000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::Violation;

    fn campaign(broken: Option<Rule>, profiles: &[Profile], seconds: u64) -> Verdict {
        let (profiles, time) = (profiles.to_vec(), Duration::from_secs(seconds));
        Campaign { profiles, cpus: 5, time, seed: 1, broken }.run(&Progress::default())
    }

    /// A program whose CPUs deadlock takes long to try, because a deadlock is only recognised after
    /// 100,000 steps.
    #[test]
    fn shrinking_ends_within_the_budget() {
        let config = Config { broken: Some(Rule::AnswerWhileWaiting), ..Config::new(4) };
        let text = "run 0, unmap-masked 0.0, map 0.0, run 1, idle, unmap-masked 0.0, run 2, \
                    leave | \
                    run 0, unmap-masked 0.1, map 0.1, run 0, leave, unmap-masked 0.1, run 1, \
                    idle | \
                    run 0, unmap-masked 0.2, run 0, protect 0.3, run 2, reclaim 1.1, idle, run 0 | \
                    run 0, unmap-masked 0.3, run 1, unmap 2.0, run 0, migrate 2.1, unmap-kernel 0";
        let programs = Programs::parse(config, text).expect("the text is valid");
        let budget = Budget { time: Duration::from_secs(60), states: 1000 };
        let found =
            at_random(&programs, Profile::X86, 1, budget).found.expect("the rule is needed");
        assert_eq!(found.violation, Violation::Stuck);
        let length = programs.len();
        let shrunk_within = |time| {
            let progress = Progress::default();
            let shrinking = Shrinking { end: Instant::now() + time, seed: 1, progress: &progress };
            let (programs, found) = (programs.clone(), found.clone());
            let small =
                CounterExample { programs, profile: Profile::X86, found }.shrink(&shrinking);
            let (tried, smallest) = (progress.tried.load(Relaxed), progress.smallest.load(Relaxed));
            assert!(smallest == small.programs.len(), "{smallest}: {}", small.programs);
            (small.programs.len(), tried)
        };
        // How many programs are tried in a time depends on the host, but none is tried after it.
        assert_eq!(shrunk_within(Duration::ZERO), (length, 0));
        let (small, tried) = shrunk_within(Duration::from_secs(2));
        assert!(small <= length && tried > 0, "{small} after {tried}");
    }

    #[test]
    fn missing_rule_is_detected_and_shrunk() {
        let verdict = campaign(Some(Rule::RingPresent), &[Profile::X86], 20);
        let CounterExample { programs, found, .. } =
            verdict.counter_example.expect("the rule is needed");
        // Two operations show it. A third may remain, without which the same choices do not.
        assert!(programs.config.cpus == 2 && programs.len() <= 3, "{programs}");
        // The run is short: no step is left out or repeated.
        assert!(found.choices.len() < 60, "{}", found.choices.len());
    }

    #[test]
    fn complete_engine_has_no_violation() {
        let verdict = campaign(None, &Profile::ALL, 2);
        let bad =
            verdict.counter_example.map(|bad| (bad.programs.to_string(), bad.found.violation));
        assert_eq!(bad, None);
        assert!(verdict.runs > 0 && verdict.steps > verdict.runs);
        assert_eq!(verdict.short_total, 4 * 170);
    }
}
