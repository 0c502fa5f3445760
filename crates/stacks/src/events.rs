//! Samples of a tracepoint of flushes, and the mappings of processes, from the ring buffers of
//! Linux's performance events. There is an event with a buffer on each CPU.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use perf_event::data::Record;
use perf_event::events::Tracepoint;
use perf_event::{Builder, Clock, SampleFlag};
use perf_event_open_sys::ioctls;

use crate::kernel_thread;

/// The largest and smallest size of a buffer: 960 copied stacks, those of a second at the default
/// rate, which a busy machine may let the sampler wait; and an eighth of that.
const BUFFER_BYTES_MAX: usize = 8 << 20;
const BUFFER_BYTES_MIN: usize = 1 << 20;
/// The size of all buffers, one for each CPU, unless that is less than the smallest size for each.
const BUFFERS_BYTES: usize = 64 << 20;
/// The bytes that are copied of a stack: what perf copies by default. The kernel's limit is 64 KiB.
const STACK_BYTES: u32 = 8 << 10;

/// Registers of x86-64 by their numbers in `perf_regs.h`, in ascending order.
const REGISTERS: [u32; 3] = [RBP, RSP, RIP];
const RBP: u32 = 6;
const RSP: u32 = 7;
const RIP: u32 = 8;

/// The marks that separate the kernel's part of a call chain from the program's.
const CONTEXT_MARKS: u64 = -4095_i64 as u64;
const CONTEXT_KERNEL: u64 = -128_i64 as u64;
const CONTEXT_USER: u64 = -512_i64 as u64;
/// `PERF_RECORD_MISC_COMM_EXEC`
const MISC_EXEC: u16 = 1 << 13;

/// The way in which user stacks are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwinding {
    /// The kernel follows frame pointers. Programs compiled without them have one frame, or wrong
    /// ones.
    FramePointers,
    /// The kernel copies the stack, which is then unwound with the tables that exceptions use.
    Dwarf,
    /// They are not followed: samples have the kernel's calls alone, and mappings cost nothing.
    Kernel,
}

/// The options of a sampler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The kernel's number of a tracepoint.
    pub tracepoint: u64,
    /// The events of the tracepoint that are sampled, as the kernel selects them.
    pub filter: String,
    /// Largest number of stacks per second and CPU, approximately.
    pub rate_hz: u64,
    /// The way in which user stacks are followed.
    pub unwinding: Unwinding,
    /// Directories with debug data, as `.build-id/xx/….debug`, besides `/usr/lib/debug`.
    pub debug_directories: Vec<PathBuf>,
}

/// A record of the kernel.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Sample(Box<RawSample>),
    Map(RawMapping),
    Fork { process: u32, parent: u32 },
    Exec { process: u32 },
    Exit { process: u32 },
    Lost { count: u64 },
}

/// A sample as the kernel delivers it.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawSample {
    pub(crate) time_ns: u64,
    pub(crate) cpu: u32,
    pub(crate) process: u32,
    pub(crate) thread: u32,
    /// Number of requests for which the sample stands.
    pub(crate) requests: u64,
    /// Addresses in the kernel, the innermost first.
    pub(crate) kernel: Vec<u64>,
    /// Addresses in the program that frame pointers lead to, the innermost first.
    pub(crate) user: Vec<u64>,
    pub(crate) registers: Option<Registers>,
    /// The stack from the stack pointer on.
    pub(crate) stack: Vec<u8>,
}

/// Registers of the program.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Registers {
    pub(crate) rbp: u64,
    pub(crate) rsp: u64,
    pub(crate) rip: u64,
}

/// An executable mapping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawMapping {
    pub(crate) process: u32,
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) offset: u64,
    pub(crate) path: String,
}

/// The event of each CPU, in the order of their numbers.
pub(crate) struct Events {
    cpus: Vec<OnCpu>,
    rate_hz: u64,
}

/// The processes whose stacks are wanted most, with their descendants; `None` if all are alike.
pub(crate) type Preferred = Option<BTreeSet<u32>>;

