//! `shootdown calibrate`: measures this host, and writes a machine file that passes its own check.

mod host;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use shootdown_run::host_loops::{HostLoop, fit, host_loops, value_of};
use shootdown_sim::machine::Machine;

use super::machines::check::{Check, CheckError, SET, loop_of};
use crate::error::{CannotRun, Failure};
use crate::machines::{self, Embedded};
use crate::output::{Existing, Output, print};

pub(crate) const EXAMPLES: &str = include_str!("../../../help/calibrate.txt").trim_ascii_end();

#[derive(Args, Clone, Debug)]
pub(crate) struct Calibrate {
    /// The machine file to write. Without this option, it is printed
    #[arg(short, long, value_name = "FILE.toml")]
    output: Option<PathBuf>,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
    /// Measure although other programs run: the shorter batches count, and loops that need a second
    /// CPU without other programs are left out. The file says so
    #[arg(long, conflicts_with = "refit")]
    busy: bool,
    /// The machine whose other numbers the file takes: a name of `shootdown machines`
    #[arg(long, value_name = "MACHINE", default_value = BASE.name)]
    extends: String,
    /// Measure nothing: fit the numbers of this machine file to the times in its section
    /// `[measured]`, and print them
    #[arg(long, value_name = "MACHINE", conflicts_with_all = ["output", "extends"])]
    refit: Option<OsString>,
}

#[cfg(target_arch = "aarch64")]
const BASE: Embedded = Embedded::ARM64_2S;
#[cfg(target_arch = "riscv64")]
const BASE: Embedded = Embedded::RISCV_64;
#[cfg(not(any(target_arch = "aarch64", target_arch = "riscv64")))]
const BASE: Embedded = Embedded::XEON_2S;

/// The remedy if the host cannot be measured.
const QUIET_HOST: &str =
    "run this on an idle Linux with two CPUs and the command `cat`, or add `--busy`";

/// Times of loops.
type Measured = Vec<(&'static HostLoop, f64)>;

impl Calibrate {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if let Some(wanted) = &self.refit {
            let machine = machines::find(wanted)?;
            let measured = quoted(&machine)?;
            let fitted = fitted(&machine, &measured)?;
            print(&numbers(&fitted, &measured))?;
            return shown(&fitted);
        }
        let existing = if self.force { Existing::Replace } else { Existing::Keep };
        let output = self.output.as_deref().map(|path| Output::new(path, existing)).transpose()?;
        // Before the measurement, which takes seconds.
        machines::find(self.extends.as_ref())?;
        let measured = host::measure(self.load()).map_err(|error| {
            CannotRun::new(format!("cannot measure this host: {error}"), QUIET_HOST)
        })?;
        let name = output.as_ref().and_then(|output| output.path().file_stem());
        let name = name.map_or("this-host".into(), |stem| stem.to_string_lossy().into_owned());
        let start = self.start(&name, &measured);
        let machine = machines::parse(&start, Path::new("this-host.toml"))?;
        let fitted = fitted(&machine, &measured)?;
        let mut text = start + &numbers(&fitted, &measured);
        let unstated = machines::parse(&text, Path::new("this-host.toml"))?;
        if let Some(percent) = Check::of(std::slice::from_ref(&unstated))?.error_percent() {
            let source = "largest difference of the loops that nothing was fitted to";
            let _ = write!(
                text,
                "\n[error]\ntime_percent = {{ value = {percent}, source = \"{source}\" }}\n"
            );
        }
        match &output {
            None => print(&text)?,
            Some(output) => output.write(&text)?,
        }
        shown(&machines::parse(&text, Path::new("this-host.toml"))?)
    }

    fn load(&self) -> host::Load {
        if self.busy { host::Load::Busy } else { host::Load::Idle }
    }

    /// Returns the file without the fitted numbers.
    fn start(&self, name: &str, measured: &Measured) -> String {
        let host::Topology { sockets, cores, threads } = host::topology();
        let quoted = |text: &str| toml_string(text);
        let busy = match self.load() {
            host::Load::Idle => "",
            host::Load::Busy => " on a busy host: times may be too long",
        };
        let mut text = format!(
            "# Written by `shootdown calibrate`{busy}.\n\nname = {}\nextends = {}\n\
             about = \"{} CPUs, measured by shootdown calibrate\"\n\n[topology]\n",
            quoted(name),
            quoted(&self.extends),
            sockets * cores * threads
        );
        for (key, value) in [
            ("sockets", sockets),
            ("clusters_per_socket", 1),
            ("cores_per_cluster", cores),
            ("threads_per_core", threads),
        ] {
            let _ = writeln!(
                text,
                "{key} = {{ value = {value}, source = \"/sys/devices/system/cpu\" }}"
            );
        }
        text += "\n[measured]\n";
        for (host_loop, ns) in measured {
            let source = quoted(&format!("shootdown calibrate{busy}: {}", host_loop.about));
            let _ = writeln!(text, "{} = {{ value = {ns:.1}, source = {source} }}", host_loop.key);
        }
        text
    }
}

