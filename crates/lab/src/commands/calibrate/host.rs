//! The loops of [`host_loops`](shootdown_run::host_loops::host_loops), on this host.

#![expect(unsafe_code, reason = "the loops change mappings, which only system calls can")]

use core::ops::Range;
use std::ffi::c_void;
use std::io::{self, Read as _, Write as _};
use std::process::{Command, Stdio};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use rustix::process::{Pid, WaitOptions};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::ClockId;
use shootdown_run::host_loops::HostLoop;

const PAGE_BYTES: usize = 4096;
/// Number of times that a loop is measured. The shortest time does not count: another program may
/// have stopped the spinning thread, so that no flush had to interrupt it.
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

/// The load of the host by other programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// Nothing: the median of the batches counts, and all loops are measured.
    Idle,
    /// Other programs: the lower quartile counts, because they only make batches longer. Loops that
    /// need a second CPU without other programs are left out.
    Busy,
}

/// Runs all loops, and returns the time of a turn of each.
pub(super) fn measure(load: Load) -> io::Result<Vec<(&'static HostLoop, f64)>> {
    let all = sched_getaffinity(None)?;
    let cpus: Vec<_> = (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu)).take(2).collect();
    let [first, second] = cpus[..] else {
        return Err(io::Error::other("it has one CPU, and the loops need two"));
    };
    pin(None, first)?;
    let measured = measure_on(load, first, second);
    sched_setaffinity(None, &all)?;
    let loop_of = |(key, ns)| {
        if !(0.0..=LONGEST_NS).contains(&ns) {
            let cause = "it is busy: stop other programs, or insist with `--busy`";
            return Some(Err(io::Error::other(cause)));
        }
        HostLoop::of(key).map(|it| Ok((it, ns)))
    };
    measured?.into_iter().filter_map(loop_of).collect()
}

fn measure_on(load: Load, first: usize, second: usize) -> io::Result<Vec<(&'static str, f64)>> {
    let (page, untouched, many) = (Pages::map(1)?, Pages::map(1)?, Pages::map(MANY)?);
    let own = |turns, turn: &mut dyn FnMut() -> io::Result<()>| {
        each(load, ClockId::ThreadCPUTime, turns, || Ok(()), turn)
    };
    let few = u32::try_from(MANY).expect("some thousand pages");
    let mut measured = vec![(
        "syscall_ns",
        own(10_000, &mut || {
            let _ = rustix::process::getppid();
            Ok(())
        })?,
    )];
    measured.push(("first_read_ns", first_reads(load)?));
    many.write_all();
    let mut next = (0..MANY).cycle();
    let mut write_next = || {
        many.write(next.next().unwrap_or_default());
        Ok(())
    };
    let discard = || many.discard(0..MANY);
    let clock = ClockId::ThreadCPUTime;
    measured.push(("first_write_ns", each(load, clock, few, discard, &mut write_next)?));
    measured.push(("mprotect_absent_ns", own(1_000, &mut || untouched.protect_twice())?));
    measured.push(("map_ns", own(1_000, &mut || Pages::map_unadvised(1).map(drop))?));
    measured.push(("discard_absent_ns", own(1_000, &mut || untouched.discard(0..1))?));
    page.write(0);
    measured.push(("mprotect_present_ns", own(1_000, &mut || page.protect_twice())?));
    measured.push(("discard_ns", own(1_000, &mut || page.use_and_discard())?));
    let write_512 = || {
        (0..512).for_each(|page| many.write(page));
        Ok(())
    };
    let discard_512 = each(load, clock, 1, write_512, &mut || many.discard(0..512))?;
    measured.push(("discard_many_ns", discard_512 / 512.0));
    let file = Pages::map_file(MANY)?;
    (0..MANY).for_each(|page| file.read(page));
    let mut read_around = || {
        file.read(7);
        file.discard(7..8)
    };
    measured.push(("read_around_ns", own(1_000, &mut read_around)?));
    let mut pages = (0..MANY).cycle();
    let mut discard_next = || {
        let page = pages.next().unwrap_or_default();
        file.write(page);
        file.discard(page..page + 1)?;
        file.read(page);
        Ok(())
    };
    measured.push(("file_discard_ns", own(few, &mut discard_next)?));
    measured.push(("fork_page_ns", fork_each_page(load, &many)?));
    measured.push(("pipe_local_ns", round_trips(load, first)?));
    if load == Load::Busy {
        return Ok(measured);
    }
    page.write(0);
    let remote = beside_spinner(second, || {
        let protect = own(1_000, &mut || page.protect_twice())?;
        Ok([protect, own(1_000, &mut || page.use_and_discard())?])
    })?;
    measured.extend(["mprotect_remote_ns", "discard_remote_ns"].into_iter().zip(remote));
    measured.push(("pipe_remote_ns", round_trips(load, second)?));
    Ok(measured)
}

/// Number of pages of the loops over many.
const MANY: usize = 1 << 11;

