//! Runs an emulator under a watchdog, which distinguishes a kernel that hangs from a slow host.
//!
//! A kernel makes progress if it prints lines: one for each scenario. The watchdog counts the time
//! for which the host has *run* the emulator since the last line. On a busy host, that time passes
//! slowly. At the limit, the watchdog asks the emulator's monitor what each CPU executes, which is
//! also possible if the CPU has masked its interrupts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, PipeReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::command::{Command, Failure};

/// CPU time between two lines. The longest scenario takes about 3 s on an idle host, and CPUs that
/// wait for each other take several times that on a busy one.
pub(super) const CPU_MS_MAX: u64 = 120_000;

/// Time between two lines, on any clock. If all CPUs sleep, they take hardly any CPU time.
const IDLE_MAX: Duration = Duration::from_secs(900);

/// Words of a stack that are searched for return addresses.
const STACK_WORDS: usize = 96;

/// The last line of a kernel that has run all of its scenarios.
const END: &str = "end";

/// Returns a name for temporary files of one boot.
pub(super) fn temporary() -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("shootdown-port-{}-{next}", std::process::id()))
}

/// The end of a boot.
#[derive(Debug)]
pub(super) enum End {
    /// The kernel has printed its last line.
    Done,
    /// The emulator has exited with this status.
    Exited(String),
    /// The kernel prints nothing any more.
    Hangs {
        /// CPU time since the last line.
        cpu_ms: u64,
        /// Time since the last line.
        time: Duration,
        /// What each CPU executes.
        places: String,
    },
}

/// A watchdog of one boot.
#[derive(Debug)]
pub(super) struct Watchdog<'a> {
    pub(super) kernel: &'a Path,
    /// The socket of the emulator's monitor, if it has one.
    pub(super) monitor: Option<PathBuf>,
    /// CPU time between two lines, after which the kernel hangs: [`CPU_MS_MAX`] or less.
    pub(super) cpu_ms_max: u64,
}

impl Watchdog<'_> {
    /// Runs an emulator until its kernel has come to its end or hangs. Returns its output as well.
    pub(super) fn run(&self, command: Command) -> Result<(String, End), Failure> {
        let (mut child, output) = command.start_piped()?;
        let lines = lines(output);
        let mut output = String::new();
        let (mut last_line, mut cpu_then) = (Instant::now(), 0);
        let end = loop {
            match lines.recv_timeout(Duration::from_secs(1)) {
                Ok(line) => {
                    output += &line;
                    output.push('\n');
                    if line.trim_end() == END {
                        break Some(End::Done);
                    }
                    (last_line, cpu_then) = (Instant::now(), cpu_ms(&child));
                }
                Err(RecvTimeoutError::Disconnected) => break None,
                Err(RecvTimeoutError::Timeout) => {
                    let (cpu, time) = (cpu_ms(&child) - cpu_then, last_line.elapsed());
                    if cpu >= self.cpu_ms_max || time >= IDLE_MAX {
                        break Some(End::Hangs { cpu_ms: cpu, time, places: self.places() });
                    }
                }
            }
        };
        if end.is_some() {
            // Most kernels have switched their machine off by now.
            let _ = child.kill();
        }
        let status = child.wait().map_or("no status".to_owned(), |status| status.to_string());
        if let Some(monitor) = &self.monitor {
            let _ = fs::remove_file(monitor);
        }
        Ok((output, end.unwrap_or(End::Exited(status))))
    }

    /// Describes the place of each CPU: the functions whose addresses its program counter and its
    /// stack have.
    fn places(&self) -> String {
        let answer = |commands: &str| ask(self.monitor.as_deref()?, commands).ok();
        let Some(registers) = answer("info registers -a\n") else {
            return "the emulator has no monitor that answers\n".to_owned();
        };
        let symbols = symbols(self.kernel);
        let mut text = String::new();
        for (cpu, counter) in program_counters(&registers).into_iter().enumerate() {
            let _ = writeln!(text, "CPU {cpu}: {counter:#x} {}", name_at(&symbols, counter));
            // The registers' names differ, and the monitor ignores one that the CPU does not have.
            for stack in ["$rsp", "$sp"] {
                let dump = answer(&format!("cpu {cpu}\nx /{STACK_WORDS}gx {stack}\n"));
                for word in numbers(&dump.unwrap_or_default()) {
                    let name = name_at(&symbols, word);
                    if !name.is_empty() {
                        let _ = writeln!(text, "    {name}");
                    }
                }
            }
        }
        text
    }
}

