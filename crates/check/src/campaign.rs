//! Looking for whatever is wrong with the engine until time is up: all short programs in every
//! schedule, and large ones at random, on every architecture that is asked for, on all of the
//! host's CPUs.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use shootdown::{Lifetime, Rule};

use crate::engine::{Config, Programs, SPACES_MAX, Tags};
use crate::explore::{Budget, Found, Search, at_random, by_priorities, search, shortest};
use crate::profile::Profile;
use crate::sometimes::Sometimes;

/// What is looked for, where, and for how long.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// On these architectures.
    pub profiles: Vec<Profile>,
    /// CPUs of large programs: 2 to 64.
    pub cpus: usize,
    /// For so long, including the time to make a counter-example small. An eighth is kept for that;
    /// a counter-example that is found early has all that is left.
    pub time: Duration,
    /// Where random numbers begin.
    pub seed: u64,
    /// A rule that the engine breaks.
    pub broken: Option<Rule>,
}

/// How far it has come, while it runs.
#[derive(Debug, Default)]
pub struct Progress {
    /// Short programs that were gone through.
    pub short: AtomicUsize,
    /// States of all of them.
    pub states: AtomicU64,
    /// Runs of large programs.
    pub runs: AtomicU64,
    /// Steps of everything.
    pub steps: AtomicU64,
    /// Smaller programs that were tried, since something was found; 0 before that.
    pub tried: AtomicUsize,
    /// Operations of the smallest one that goes wrong.
    pub smallest: AtomicUsize,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// How many short programs there are, on all architectures together.
    pub short_total: usize,
    /// How many of them were gone through, each in every schedule.
    pub short: usize,
    /// In so many states.
    pub states: u64,
    /// Runs of large programs.
    pub runs: u64,
    /// Steps of everything.
    pub steps: u64,
    /// What happened that must happen now and then.
    pub reached: BTreeSet<Sometimes>,
    /// What is wrong.
    pub counter_example: Option<CounterExample>,
}

/// A program that goes wrong, and how.
#[derive(Clone, Debug)]
pub struct CounterExample {
    /// What each CPU does.
    pub programs: Programs,
    /// On which architecture.
    pub profile: Profile,
    /// What happens.
    pub found: Found,
}

/// One thing to look at.
enum Task {
    /// A short program, in every schedule.
    Short(Profile, Programs),
    /// A large one, at random, by this seed.
    Large(u64),
}

/// What was found, and as the so many-th.
type Bad = (usize, Profile, Programs, Found);

/// Schedules of each large program, half of them by priorities.
const SCHEDULES: usize = 4;
/// Operations of each CPU of a large program.
const LENGTH: usize = 12;
/// Large programs are looked at so often between two short ones, which take longer.
const LARGE_PER_SHORT: usize = 20;

