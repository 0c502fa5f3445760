//! `shootdown sanitize`: runs any kernel under QEMU with a TLB that never forgets, and reports CPUs
//! that can use translations which they must not use any more.
//!
//! In reading order: `symbols` finds addresses, `hooks` are the places where the kernel gives
//! frames to new owners, `plugin` is the plugin of QEMU and its output, and `text` the output of
//! the command.

mod error;
mod hooks;
mod plugin;
mod symbols;
mod text;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use shootdown_sanitizer::EXPOSING_PROGRAM;
use shootdown_sanitizer::report::{Line, Mode, Report, Totals};

use crate::commands::boot::Architecture;
use crate::error::{FOUND, Failure};
use crate::output::{Output, print};
use crate::progress;
use crate::render::grouped;

pub(crate) use error::SanitizeError;
use hooks::Hook;
pub(crate) use hooks::Preset;
pub(crate) use plugin::Plugin;
pub(crate) use symbols::Symbols;

pub(crate) const EXAMPLES: &str = include_str!("../../../help/sanitize.txt").trim_ascii_end();

#[derive(Args, Clone, Debug)]
pub(crate) struct Sanitize {
    /// The architecture, if QEMU's program is not given
    #[arg(long, value_enum)]
    arch: Option<Architecture>,
    /// The kernel, which is also the source of symbols if it is an ELF file
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// The symbols: an ELF file, System.map, or a copy of /proc/kallsyms
    #[arg(long, value_name = "FILE")]
    symbols: Option<PathBuf>,
    /// The hooks of a known kernel
    #[arg(long, value_enum, value_name = "KERNEL")]
    preset: Option<Preset>,
    /// A function that is called when a frame gets a new owner
    #[arg(long, value_name = "HOOK")]
    reuse: Vec<Hook>,
    /// A function that is called when all changes of page tables by this CPU have been flushed
    #[arg(long, value_name = "SYMBOL")]
    settled: Vec<String>,
    /// The faults to look for: reuse, permission (needs a --settled), tables, speculation; without
    /// this option, all that the hooks allow but speculation
    #[arg(long = "mode", value_name = "MODE", value_parser = mode)]
    modes: Vec<Mode>,
    /// Write the faults and the totals to a file, as lines of JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// End QEMU after this number of distinct faults
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// End QEMU after this time
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// The plugin, if it is not beside this command
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// Print a program in C that exposes missing flushes, for your kernel to run, and exit
    #[arg(long)]
    print_program: bool,
    /// QEMU's program with its options, or its options alone
    #[arg(last = true, value_name = "QEMU")]
    qemu: Vec<OsString>,
}

fn mode(name: &str) -> Result<Mode, String> {
    let found = Mode::ALL.into_iter().find(|mode| mode.name() == name);
    found.ok_or_else(|| format!("it is one of {}", Mode::ALL.map(Mode::name).join(", ")))
}

/// The time between two looks at the output of the plugin.
const PERIOD: Duration = Duration::from_millis(50);
/// The time for QEMU to end after a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// The result of a run.
#[derive(Debug, Default)]
struct Outcome {
    faults: Vec<Report>,
    totals: Option<Totals>,
    /// QEMU's status, if it failed without being asked to end.
    failed: Option<ExitStatus>,
}

/// Returns `true` if the option is among QEMU's, which may have two dashes.
fn has_option(options: &[OsString], name: &str) -> bool {
    options
        .iter()
        .filter_map(|option| option.to_str())
        .any(|option| option == name || option.strip_prefix('-') == Some(name))
}