/// The event of a CPU.
///
/// The period is ours: the kernel's own adjustment is misled by a few requests that follow each
/// other quickly, and then samples almost nothing for a second.
struct OnCpu {
    number: u32,
    sampler: perf_event::Sampler,
    /// Number of requests of which one is sampled.
    period: u64,
    /// Number of samples since the period was chosen, times [`OTHERS`]; those of processes that are
    /// not preferred count once.
    weight: u64,
    chosen_at: Instant,
}

/// The shortest time after which a period is chosen again.
const CHOOSE_AFTER: Duration = Duration::from_millis(10);
/// How many samples of other programs cost as much of the rate as one that is wanted. Otherwise a
/// burst of flushes by a compiler beside the program takes all of its stacks away. With more, the
/// smallest buffer, of 126 copied stacks, could overflow between two looks.
const OTHERS: u64 = 4;

impl Events {
    /// Opens an event on each of `cpus`.
    ///
    /// # Errors
    ///
    /// If the kernel refuses: it needs the capability `CAP_PERFMON`, and memory for the buffers.
    pub(crate) fn open(options: &Options, cpus: &[u32]) -> io::Result<Self> {
        let buffer_bytes = buffer_bytes(cpus.len());
        let on_cpu = |cpu: &u32| -> io::Result<_> {
            let (sampler, chosen_at) = (open(options, *cpu, buffer_bytes)?, Instant::now());
            Ok(OnCpu { number: *cpu, sampler, period: 1, weight: 0, chosen_at })
        };
        let mut cpus: Vec<_> = cpus.iter().map(on_cpu).collect::<io::Result<_>>()?;
        cpus.sort_by_key(|cpu| cpu.number);
        Ok(Self { cpus, rate_hz: options.rate_hz.max(1) })
    }

    /// Starts sampling.
    pub(crate) fn start(&mut self) -> io::Result<()> {
        self.cpus.iter_mut().try_for_each(|cpu| cpu.sampler.enable())
    }

    /// Stops sampling. The buffers keep what they have.
    pub(crate) fn stop(&mut self) -> io::Result<()> {
        self.cpus.iter_mut().try_for_each(|cpu| cpu.sampler.disable())
    }

    /// Takes the records in the buffers with their times, in nanoseconds and in their order.
    pub(crate) fn drain(&mut self) -> Vec<(u64, Event)> {
        let mut pass = Vec::new();
        for cpu in &mut self.cpus {
            while let Some(record) = cpu.sampler.next_record() {
                let is_exec = record.misc() & MISC_EXEC != 0;
                let converted = match record.parse_record() {
                    Ok(parsed) => convert(parsed, is_exec),
                    Err(_) if record.ty() == kernel_thread::SAMPLE => {
                        let sample = kernel_thread::sample(&record.to_contiguous());
                        Some(sample.map_or(Event::Lost { count: 1 }, |it| Event::Sample(it.into())))
                    }
                    Err(_) => None,
                };
                let Some(mut event) = converted else { continue };
                let time_ns = match &mut event {
                    Event::Sample(sample) => {
                        sample.requests = cpu.period;
                        sample.time_ns
                    }
                    // A sample that cannot be read ends with no time.
                    Event::Lost { .. } if record.ty() == kernel_thread::SAMPLE => 0,
                    _ => time_at_end(&record.to_contiguous()),
                };
                if let Event::Lost { count } = event {
                    cpu.weight += OTHERS * count;
                }
                pass.push((time_ns, event));
            }
        }
        pass.sort_by_key(|(time_ns, _)| *time_ns);
        pass
    }

    /// Chooses the periods after a pass, and adds children to the processes that are preferred.
    pub(crate) fn choose_periods(&mut self, pass: &[(u64, Event)], preferred: &mut Preferred) {
        for (_, event) in pass {
            if let (Event::Fork { process, parent }, Some(preferred)) = (event, &mut *preferred)
                && preferred.contains(parent)
            {
                preferred.insert(*process);
            }
            let Event::Sample(sample) = event else { continue };
            let number = |cpu: &OnCpu| cpu.number;
            if let Ok(index) = self.cpus.binary_search_by_key(&sample.cpu, number) {
                self.cpus[index].weight += weight(sample.process, preferred);
            }
        }
        self.cpus.iter_mut().for_each(|cpu| cpu.choose_period(self.rate_hz));
    }
}