/// Returns the loops that a machine file quotes.
fn quoted(machine: &Machine) -> Result<Measured, CheckError> {
    let quoted = machine.measured.iter();
    let mut quoted: Measured = quoted
        .map(|number| Ok((loop_of(machine, number)?, number.value)))
        .collect::<Result<_, CheckError>>()?;
    if quoted.is_empty() {
        return Err(CheckError::NoLoops(machine.name.clone()));
    }
    // In the order in which they are fitted.
    let position = |it: &HostLoop| host_loops().iter().position(|known| known.key == it.key);
    quoted.sort_by_key(|(host_loop, _)| position(host_loop));
    Ok(quoted)
}

fn fitted(machine: &Machine, measured: &Measured) -> Result<Machine, CannotRun> {
    fit(machine, measured).map_err(|error| CannotRun::simulation("the loops", "linux-7.0", error))
}

/// Returns the fitted numbers as sections of a machine file. Idle states are a list, which is
/// repeated as a whole.
fn numbers(machine: &Machine, measured: &Measured) -> String {
    let mut lines: Vec<(String, String)> = Vec::new();
    for (at, (host_loop, ns)) in measured.iter().enumerate() {
        let Some(number) = host_loop.fitted_number(machine) else { continue };
        let later =
            |(it, _): &(&HostLoop, f64)| it.fitted_number(machine).as_ref() == Some(&number);
        if measured[at + 1..].iter().any(later) {
            continue;
        }
        let Some((section, key)) = number.rsplit_once('.') else { continue };
        if section.starts_with("idle.") {
            continue;
        }
        let value = value_of(machine, &number);
        let source = toml_string(&format!("fitted: {} takes {ns:.1} ns", host_loop.about));
        let line = format!("{key} = {{ value = {value}, source = {source} }}\n");
        lines.push((section.to_owned(), line));
    }
    lines.sort_by(|one, other| one.0.cmp(&other.0));
    let mut text = String::new();
    for section in lines.chunk_by(|one, other| one.0 == other.0) {
        let _ = write!(text, "\n[{}]\n", section[0].0);
        section.iter().for_each(|(_, line)| text += line);
    }
    text + &idle(machine)
}

fn idle(machine: &Machine) -> String {
    use shootdown_sim::machine::{Idle, TlbInIdle};
    let mut text = String::new();
    let Idle::States(states) = &machine.idle else { return text };
    for state in states {
        let tlb = if state.tlb == TlbInIdle::Lost { "lost" } else { "kept" };
        let _ = write!(text, "\n[[idle]]\nname = {}\ntlb = \"{tlb}\"\n", toml_string(&state.name));
        for key in ["after_us", "exit_us"] {
            let named = |it: &&shootdown_sim::machine::Number| {
                it.section == format!("idle.{}", state.name) && it.key == key
            };
            let Some(number) = machine.numbers().iter().find(named) else { continue };
            let source = match number.source.as_str() {
                SET => "fitted: round trip through pipes between two CPUs",
                source => source,
            };
            let source = toml_string(source);
            let _ = writeln!(text, "{key} = {{ value = {}, source = {source} }}", number.value);
        }
    }
    text
}

fn toml_string(text: &str) -> String {
    let escaped: String = text
        .chars()
        .flat_map(|c| match c {
            '"' | '\\' => vec!['\\', c],
            c if c.is_control() => vec![' '],
            c => vec![c],
        })
        .collect();
    format!("\"{escaped}\"")
}

/// Prints the check of the machine that was fitted.
fn shown(machine: &Machine) -> Result<(), Failure> {
    let check = Check::of(std::slice::from_ref(machine))?;
    eprintln!("\n{}", check.text());
    Ok(check.verdict()?)
}