impl Campaign {
    /// Does it. `progress` can be looked at meanwhile.
    pub fn run(&self, progress: &Progress) -> Verdict {
        let short = self.short_programs();
        let start = Instant::now();
        // The rest is for making a counter-example small.
        let (end, next) = (start + self.time * 7 / 8, AtomicUsize::new(0));
        let (reached, found) = (Mutex::new(BTreeSet::new()), Mutex::new(None::<Bad>));
        let work = || {
            loop {
                let index = next.fetch_add(1, Relaxed);
                // What was found first in this order is what is shown, whoever was faster.
                let is_late = matches!(&*locked(&found), Some((first, ..)) if *first < index);
                if is_late || Instant::now() >= end {
                    return;
                }
                let (profile, programs, search) = self.look_at(&task(&short, index), end);
                count(progress, &short, index, &search);
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
            CounterExample { programs, profile, found }.shrunken(&shrinking)
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

    /// What must happen in some run of a campaign that was long enough.
    #[must_use]
    pub fn expected(&self) -> BTreeSet<Sometimes> {
        let mut expected = BTreeSet::from(Sometimes::ALL);
        let tags: Vec<_> = self.profiles.iter().flat_map(|profile| self.tags(*profile)).collect();
        if !tags.iter().any(|it| matches!(it, Tags::Broadcast(_))) {
            expected.remove(&Sometimes::Broadcast);
            expected.remove(&Sometimes::PinnedForDevice);
        }
        if !tags.iter().any(|it| matches!(it, Tags::Global(_) | Tags::Renamed(_))) {
            expected.remove(&Sometimes::RolledOverDuringFlush);
        }
        if self.cpus < 3 {
            expected.remove(&Sometimes::Coalesced);
        }
        expected
    }

    fn short_programs(&self) -> Vec<(Profile, Programs)> {
        let of_profile = |&profile: &Profile| {
            let tags = self.tags(profile)[0];
            let tags = if let Tags::Broadcast(_) = tags { Tags::Broadcast(3) } else { tags };
            let config = Config { tags, broken: self.broken, ..Config::new(2) };
            Programs::all_short(config, 1).map(move |programs| (profile, programs))
        };
        self.profiles.iter().flat_map(of_profile).collect()
    }

    /// The kinds of tags that an architecture has, the most usual first.
    fn tags(&self, profile: Profile) -> Vec<Tags> {
        match profile.name {
            "x86" => vec![Tags::PerCpu(2), Tags::PerCpu(1), Tags::PerCpu(0)],
            // One more than CPUs, or they do not suffice for broadcasts; and one for a device.
            "arm64" if self.cpus < 62 => vec![Tags::Broadcast(self.cpus + 2), Tags::Global(4)],
            "arm64" => vec![Tags::Global(4)],
            "riscv" => vec![Tags::Global(4), Tags::PerCpu(0)],
            _ => vec![Tags::Renamed(3)],
        }
    }

    fn look_at(&self, task: &Task, end: Instant) -> (Profile, Programs, Search) {
        let time = end.saturating_duration_since(Instant::now());
        match task {
            Task::Short(profile, programs) => {
                let budget = Budget { time, states: usize::MAX };
                (*profile, programs.clone(), search(programs, *profile, None, budget))
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

    /// By a number: of each architecture in turn, and of each kind that it has.
    fn large_program(&self, number: u64) -> (Profile, Programs) {
        let (profiles, seed) = (self.profiles.len() as u64, self.seed.wrapping_add(number));
        let profile = self.profiles[(number % profiles) as usize];
        let kinds = self.tags(profile);
        let tags = kinds[(number / profiles) as usize % kinds.len()];
        let lifetimes = [Lifetime::Handoff, Lifetime::Shoot, Lifetime::Counted];
        let lifetime = lifetimes[(seed % 3) as usize];
        // More spaces than tags, where those are the same on all CPUs.
        let spaces = if let Tags::Broadcast(_) = tags { SPACES_MAX } else { 5 };
        let Self { cpus, broken, .. } = *self;
        // Sets of two words leave too few tags for broadcasts.
        let is_wide =
            seed % 2 == 0 && lifetime == Lifetime::Handoff && !matches!(tags, Tags::Broadcast(_));
        let cpu_words = 1 + usize::from(is_wide);
        let config = Config { cpus, spaces, tags, lifetime, cpu_words, broken };
        (profile, Programs::at_random(config, LENGTH, seed))
    }
}

/// What is looked at as the so many-th: a few large programs, a short one, and so on.
fn task(short: &[(Profile, Programs)], index: usize) -> Task {
    let turn = index / (LARGE_PER_SHORT + 1);
    match (index % (LARGE_PER_SHORT + 1), short.get(turn)) {
        (LARGE_PER_SHORT, Some((profile, programs))) => Task::Short(*profile, programs.clone()),
        _ => Task::Large(index as u64),
    }
}

fn count(progress: &Progress, short: &[(Profile, Programs)], index: usize, search: &Search) {
    progress.steps.fetch_add(search.steps, Relaxed);
    if let Task::Short(..) = task(short, index) {
        progress.short.fetch_add(usize::from(search.is_complete), Relaxed);
        progress.states.fetch_add(search.states as u64, Relaxed);
    } else {
        progress.runs.fetch_add(search.runs, Relaxed);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A thread that panics takes the campaign with it.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl CounterExample {
    /// Looks for what is wrong with a program: with as few changes of CPU as possible first, then
    /// in every schedule, then at random. The budget is for all of it.
    pub fn look(programs: &Programs, profile: Profile, seed: u64, budget: Budget) -> Search {
        let end = Instant::now() + budget.time;
        let left = |states| {
            let time = end.saturating_duration_since(Instant::now());
            Budget { time, states }
        };
        let (states, tries) = (budget.states, RANDOM_TRIES);
        let ways: [&dyn Fn() -> Search; 4] = [
            &|| shortest(programs, profile, 3, left(states / 4)),
            &|| search(programs, profile, None, left(states)),
            &|| at_random(programs, profile, seed, left(tries)),
            &|| by_priorities(programs, profile, 3, seed, left(tries)),
        ];
        let mut total = Search::default();
        for way in ways {
            total = total.and(way());
            if total.found.is_some() || total.is_complete {
                break;
            }
        }
        total
    }

    /// The same with the smallest program that goes wrong, and the shortest way to it, as far as
    /// there is time.
    fn shrunken(self, how: &Shrinking<'_>) -> Self {
        let Self { programs, profile, found } = self;
        let &Shrinking { end, seed, progress } = how;
        progress.smallest.store(programs.len(), Relaxed);
        let now = Instant::now();
        // The last third is for the shortest way.
        let end_of_tries = now + end.saturating_duration_since(now) * 2 / 3;
        let smallest = RefCell::new((programs.clone(), found));
        let fails = |programs: &Programs| {
            let time = || end_of_tries.saturating_duration_since(Instant::now());
            let budget = || Budget { time: time(), states: TRIES_OF_SMALLER };
            if time().is_zero() {
                return false;
            }
            progress.tried.fetch_add(1, Relaxed);
            let by_chance = at_random(programs, profile, seed, budget()).found;
            let found =
                by_chance.or_else(|| by_priorities(programs, profile, 3, seed, budget()).found);
            let Some(found) = found else { return false };
            progress.smallest.store(programs.len(), Relaxed);
            smallest.replace((programs.clone(), found));
            true
        };
        // The last that fails is the smallest.
        let _ = programs.shrunken(fails);
        let (programs, found) = smallest.into_inner();
        let time = end.saturating_duration_since(Instant::now());
        let budget = Budget { time, states: STATES_OF_SMALL };
        let shortest = Self::look(&programs, profile, seed, budget).found;
        Self { programs, profile, found: shortest.unwrap_or(found) }
    }
}

/// How a counter-example is made small.
struct Shrinking<'p> {
    /// Until then.
    end: Instant,
    /// Where random numbers begin.
    seed: u64,
    progress: &'p Progress,
}

/// Schedules of each kind in which a smaller program has to go wrong.
const TRIES_OF_SMALLER: usize = 400;

/// States of a program that was made small, in which the shortest way is looked for: seconds.
const STATES_OF_SMALL: usize = 400_000;

/// Schedules at random of one program.
const RANDOM_TRIES: usize = 5000;

#[cfg(test)]
mod tests {
    use super::*;

    fn campaign(broken: Option<Rule>, profiles: &[Profile], seconds: u64) -> Verdict {
        let (profiles, time) = (profiles.to_vec(), Duration::from_secs(seconds));
        Campaign { profiles, cpus: 5, time, seed: 1, broken }.run(&Progress::default())
    }

    /// A program whose CPUs wait for each other is long to try: not before 100,000 steps is it
    /// found out that they do.
    #[test]
    fn shrinking_ends_within_the_budget() {
        let config = Config { broken: Some(Rule::AnswerWhileWaiting), ..Config::new(4) };
        let text = "run 0, unmap-masked 0.0, map 0.0, run 1, idle, unmap-masked 0.0, run 2, \
                    leave | \
                    run 0, unmap-masked 0.1, map 0.1, run 0, leave, unmap-masked 0.1, run 1, \
                    idle | \
                    run 0, unmap-masked 0.2, run 0, protect 0.3, run 2, reclaim 1.1, idle, run 0 | \
                    run 0, unmap-masked 0.3, run 1, unmap 2.0, run 0, migrate 2.1, unmap-kernel 0";
        let programs = Programs::parse(config, text).expect("it is a program");
        let budget = Budget { time: Duration::from_secs(60), states: 1000 };
        let found = at_random(&programs, Profile::X86, 1, budget).found.expect("it is wrong");
        assert_eq!(found.wrong, crate::hardware::Wrong::Stuck);
        let (start, time, progress) = (Instant::now(), Duration::from_secs(2), Progress::default());
        let shrinking = Shrinking { end: start + time, seed: 1, progress: &progress };
        let length = programs.len();
        let small = CounterExample { programs, profile: Profile::X86, found }.shrunken(&shrinking);
        let elapsed = start.elapsed();
        assert!(small.programs.len() < length, "{}", small.programs);
        let (tried, smallest) = (progress.tried.load(Relaxed), progress.smallest.load(Relaxed));
        assert!(tried > 1 && smallest == small.programs.len(), "{tried} tried, {smallest}");
        // A run that has begun comes to its end, and a busy host may be slow.
        assert!(elapsed < time * 2, "{elapsed:?}");
    }

    #[test]
    fn an_engine_without_a_rule_is_found_and_made_small() {
        let verdict = campaign(Some(Rule::RingPresent), &[Profile::X86], 20);
        let CounterExample { programs, found, .. } = verdict.counter_example.expect("it is wrong");
        assert_eq!((programs.config.cpus, programs.len()), (2, 2), "{programs}");
        // Nothing is left out, and nothing happens twice.
        assert!(found.choices.len() < 60, "{}", found.choices.len());
    }

    #[test]
    fn the_engine_as_it_is_goes_through() {
        let verdict = campaign(None, &Profile::ALL, 2);
        let bad = verdict.counter_example.map(|bad| (bad.programs.to_string(), bad.found.wrong));
        assert_eq!(bad, None);
        assert!(verdict.runs > 0 && verdict.steps > verdict.runs);
        assert_eq!(verdict.short_total, 4 * 170);
    }
}
