//! Linux beside a TLB that never forgets: broken in ten ways, each of which it must find, and
//! intact for long, where it must find nothing.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::guest::{self, Boot};
use super::has_emulator;
use super::kernel::{self, Kernel};
use crate::command::{Command, Failure, cargo, unwritable};
use crate::port::debugger::Debugger;
use crate::port::machine::Clock;
use crate::port::source::{Arch, Variant};

/// A way to break Linux: what it does, a function, the code in it that is replaced (none: its first
/// bytes) with the new code, and what the guest runs.
struct Fault(&'static str, &'static str, (&'static str, &'static str), &'static str);

const FUNC: &str = "flush_tlb_func";
const MM_RANGE: &str = "flush_tlb_mm_range";
const RET: &str = "c3";
const RET_FALSE: &str = "31c0c3";

/// Programs that unmap, with tables and without.
const UNMAP: &str = "purge,200:mmap,100:replace,50";
/// All programs at once. Without any flush, a program alone takes no fault, and asks for no frame
/// that it has freed.
const ALL: &str = "storm,20";
/// The first one calls `madvise`, at which the guest is stopped.
const FREE_TABLES: &str = "purge,2:tables-idle,50:exit,10";

/// The code of the pinned version, as Debian's GCC compiles it. In order: the handler returns for a
/// flush of one space; the jump to the flush is left out; `freed_tables` is stored as 0; `end` is
/// stored from the register of `start`.
const FAULTS: [Fault; 10] = [
    Fault("no other CPU is interrupted", "native_flush_tlb_multi", ("", RET), UNMAP),
    Fault("no range is flushed", MM_RANGE, ("", RET), ALL),
    Fault("no CPU flushes, itself included", FUNC, ("", RET), UNMAP),
    Fault("every CPU counts as lazy", "should_flush_tlb", ("", RET_FALSE), UNMAP),
    Fault("no single page is invalidated", "native_flush_tlb_one_user", ("", RET), UNMAP),
    Fault("an interrupted CPU does nothing", FUNC, ("4839ca7414", "4839ca6690"), UNMAP),
    Fault("no function runs on other CPUs", "smp_call_function_many_cond", ("", RET), UNMAP),
    Fault(
        "pages are freed before a flush",
        "tlb_finish_mmu",
        ("f4080f8581000000", "f408660f1f440000"),
        UNMAP,
    ),
    Fault("lazy CPUs keep freed tables", MM_RANGE, ("44884625", "c6462500"), FREE_TABLES),
    Fault("a range ends where it starts", MM_RANGE, ("48895610", "4c894e10"), UNMAP),
];

/// The function at which a guest is stopped, when its first program runs.
const STOP: &str = "do_madvise";

/// The hooks of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hooks {
    Preset,
    /// None: new owners are inferred.
    Inferred,
}

/// As the preset requires.
pub(super) const WORDS: &str = "nopti";

const MODES: &str = "--mode reuse --mode tables --mode speculation";

/// Breaks stock Linux in each way, and then runs both kernels for these minutes.
pub(crate) fn soak(minutes: u64) -> Result<(), Failure> {
    has_emulator(Arch::X86_64)?;
    build()?;
    let kernels = [kernel::build(Variant::Stock)?, kernel::build(Variant::Shootdown)?];
    // Its module is stock's, and no program here loads it.
    let archive = guest::archive(&kernels[0])?;
    let runs = Runs { archive };
    for fault in &FAULTS {
        runs.break_linux(&kernels[0], fault)?;
    }
    let begin = Instant::now();
    let is_over = || begin.elapsed() >= Duration::from_secs(minutes * 60);
    for cpus in [4, 8, 16].into_iter().cycle() {
        for kernel in &kernels {
            for (hooks, modes) in
                [(Hooks::Preset, ""), (Hooks::Inferred, ""), (Hooks::Preset, MODES)]
            {
                if is_over() {
                    return Ok(());
                }
                runs.storm(kernel, cpus, hooks, modes)?;
            }
        }
    }
    Ok(())
}

/// Builds the command, and the plugin of QEMU.
pub(super) fn build() -> Result<(), Failure> {
    let build = "build --quiet --profile ci --package shootdown-lab --package shootdown-sanitizer";
    cargo(build).run()
}

/// The command, which boots a kernel.
fn sanitizing(boot: &Boot<'_>, hooks: Hooks, options: &str) -> Command {
    let program = crate::output().join("ci/shootdown");
    let command = Command::new(program).args("sanitize --symbols").arg(&boot.kernel.symbols);
    let command = match hooks {
        Hooks::Preset => command.args("--preset linux"),
        Hooks::Inferred => command,
    };
    boot.options(command.args(options).args("--").arg(boot.emulator()))
}