/// Reads lines on another thread.
fn lines(output: PipeReader) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Returns the CPU time of a process and its threads; 0 if the host does not report it.
fn cpu_ms(child: &Child) -> u64 {
    /// `sysconf(_SC_CLK_TCK)` is 100 on every Linux.
    const MS_PER_TICK: u64 = 10;
    let text = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    // The name of the program, in parentheses, may contain spaces. User and system time are fields
    // 14 and 15, and the first one after the name is field 3.
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks * MS_PER_TICK
}

/// Sends commands to the monitor, and returns its answer.
fn ask(monitor: &Path, commands: &str) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(monitor)?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(commands.as_bytes())?;
    let (mut answer, mut part) = (Vec::new(), [0; 4096]);
    // The monitor does not mark the end of an answer. An error is the timeout.
    while let Ok(read @ 1..) = stream.read(&mut part) {
        answer.extend_from_slice(&part[..read]);
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Returns the program counter of each CPU from the monitor's list of registers: `RIP=` on x86-64,
/// and `pc` on RISC-V.
fn program_counters(registers: &str) -> Vec<u64> {
    let words: Vec<_> = registers.split_whitespace().collect();
    let after_pc = words.windows(2).filter(|pair| pair[0] == "pc").map(|pair| pair[1]);
    let after_rip = words.iter().filter_map(|word| word.strip_prefix("RIP="));
    after_rip.chain(after_pc).filter_map(|word| u64::from_str_radix(word, 16).ok()).collect()
}

/// Returns the words of a dump of memory.
fn numbers(dump: &str) -> impl Iterator<Item = u64> {
    dump.split_whitespace()
        .filter_map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok())
}

/// Returns the functions of a program by their addresses; none if `nm` is not installed.
fn symbols(kernel: &Path) -> BTreeMap<u64, String> {
    let listed = Command::new("nm").args("--defined-only --demangle").arg(kernel).output();
    let of_line = |line: &str| {
        let (address, rest) = line.split_once(' ')?;
        let name = rest.strip_prefix(['t', 'T'])?.trim();
        // Names of labels within functions.
        let is_label = name.starts_with(".L");
        (!is_label).then_some((u64::from_str_radix(address, 16).ok()?, name.to_owned()))
    };
    listed.unwrap_or_default().lines().filter_map(of_line).collect()
}

/// Returns the name of the function that contains an address; empty if there is none.
fn name_at(symbols: &BTreeMap<u64, String>, address: u64) -> &str {
    /// No function is larger. Other numbers on a stack are farther from any function.
    const FUNCTION_BYTES_MAX: u64 = 64 << 10;
    let before = symbols.range(..=address).next_back();
    let found = before.filter(|(start, _)| address - **start < FUNCTION_BYTES_MAX);
    found.map_or("", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monitor_lists_program_counters() {
        let x86 = "CPU#0\nRAX=0 RBX=1\nRIP=ffffffff88001234 RFL=00000246\n\nCPU#1\nRIP=10 RFL=2\n";
        assert_eq!(program_counters(x86), [0xffff_ffff_8800_1234, 0x10]);
        let riscv = "CPU#0\n V      =   0\n pc       ffffffff80212345\n mhartid  0\n";
        assert_eq!(program_counters(riscv), [0xffff_ffff_8021_2345]);
        assert_eq!(numbers("ffff: 0x0000000000000012 0xzz\n").collect::<Vec<_>>(), [0x12]);
    }

    #[test]
    fn address_has_the_function_before_it() {
        let symbols = BTreeMap::from([(0x1000, "a".to_owned()), (0x2000, "b".to_owned())]);
        assert_eq!(name_at(&symbols, 0x1fff), "a");
        assert_eq!(name_at(&symbols, 0x2000), "b");
        assert_eq!(name_at(&symbols, 0xfff), "");
        assert_eq!(name_at(&symbols, 0xffff_ffff), "");
    }

    #[test]
    fn process_reports_its_cpu_time() {
        let start = Command::new("sh").arg("-c").arg("while :; do :; done").start_piped();
        let (mut child, _output) = start.expect("there is a shell");
        let since = Instant::now();
        while cpu_ms(&child) == 0 && since.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(10));
        }
        let cpu = cpu_ms(&child);
        let _ = child.kill().and_then(|()| child.wait().map(drop));
        assert!(cpu > 0, "a process that runs takes no CPU time");
    }
}