impl Sanitize {
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        if self.print_program {
            print(EXPOSING_PROGRAM)?;
            return Ok(0);
        }
        let (program, options) = self.program()?;
        let (symbols, hooks) = self.hooks()?;
        let json = self.json.as_ref().map(|path| Output::page(path, "--json", &[])).transpose()?;
        let plugin = Plugin::find(self.plugin.as_deref())?;
        let plugin = plugin.with_hooks(&hooks, &symbols)?.with(&self.modes, self.limit);
        let mut command = Command::new(&program);
        command.args(options).args(plugin.arguments());
        if let Some(kernel) = &self.kernel
            && !has_option(options, "-kernel")
        {
            command.arg("-kernel").arg(kernel);
        }
        let outcome = self.watch(&mut command, &program, &plugin, &symbols)?;
        if let Some(json) = json {
            let lines = outcome.faults.iter().map(|fault| Line::Fault(Box::new(fault.clone())));
            let lines = lines.chain(outcome.totals.clone().map(Line::Ended));
            json.write(&lines.map(|line| line.json() + "\n").collect::<String>())?;
        }
        let Some(totals) = outcome.totals else {
            return Err(SanitizeError::NoPlugins { program }.into());
        };
        let is_found = !outcome.faults.is_empty();
        if !is_found {
            // A guest that ran may choose QEMU's status, but not a signal.
            let is_failure = |status: &ExitStatus| totals.fills == 0 || status.code().is_none();
            if let Some(status) = outcome.failed.filter(is_failure) {
                return Err(SanitizeError::QemuFailed { program, status }.into());
            }
            judge(&totals, &hooks)?;
        }
        print(&text::summary(&totals, outcome.faults.len()))?;
        Ok(if is_found { FOUND } else { 0 })
    }

    /// QEMU's program, and the options that the user gave for it.
    fn program(&self) -> Result<(OsString, &[OsString]), SanitizeError> {
        let is_program = |word: &&OsString| {
            let name = Path::new(word).file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("qemu-system-")
        };
        match (self.qemu.first().filter(is_program), self.arch) {
            (Some(program), _) => Ok((program.clone(), &self.qemu[1..])),
            (None, Some(arch)) => Ok((format!("qemu-system-{}", arch.name()).into(), &self.qemu)),
            (None, None) => Err(SanitizeError::NoProgram),
        }
    }

    /// The hooks, each with its address.
    fn hooks(&self) -> Result<(Symbols, Vec<Hook>), SanitizeError> {
        let file = self.symbols.as_ref().or(self.kernel.as_ref());
        let symbols = file.map(|path| Symbols::read(path)).transpose()?.unwrap_or_default();
        let mut hooks = self.reuse.clone();
        hooks.extend(self.settled.iter().map(|symbol| Hook::settled(symbol)));
        if let Some(preset) = self.preset {
            hooks.extend(preset.hooks_of(&symbols)?);
        }
        if self.modes.contains(&Mode::Permission) && !hooks.iter().any(Hook::is_settled) {
            return Err(SanitizeError::NoSettled);
        }
        Ok((symbols, hooks))
    }

    /// Runs QEMU to its end, and prints faults when they are found.
    fn watch(
        &self,
        command: &mut Command,
        program: &OsString,
        plugin: &Plugin,
        symbols: &Symbols,
    ) -> Result<Outcome, Failure> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted))
                .map_err(SanitizeError::Signals)?;
        }
        let child = command.stdin(Stdio::inherit()).spawn();
        let mut child =
            child.map_err(|error| SanitizeError::NotStarted { program: program.clone(), error })?;
        let progress = progress::bar(None, "{spinner} {elapsed:>4} {wide_msg}");
        progress.enable_steady_tick(progress::PERIOD);
        let (mut outcome, mut lines) = (Outcome::default(), plugin.lines()?);
        let (start, mut asked) = (Instant::now(), None);
        let mut ended = false;
        loop {
            for line in lines.read()? {
                match line {
                    Line::Fault(report) => {
                        let text = text::fault(&report, outcome.faults.len() + 1, symbols, plugin);
                        progress.suspend(|| eprint!("{text}"));
                        outcome.faults.push(*report);
                    }
                    Line::Progress(totals) | Line::Ended(totals) => {
                        progress.set_message(format!(
                            "{} entries filled, {} frames reused, {} faults",
                            grouped(totals.fills),
                            grouped(totals.reused),
                            totals.faults
                        ));
                        outcome.totals = Some(totals);
                    }
                    Line::Refused { cause } => {
                        let _ = child.kill();
                        let _ = child.wait();
                        progress.finish_and_clear();
                        return Err(SanitizeError::Refused { cause }.into());
                    }
                }
            }
            if ended {
                break;
            }
            let waited = child.try_wait();
            ended = !matches!(waited, Ok(None));
            if asked.is_none() {
                outcome.failed = waited.ok().flatten().filter(|status| !status.success());
            }
            let is_late = self.seconds.is_some_and(|limit| start.elapsed().as_secs() >= limit);
            let is_enough = outcome.faults.len() as u64 >= self.limit;
            let must_end = is_late || is_enough || interrupted.load(Ordering::Relaxed);
            if must_end && !ended {
                end(&mut child, asked.get_or_insert_with(Instant::now));
            }
            std::thread::sleep(PERIOD);
        }
        progress.finish_and_clear();
        Ok(outcome)
    }
}