/// Returns the part of the rate that a sample takes, times [`OTHERS`].
fn weight(process: u32, preferred: &Preferred) -> u64 {
    match preferred {
        Some(preferred) if !preferred.contains(&process) => 1,
        _ => OTHERS,
    }
}

impl OnCpu {
    /// Chooses the period that would have led to the wanted rate since the last choice.
    fn choose_period(&mut self, rate_hz: u64) {
        let elapsed = self.chosen_at.elapsed();
        if elapsed < CHOOSE_AFTER {
            return;
        }
        let period = period(self.period, self.weight.div_ceil(OTHERS), elapsed, rate_hz);
        // If the kernel refuses, the old period goes on.
        if period != self.period && set_period(&self.sampler, period).is_ok() {
            self.period = period;
        }
        (self.weight, self.chosen_at) = (0, Instant::now());
    }
}

/// Returns the period that would have led to the wanted rate, if `before` led to `samples`.
fn period(before: u64, samples: u64, elapsed: Duration, rate_hz: u64) -> u64 {
    let allowed = elapsed.as_millis() as u64 * rate_hz / 1000;
    match samples {
        // Fewer requests than a period.
        0 => (before / 2).max(1),
        _ => samples.saturating_mul(before).div_ceil(allowed.max(1)).max(1),
    }
}

/// Returns the time at the end of a record that is no sample. The kernel appends the thread, the
/// time and the CPU, of eight bytes each (`sample_id_all`).
fn time_at_end(record: &[u8]) -> u64 {
    let end = record.last_chunk::<16>().and_then(|end| end.first_chunk::<8>());
    end.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

fn open(options: &Options, cpu: u32, buffer_bytes: usize) -> io::Result<perf_event::Sampler> {
    let mut flags = SampleFlag::TID | SampleFlag::TIME | SampleFlag::CPU | SampleFlag::CALLCHAIN;
    let has_user = options.unwinding != Unwinding::Kernel;
    if has_user {
        flags |= SampleFlag::REGS_USER;
    }
    if options.unwinding == Unwinding::Dwarf {
        flags |= SampleFlag::STACK_USER;
    }
    let mut builder = Builder::new(Tracepoint::with_id(options.tracepoint));
    builder
        .any_pid()
        .one_cpu(cpu as usize)
        .include_kernel()
        .include_hv()
        .sample(flags)
        .sample_id_all(true)
        .sample_period(1)
        .clockid(Clock::MONOTONIC)
        .mmap(has_user)
        .mmap2(has_user)
        .comm(has_user)
        .comm_exec(has_user)
        .task(has_user)
        .wakeup_watermark(buffer_bytes / 4);
    if has_user {
        builder.sample_regs_user(REGISTERS.iter().fold(0, |mask, register| mask | 1 << register));
    }
    if options.unwinding == Unwinding::Dwarf {
        builder.sample_stack_user(STACK_BYTES);
    }
    if options.unwinding != Unwinding::FramePointers {
        builder.exclude_callchain_user(true);
    }
    let counter = builder.build()?;
    set_filter(&counter, &options.filter)?;
    counter.sampled(buffer_bytes)
}

/// Returns the size of a buffer, which the kernel wants to be a power of two.
fn buffer_bytes(cpus: usize) -> usize {
    let each = (BUFFERS_BYTES / cpus.max(1)).clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX);
    1 << each.ilog2()
}

