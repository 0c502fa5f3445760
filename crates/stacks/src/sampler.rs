//! The threads that receive samples, and unwind their stacks while the program runs.

use std::collections::BTreeSet;
use std::io;
use std::mem;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::events::{Event, Events, Options, Preferred, RawSample, Unwinding};
use crate::processes::Processes;
use crate::stack::{Address, Sample, Stacks};
use crate::unwind::{Cache, user_stack};

/// Time between two looks into the buffers. Short enough that most mappings of a new process are
/// read before its first sample is, and that a burst of requests changes the period before it has
/// filled a buffer.
const PAUSE: Duration = Duration::from_millis(10);
/// The same, if there are no mappings and samples are small.
const LONG_PAUSE: Duration = Duration::from_millis(200);

/// Samples flush requests until it is stopped or dropped.
#[derive(Debug)]
pub struct Sampler {
    shared: Arc<Shared>,
    /// The thread that empties the buffers, and the thread that unwinds.
    threads: Option<[JoinHandle<()>; 2]>,
    pub(crate) debug_directories: Vec<PathBuf>,
}

#[derive(Debug, Default)]
struct Shared {
    collected: Mutex<Collected>,
    preferred: Mutex<Preferred>,
    must_stop: AtomicBool,
    /// Number of times that all buffers were emptied.
    read: AtomicU64,
    /// How many of these the unwinding thread has handled.
    handled: AtomicU64,
}

/// The records of a pass through all buffers, with their times.
type Pass = Vec<(u64, Event)>;

/// Time between two looks for the end of a pass.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The samples, and the state that gives their addresses a meaning.
#[derive(Default)]
pub(crate) struct Collected {
    pub(crate) samples: Vec<Sample>,
    pub(crate) stacks: Stacks,
    pub(crate) processes: Processes,
    pub(crate) lost: u64,
    cache: Cache,
}

impl std::fmt::Debug for Collected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collected").field("lost", &self.lost).finish_non_exhaustive()
    }
}

impl Sampler {
    /// Starts sampling on `cpus`. The thread that empties the buffers calls `prepare` first, which
    /// can raise its priority: if it is late, samples are lost.
    ///
    /// # Errors
    ///
    /// If the kernel refuses: it needs the capability `CAP_PERFMON`, and memory for the buffers.
    pub fn start(
        options: &Options,
        cpus: &[u32],
        prepare: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let mut events = Events::open(options, cpus)?;
        events.start()?;
        let shared = Arc::<Shared>::default();
        let (sender, receiver) = mpsc::channel();
        let [of_reader, of_unwinder] = [Arc::clone(&shared), Arc::clone(&shared)];
        let named = |name: &str| thread::Builder::new().name(name.to_owned());
        let unwinder = named("stacks").spawn(move || unwind(&receiver, &of_unwinder))?;
        let pause = if options.unwinding == Unwinding::Kernel { LONG_PAUSE } else { PAUSE };
        let reader = named("samples").spawn(move || {
            prepare();
            read((&mut events, pause), &sender, &of_reader);
        })?;
        let debug_directories = options.debug_directories.clone();
        Ok(Self { shared, threads: Some([reader, unwinder]), debug_directories })
    }

    /// Prefers the stacks of these processes and their future children. Those of other processes
    /// are sampled still, and take a smaller part of the rate.
    pub fn prefer(&self, processes: &BTreeSet<u32>) {
        let mut preferred = self.shared.preferred.lock().unwrap_or_else(PoisonError::into_inner);
        preferred.get_or_insert_default().extend(processes);
    }

    /// Takes the samples since the last call, in the order of each CPU.
    #[must_use]
    pub fn take(&self) -> Vec<Sample> {
        mem::take(&mut self.collected().samples)
    }