/// Boots a kernel under the sanitizer. Returns the first fault that it finds.
pub(super) fn first_fault(boot: &Boot<'_>) -> Result<Option<String>, Failure> {
    let options = format!("{MODES} --limit 1 --seconds 300");
    let output = sanitizing(boot, Hooks::Preset, &options).captured()?;
    let (text, found) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let first = found.lines().find(|line| line.starts_with("fault")).map(str::to_owned);
    if first.is_none() && !text.contains("nothing was found") {
        eprint!("{text}{found}");
        return Err(Failure::new(
            "the sanitizer finds no fault, and does not say so",
            "read above",
        ));
    }
    Ok(first)
}

/// Boots a kernel under the sanitizer. Returns the entries that its TLBs load.
pub(super) fn entries_filled(boot: &Boot<'_>) -> Result<u64, Failure> {
    let output = sanitizing(boot, Hooks::Preset, "").captured()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let digits = |line: &str| line.chars().filter(char::is_ascii_digit).collect::<String>();
    let found = text.lines().find(|line| line.contains("entries filled")).map(digits);
    found.and_then(|found| found.parse().ok()).ok_or_else(|| {
        eprint!("{text}{}", String::from_utf8_lossy(&output.stderr));
        Failure::new("the sanitizer prints no entries", "read its output above")
    })
}

struct Runs {
    archive: PathBuf,
}

impl Runs {
    /// Every program at the same time, while CPUs come and go. Nothing may be found.
    fn storm(&self, kernel: &Kernel, cpus: u32, hooks: Hooks, modes: &str) -> Result<(), Failure> {
        let boot = kernel.boot(&self.archive, (cpus, Clock::Host), WORDS, "storm,60");
        let begin = Instant::now();
        let output = sanitizing(&boot, hooks, modes).captured()?;
        let (text, name) = (String::from_utf8_lossy(&output.stdout), kernel.variant.name());
        println!(
            "{name}, {cpus} CPUs, {hooks:?} {modes}: {} s\n{}",
            begin.elapsed().as_secs(),
            totals(&text)
        );
        if output.status.success() && text.contains("nothing was found") {
            return Ok(());
        }
        let faults = String::from_utf8_lossy(&output.stderr);
        let mut faults = faults.lines().filter(|line| line.starts_with("fault ")).peekable();
        if kernel.variant == Variant::Stock && faults.peek().is_some() && faults.all(is_known) {
            println!("  all faults are those of docs/found.md");
            return Ok(());
        }
        eprint!("{text}{}", String::from_utf8_lossy(&output.stderr));
        Err(Failure::new(format!("the sanitizer on intact {name} Linux"), "read its output above"))
    }

    /// Boots a kernel, breaks it, and expects a fault.
    fn break_linux(&self, kernel: &Kernel, fault: &Fault) -> Result<(), Failure> {
        let Fault(does, symbol, code, run) = *fault;
        let (stop, place) = (kernel.address(STOP)?, kernel.address(symbol)?);
        let socket = crate::output().join("ports/linux/debugger");
        if socket.exists() {
            fs::remove_file(&socket).map_err(unwritable(&socket))?;
        }
        let boot = kernel.boot(&self.archive, (4, Clock::Host), WORDS, run);
        let options = format!("{MODES} --limit 1 --seconds 300");
        let waiting = format!("-S -gdb unix:{},server=on,wait=off", socket.display());
        let command = sanitizing(&boot, Hooks::Preset, &options).args(&waiting);
        let debugged = thread::spawn(move || {
            let mut debugger = Debugger::connect(&socket)?;
            debugger.run_to(stop)?;
            debugger.replace(place, code)?;
            debugger.leave()
        });
        let output = command.captured()?;
        let found = String::from_utf8_lossy(&output.stderr);
        let broken = debugged.join().unwrap_or_else(|_| Err(std::io::Error::other("a panic")));
        broken.map_err(|error| Failure::new(format!("{symbol}: {error}"), "check FAULTS"))?;
        match (output.status.code(), found.lines().find(|line| line.starts_with("fault"))) {
            (Some(1), Some(line)) => {
                println!("{does}: {line}");
                Ok(())
            }
            _ => {
                eprint!("{}{found}", String::from_utf8_lossy(&output.stdout));
                let cause = format!("the sanitizer does not find that {does}");
                Err(Failure::new(cause, "read its output above"))
            }
        }
    }
}

/// The fault of stock Linux that docs/found.md explains.
fn is_known(fault: &str) -> bool {
    fault.contains("(tables)") && fault.contains("at switch_mm_irqs_off")
}

/// The lines with the sanitizer's totals.
fn totals(output: &str) -> String {
    let lines = output.lines().skip_while(|line| !line.contains("of them in user mode"));
    lines.map(|line| format!("  {line}\n")).collect()
}