/// Restricts a counter to some events.
#[expect(unsafe_code, reason = "the kernel takes the filter by its address")]
fn set_filter(counter: &perf_event::Counter, filter: &str) -> io::Result<()> {
    let filter = CString::new(filter)?;
    // SAFETY: `counter` owns the file descriptor of an event. The kernel copies the filter, which
    // ends with a zero byte, during the call, and does not write to it.
    let result = unsafe { ioctls::SET_FILTER(counter.as_raw_fd(), filter.as_ptr().cast_mut()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets the number of events of which one is sampled.
#[expect(unsafe_code, reason = "the kernel takes the number by its address")]
fn set_period(counter: &perf_event::Counter, period: u64) -> io::Result<()> {
    // SAFETY: `counter` owns the file descriptor of an event. The kernel reads the number, which
    // lives until the call returns, and does not write to it.
    let result = unsafe {
        ioctls::PERIOD(counter.as_raw_fd(), (&raw const period).expose_provenance() as u64)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn convert(record: Record<'_>, is_exec: bool) -> Option<Event> {
    Some(match record {
        Record::Sample(sample) => {
            let (kernel, user) = split(sample.callchain().unwrap_or_default());
            Event::Sample(Box::new(RawSample {
                time_ns: sample.time()?,
                cpu: sample.cpu()?,
                process: sample.pid()?,
                thread: sample.tid()?,
                requests: 0,
                kernel,
                user,
                registers: sample.regs_user().and_then(|registers| registers_of(&registers.regs)),
                stack: sample.stack_user().unwrap_or_default().to_vec(),
            }))
        }
        Record::Mmap2(map) => Event::Map(RawMapping {
            process: map.pid,
            start: map.addr,
            length: map.len,
            offset: map.pgoff,
            path: path(&map.filename),
        }),
        Record::Fork(fork) if fork.pid != fork.ppid => {
            Event::Fork { process: fork.pid, parent: fork.ppid }
        }
        Record::Exit(exit) if exit.pid == exit.tid => Event::Exit { process: exit.pid },
        Record::Comm(comm) if is_exec => Event::Exec { process: comm.pid },
        Record::Lost(lost) => Event::Lost { count: lost.lost },
        Record::LostSamples(lost) => Event::Lost { count: lost.lost },
        _ => return None,
    })
}

/// Splits a call chain at its marks.
pub(crate) fn split(chain: &[u64]) -> (Vec<u64>, Vec<u64>) {
    let (mut kernel, mut user) = (Vec::new(), Vec::new());
    let mut context = CONTEXT_KERNEL;
    for &address in chain {
        match (address, context) {
            (CONTEXT_MARKS.., _) => context = address,
            (_, CONTEXT_KERNEL) => kernel.push(address),
            (_, CONTEXT_USER) => user.push(address),
            _ => {}
        }
    }
    (kernel, user)
}

fn registers_of(values: &[u64]) -> Option<Registers> {
    let &[rbp, rsp, rip] = values else { return None };
    Some(Registers { rbp, rsp, rip })
}

/// Returns a file name up to its first zero byte.
fn path(name: &[u8]) -> String {
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_is_split_at_its_marks() {
        let guest = -2048_i64 as u64;
        let chain = [CONTEXT_KERNEL, 0xffff_8000_0000_0001, 5, CONTEXT_USER, 7, 8, guest, 9];
        assert_eq!(split(&chain), (vec![0xffff_8000_0000_0001, 5], vec![7, 8]));
        assert_eq!(split(&[]), (vec![], vec![]));
    }

    #[test]
    fn period_follows_the_requests_at_once() {
        let after = |before, samples| period(before, samples, Duration::from_millis(20), 1000);
        assert_eq!([after(1, 20), after(1, 200), after(10, 20)], [1, 10, 10]);
        assert_eq!([after(10, 1), after(10, 0), after(1, 0)], [1, 5, 1]);
        assert_eq!(period(1, 3, Duration::from_millis(10), 1), 3, "not one in the time");
    }

    #[test]
    fn samples_of_others_count_less() {
        assert_eq!(weight(8, &None), OTHERS);
        let preferred = Some(BTreeSet::from([7]));
        assert_eq!([7, 8].map(|process| weight(process, &preferred)), [OTHERS, 1]);
    }

    #[test]
    fn buffers_of_many_cpus_are_smaller() {
        let mib = |cpus| buffer_bytes(cpus) >> 20;
        assert_eq!([1, 2, 8, 9, 16, 64, 4096].map(mib), [8, 8, 8, 4, 4, 1, 1]);
    }

    #[test]
    fn registers_are_all_or_none() {
        assert!(registers_of(&[1, 2]).is_none());
        let registers = registers_of(&[1, 2, 3]).expect("registers");
        assert_eq!((registers.rbp, registers.rip), (1, 3));
    }
}