    /// Number of samples that were lost because a buffer was full.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.collected().lost
    }

    /// Waits until all requests up to now that are sampled can be taken.
    pub fn synchronize(&self) {
        let Some([reader, unwinder]) = &self.threads else { return };
        // Relaxed: a pass that is counted here may have begun before. The second one after that
        // began after this load, because both counts are of one atomic. With the third, what the
        // second has read is handled.
        let before = self.shared.read.load(Ordering::Relaxed);
        let handled = || self.shared.handled.load(Ordering::Relaxed);
        while handled() < before + 3 && !unwinder.is_finished() {
            reader.thread().unpark();
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Stops sampling. All samples can be taken afterwards.
    pub fn stop(&mut self) {
        // Relaxed: the thread polls the flag, and `join` orders all that it did before.
        self.shared.must_stop.store(true, Ordering::Relaxed);
        for thread in self.threads.take().into_iter().flatten() {
            thread.thread().unpark();
            // A panic of the thread loses the samples that it had not delivered.
            let _ = thread.join();
        }
    }

    pub(crate) fn collected(&self) -> MutexGuard<'_, Collected> {
        self.shared.collected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Empties the buffers until the sampler is stopped.
fn read((events, pause): (&mut Events, Duration), passes: &mpsc::Sender<Pass>, shared: &Shared) {
    loop {
        // Relaxed: see `stop`.
        let must_stop = shared.must_stop.load(Ordering::Relaxed);
        if must_stop {
            // An event that cannot be stopped ends with its file descriptor.
            let _ = events.stop();
        }
        let pass = events.drain();
        let mut preferred = shared.preferred.lock().unwrap_or_else(PoisonError::into_inner);
        events.choose_periods(&pass, &mut preferred);
        drop(preferred);
        // Relaxed: see `synchronize`.
        shared.read.fetch_add(1, Ordering::Relaxed);
        if passes.send(pass).is_err() || must_stop {
            return;
        }
        thread::park_timeout(pause);
    }
}

/// Handles what the other thread has read until that thread has ended.
fn unwind(passes: &mpsc::Receiver<Pass>, shared: &Shared) {
    let collect = |events: &mut dyn Iterator<Item = Event>| {
        let mut collected = shared.collected.lock().unwrap_or_else(PoisonError::into_inner);
        events.for_each(|event| collected.add(event));
    };
    let mut in_order = InOrder::default();
    for pass in passes {
        pass.into_iter().for_each(|(time_ns, event)| in_order.add(time_ns, event));
        collect(&mut in_order.take(false));
        // Relaxed: the samples are published by the lock. See `synchronize`.
        shared.handled.fetch_add(1, Ordering::Relaxed);
    }
    collect(&mut in_order.take(true));
}

/// Records of all CPUs, in the order of their times. A process maps its files on one CPU and may
/// flush on another, whose buffer is read first.
#[derive(Default)]
struct InOrder {
    records: Vec<(u64, Event)>,
    /// The latest time of the previous pass. That pass or this one has read all earlier records.
    complete_ns: u64,
}

impl InOrder {
    fn add(&mut self, time_ns: u64, event: Event) {
        self.records.push((time_ns, event));
    }

    /// Takes the records before which no other can come; all of them after the last pass.
    fn take(&mut self, is_last: bool) -> impl Iterator<Item = Event> {
        self.records.sort_by_key(|(time_ns, _)| *time_ns);
        let latest_ns = self.records.last().map_or(0, |(time_ns, _)| *time_ns);
        let limit_ns = if is_last { u64::MAX } else { self.complete_ns };
        let count = self.records.partition_point(|(time_ns, _)| *time_ns <= limit_ns);
        self.complete_ns = self.complete_ns.max(latest_ns);
        self.records.drain(..count).map(|(_, event)| event)
    }
}

impl Collected {
    fn add(&mut self, event: Event) {
        match event {
            Event::Sample(sample) => self.add_sample(&sample),
            Event::Map(map) => {
                if map.path.starts_with('/') && !map.path.starts_with("//anon") {
                    self.processes.map(&map);
                }
            }
            Event::Fork { process, parent } => self.processes.fork(process, parent),
            Event::Exec { process } => self.processes.exec(process),
            Event::Exit { process } => self.processes.exit(process),
            Event::Lost { count } => self.lost += count,
        }
    }

    fn add_sample(&mut self, sample: &RawSample) {
        let kernel = sample.kernel.iter().map(|address| Address::Kernel(*address));
        let mut stack: Vec<_> = kernel.collect();
        stack.extend(user_stack(sample, &mut self.processes, &mut self.cache));
        self.samples.push(Sample {
            time_ns: sample.time_ns,
            cpu: sample.cpu,
            process: sample.process,
            thread: sample.thread,
            requests: sample.requests,
            stack: self.stacks.number(&stack),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_all_cpus_are_in_order() {
        let mut in_order = InOrder::default();
        let taken = |in_order: &mut InOrder, is_last: bool| -> Vec<u32> {
            let process = |event| match event {
                Event::Exec { process } => process,
                _ => unreachable!("all are alike"),
            };
            in_order.take(is_last).map(process).collect()
        };
        let add = |in_order: &mut InOrder, time_ns: u32| {
            in_order.add(time_ns.into(), Event::Exec { process: time_ns });
        };
        // The second buffer is read later, and has later records.
        [1, 5, 3, 9].into_iter().for_each(|time_ns| add(&mut in_order, time_ns));
        assert!(taken(&mut in_order, false).is_empty());
        [7, 12].into_iter().for_each(|time_ns| add(&mut in_order, time_ns));
        assert_eq!(taken(&mut in_order, false), [1, 3, 5, 7, 9]);
        assert_eq!(taken(&mut in_order, false), [12]);
        add(&mut in_order, 20);
        assert_eq!(taken(&mut in_order, true), [20]);
    }
}