/// Returns the mean time of a turn in the batch that counts, in nanoseconds. `prepare` comes before
/// each batch, and is not measured.
fn each(
    load: Load,
    clock: ClockId,
    turns: u32,
    prepare: impl Fn() -> io::Result<()>,
    turn: &mut dyn FnMut() -> io::Result<()>,
) -> io::Result<f64> {
    let mut means = [0.0; BATCHES];
    for mean in &mut means {
        prepare()?;
        let start = now_ns(clock);
        for _ in 0..turns {
            turn()?;
        }
        *mean = (now_ns(clock) - start) / f64::from(turns);
    }
    Ok(counted(load, means))
}

fn now_ns(clock: ClockId) -> f64 {
    let time = rustix::time::clock_gettime(clock);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn counted(load: Load, mut values: [f64; BATCHES]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[match load {
        Load::Idle => BATCHES / 2,
        Load::Busy => BATCHES / 4,
    }]
}

fn first_reads(load: Load) -> io::Result<f64> {
    let mut means = [0.0; BATCHES];
    for mean in &mut means {
        let pages = Pages::map(MANY)?;
        let start = now_ns(ClockId::ThreadCPUTime);
        (0..MANY).for_each(|page| pages.read(page));
        *mean = (now_ns(ClockId::ThreadCPUTime) - start) / MANY as f64;
    }
    Ok(counted(load, means))
}

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
}

/// Returns the time by which a fork takes longer for each written page of the process.
fn fork_each_page(load: Load, few: &Pages) -> io::Result<f64> {
    let more = Pages::map(3 * MANY)?;
    let forks = |write: &dyn Fn()| {
        let mut times = [0.0; BATCHES];
        for time in &mut times {
            few.write_all();
            write();
            let start = now_ns(ClockId::ThreadCPUTime);
            // SAFETY: the child runs nothing of this process, whose locks nobody would release
            // there: it ends at once, without handlers.
            let child = unsafe { fork() };
            if child == 0 {
                // SAFETY: see above.
                unsafe { _exit(0) };
            }
            *time = now_ns(ClockId::ThreadCPUTime) - start;
            let child = Pid::from_raw(child).filter(|_| child > 0);
            let child = child.ok_or_else(io::Error::last_os_error)?;
            rustix::process::waitpid(Some(child), WaitOptions::empty())?;
        }
        Ok::<_, io::Error>(counted(load, times))
    };
    let small = forks(&|| ())?;
    Ok((forks(&|| more.write_all())? - small).max(0.0) / (3 * MANY) as f64)
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
fn round_trips(load: Load, cpu: usize) -> io::Result<f64> {
    let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let (Some(mut to), Some(mut from)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::Error::other("`cat` has no pipes"));
    };
    let mut byte = [0];
    let result = pin(pid, cpu).and_then(|()| {
        each(load, ClockId::Monotonic, 100, || Ok(()), &mut || {
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
        let pages = Self::map_unadvised(count)?;
        // A large page would make the first read of a page the read of 512.
        // SAFETY: the pages are this value's own, and the advice changes no contents.
        let _ = unsafe { rustix::mm::madvise(pages.start, pages.bytes(), Advice::LinuxNoHugepage) };
        Ok(pages)
    }

    fn map_unadvised(count: usize) -> io::Result<Self> {
        let (both, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the kernel chooses an address that is not in use.
        let start = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), count * PAGE_BYTES, both, private)?
        };
        Ok(Self { start, count })
    }

    /// Maps a file in memory, whose pages are in the page cache.
    fn map_file(count: usize) -> io::Result<Self> {
        let mut file = tempfile::tempfile()?;
        file.write_all(&vec![1; count * PAGE_BYTES])?;
        let (both, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the kernel chooses an address that is not in use.
        let start = unsafe {
            rustix::mm::mmap(ptr::null_mut(), count * PAGE_BYTES, both, private, &file, 0)?
        };
        Ok(Self { start, count })
    }

    fn bytes(&self) -> usize {
        self.count * PAGE_BYTES
    }

    fn page(&self, page: usize) -> *mut c_void {
        assert!(page < self.count);
        self.start.wrapping_byte_add(page * PAGE_BYTES)
    }

    fn read(&self, page: usize) {
        // SAFETY: the page is this value's own, and readable.
        unsafe { self.page(page).cast::<u8>().read_volatile() };
    }

    fn write(&self, page: usize) {
        // SAFETY: the page is this value's own, and writable between calls of its methods.
        unsafe { self.page(page).cast::<u8>().write_volatile(1) };
    }

    fn write_all(&self) {
        (0..self.count).for_each(|page| self.write(page));
    }

    fn discard(&self, pages: Range<usize>) -> io::Result<()> {
        let bytes = pages.len() * PAGE_BYTES;
        // SAFETY: the pages are this value's own, and nothing refers to their contents.
        unsafe { rustix::mm::madvise(self.page(pages.start), bytes, Advice::LinuxDontNeed)? };
        Ok(())
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
        self.write(0);
        self.discard(0..1)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the pages are this value's own, and nothing refers to them any more.
        let _ = unsafe { rustix::mm::munmap(self.start, self.bytes()) };
    }
}