/// A plugin that watches Linux, which another command runs.
#[derive(Debug)]
pub(crate) struct OfLinux {
    plugin: Plugin,
    symbols: Symbols,
    hooks: Vec<Hook>,
}

impl OfLinux {
    /// The plugin for a kernel with these symbols, in all modes for which Linux has hooks.
    ///
    /// # Errors
    ///
    /// If there is no plugin, or the symbols have no hook.
    pub(crate) fn new(kallsyms: &str) -> Result<Self, SanitizeError> {
        let symbols = Symbols::of_kallsyms(kallsyms)?;
        let hooks = Preset::Linux.hooks_of(&symbols)?;
        let plugin = Plugin::find(None)?.with_hooks(&hooks, &symbols)?.with(&Mode::ALL, 20);
        Ok(Self { plugin, symbols, hooks })
    }

    /// QEMU's arguments.
    pub(crate) fn arguments(&self) -> [String; 2] {
        self.plugin.arguments()
    }

    /// Prints the faults of a run that has ended, and the totals. Returns the number of faults.
    ///
    /// # Errors
    ///
    /// If the plugin could not work, or a run without faults shows nothing.
    pub(crate) fn conclude(&self) -> Result<usize, SanitizeError> {
        let (mut printed, mut last) = (0, Totals::default());
        for line in self.plugin.lines()?.read()? {
            match line {
                Line::Fault(report) => {
                    printed += 1;
                    eprint!("{}", text::fault(&report, printed, &self.symbols, &self.plugin));
                }
                Line::Progress(totals) | Line::Ended(totals) => last = totals,
                Line::Refused { cause } => return Err(SanitizeError::Refused { cause }),
            }
        }
        if printed == 0 {
            judge(&last, &self.hooks)?;
        }
        eprint!("{}", text::summary(&last, printed));
        Ok(printed)
    }
}

/// Asks QEMU to end, which prints the totals; and ends it if it does not.
fn end(child: &mut Child, asked: &Instant) {
    if asked.elapsed() < PATIENCE {
        if let Ok(id) = i32::try_from(child.id())
            && let Some(id) = rustix::process::Pid::from_raw(id)
        {
            let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        }
    } else {
        let _ = child.kill();
    }
}

/// Returns an error if a run without faults shows nothing.
pub(crate) fn judge(totals: &Totals, hooks: &[Hook]) -> Result<(), SanitizeError> {
    if totals.fills == 0 {
        return Err(SanitizeError::NoTranslation);
    }
    if totals.cpus_in_user_mode < 2 {
        return Err(SanitizeError::OneCpu { cpus: totals.cpus, ran: totals.cpus_in_user_mode });
    }
    if totals.reused == 0 && !hooks.iter().any(Hook::is_reuse) {
        return Err(SanitizeError::NoOwner);
    }
    for (count, is_of, act) in [
        (totals.reused, Hook::is_reuse as fn(&Hook) -> bool, "no frame was reused"),
        (totals.settled, Hook::is_settled, "no change was settled"),
    ] {
        let symbols: Vec<_> = hooks.iter().filter(|hook| is_of(hook)).map(Hook::symbol).collect();
        if count == 0 && !symbols.is_empty() {
            return Err(SanitizeError::NotCalled { act, symbols: symbols.join(", ") });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_that_shows_nothing_is_error() {
        let hooks = ["f:1".parse::<Hook>().expect("a hook")];
        let shows =
            Totals { cpus: 4, cpus_in_user_mode: 2, fills: 9, reused: 1, ..Totals::default() };
        assert!(judge(&shows, &hooks).is_ok());
        let without = [
            Totals { fills: 0, ..shows.clone() },
            Totals { cpus_in_user_mode: 1, ..shows.clone() },
            Totals { reused: 0, ..shows.clone() },
        ];
        let no_owner = judge(&without[2], &[]).unwrap_err().to_string();
        assert!(no_owner.contains("no frame that was unmapped"), "{no_owner}");
        let causes = without.map(|totals| judge(&totals, &hooks).unwrap_err().to_string());
        assert!(causes[0].contains("no address was translated"), "{causes:?}");
        assert!(causes[1].contains("1 of 4 CPUs ran user code"), "{causes:?}");
        assert!(causes[2].contains("no frame was reused: f was not called"), "{causes:?}");
        let unsettled = judge(&shows, &[Hook::settled("s")]).unwrap_err().to_string();
        assert!(unsettled.contains("no change was settled: s was not called"), "{unsettled}");
    }
}
