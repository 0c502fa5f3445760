//! The loops of `traces/host.c`, on this host.

#![expect(unsafe_code, reason = "the loops change mappings, which only system calls can")]

use std::ffi::c_void;
use std::io::{self, Read as _, Write as _};
use std::process::{Command, Stdio};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use shootdown_run::host_loops::HostLoop;

const PAGE_BYTES: usize = 4096;
/// Number of times that a loop is measured. The median counts. The shortest time would be one in
/// which another program had stopped the spinning thread, so that no flush had to interrupt it.
const BATCHES: usize = 41;
/// The longest time of a turn that a machine file accepts. No loop takes a tenth of it on a host
/// that is idle.
const LONGEST_NS: f64 = 100_000.0;

/// Numbers of sockets, of cores of a socket, and of threads of a core.
pub(super) struct Topology {
    pub(super) sockets: usize,
    pub(super) cores: usize,
    pub(super) threads: usize,
}

/// Reads the topology of the CPUs. Where the kernel does not show it, each CPU is a core.
pub(super) fn topology() -> Topology {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let number = |cpu: usize, file: &str| -> Option<u32> {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{file}");
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    let place = |cpu| Some((number(cpu, "physical_package_id")?, number(cpu, "core_id")?));
    let places: Option<Vec<_>> = (0..cpus).map(place).collect();
    let Some(mut places) = places else { return Topology { sockets: 1, cores: cpus, threads: 1 } };
    places.sort_unstable();
    places.dedup();
    let cores = places.len();
    places.dedup_by_key(|place| place.0);
    let sockets = places.len();
    Topology { sockets, cores: cores.div_ceil(sockets), threads: cpus.div_ceil(cores) }
}

/// Runs all loops, and returns the time of a turn of each.
pub(super) fn measure() -> io::Result<Vec<(&'static HostLoop, f64)>> {
    let all = sched_getaffinity(None)?;
    let cpus: Vec<_> = (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu)).take(2).collect();
    let [first, second] = cpus[..] else {
        return Err(io::Error::other("it has one CPU, and the loops need two"));
    };
    pin(None, first)?;
    let measured = measure_on(first, second);
    sched_setaffinity(None, &all)?;
    let loop_of = |(key, ns)| HostLoop::of(key).map(|it| (it, ns));
    Ok(measured?.into_iter().filter_map(loop_of).collect())
}

fn measure_on(first: usize, second: usize) -> io::Result<Vec<(&'static str, f64)>> {
    let (page, untouched) = (Pages::map(1)?, Pages::map(1)?);
    let syscall = median(10_000, || {
        let _ = rustix::process::getppid();
        Ok(())
    })?;
    let first_read = first_reads()?;
    let mprotect_absent = median(1_000, || untouched.protect_twice())?;
    page.write();
    let mprotect_present = median(1_000, || page.protect_twice())?;
    let discard = median(1_000, || page.use_and_discard())?;
    page.write();
    let [mprotect_remote, discard_remote] = beside_spinner(second, || {
        let protect = median(1_000, || page.protect_twice())?;
        Ok([protect, median(1_000, || page.use_and_discard())?])
    })?;
    Ok(vec![
        ("syscall_ns", syscall),
        ("first_read_ns", first_read),
        ("mprotect_absent_ns", mprotect_absent),
        ("mprotect_present_ns", mprotect_present),
        ("discard_ns", discard),
        ("mprotect_remote_ns", mprotect_remote),
        ("discard_remote_ns", discard_remote),
        ("pipe_local_ns", round_trips(first)?),
        ("pipe_remote_ns", round_trips(second)?),
    ])
}

/// Returns the median over batches of the mean time of a turn, in nanoseconds.
fn median(turns: u32, mut turn: impl FnMut() -> io::Result<()>) -> io::Result<f64> {
    let mut means = [0.0; BATCHES];
    for mean in &mut means {
        let start = Instant::now();
        for _ in 0..turns {
            turn()?;
        }
        *mean = start.elapsed().as_nanos() as f64 / f64::from(turns);
    }
    match middle(means) {
        ns @ 0.0..=LONGEST_NS => Ok(ns),
        _ => Err(io::Error::other("it is busy: stop other programs, and try again")),
    }
}

fn middle(mut values: [f64; BATCHES]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[BATCHES / 2]
}

fn first_reads() -> io::Result<f64> {
    const COUNT: usize = 1 << 11;
    let mut means = [0.0; BATCHES];
    for mean in &mut means {
        let pages = Pages::map(COUNT)?;
        let start = Instant::now();
        (0..COUNT).for_each(|page| pages.read(page));
        *mean = start.elapsed().as_nanos() as f64 / COUNT as f64;
    }
    Ok(middle(means))
}

fn pin(thread: Option<Pid>, cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(thread, &set)?)
}

/// Calls `f` while a thread of this process spins in user mode on a CPU.
fn beside_spinner<R>(cpu: usize, f: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let spinner = scope.spawn(|| {
            let pinned = pin(None, cpu);
            while !stop.load(Relaxed) {
                core::hint::spin_loop();
            }
            pinned
        });
        thread::sleep(Duration::from_millis(10));
        let result = f();
        stop.store(true, Relaxed);
        spinner.join().map_err(|_| io::Error::other("the spinning thread failed"))??;
        result
    })
}

/// Returns the time of a byte's way to `cat` on a CPU and back.
fn round_trips(cpu: usize) -> io::Result<f64> {
    let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let (Some(mut to), Some(mut from)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::Error::other("`cat` has no pipes"));
    };
    let mut byte = [0];
    let result = pin(pid, cpu).and_then(|()| {
        median(100, || {
            to.write_all(&byte)?;
            from.read_exact(&mut byte)
        })
    });
    drop(to);
    child.wait()?;
    result
}

/// Anonymous memory of this process.
struct Pages {
    start: *mut c_void,
    count: usize,
}

impl Pages {
    fn map(count: usize) -> io::Result<Self> {
        let (both, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the kernel chooses an address that is not in use.
        let start = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), count * PAGE_BYTES, both, private)?
        };
        let pages = Self { start, count };
        // A large page would make the first read of a page the read of 512.
        // SAFETY: the pages are this value's own, and the advice changes no contents.
        let _ = unsafe { rustix::mm::madvise(start, count * PAGE_BYTES, Advice::LinuxNoHugepage) };
        Ok(pages)
    }

    fn read(&self, page: usize) {
        assert!(page < self.count);
        // SAFETY: the page is this value's own, below its end, and readable.
        unsafe { self.start.cast::<u8>().add(page * PAGE_BYTES).read_volatile() };
    }

    fn write(&self) {
        // SAFETY: the first page is this value's own, and writable between calls of its methods.
        unsafe { self.start.cast::<u8>().write_volatile(1) };
    }

    fn protect_twice(&self) -> io::Result<()> {
        // SAFETY: the page is this value's own, and nothing refers to its contents.
        unsafe {
            rustix::mm::mprotect(self.start, PAGE_BYTES, MprotectFlags::READ)?;
            rustix::mm::mprotect(
                self.start,
                PAGE_BYTES,
                MprotectFlags::READ | MprotectFlags::WRITE,
            )?;
        }
        Ok(())
    }

    fn use_and_discard(&self) -> io::Result<()> {
        self.write();
        // SAFETY: the page is this value's own, and nothing refers to its contents.
        unsafe { rustix::mm::madvise(self.start, PAGE_BYTES, Advice::LinuxDontNeed)? };
        Ok(())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the pages are this value's own, and nothing refers to them any more.
        let _ = unsafe { rustix::mm::munmap(self.start, self.count * PAGE_BYTES) };
    }
}
