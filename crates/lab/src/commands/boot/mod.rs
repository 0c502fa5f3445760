//! `shootdown boot`: boots a kernel that contains the engine on an emulated machine. The emulator's
//! MMU is not part of this project.

mod bochs;
mod console;
mod emulator;
mod error;
mod kernel;
mod load;
mod options;
mod trials;
mod workload;

use std::path::Path;
use std::time::Duration;

use shootdown_sanitizer::report::{Line as PluginLine, Mode, Report as Fault};

use crate::commands::sanitize::{Plugin, Preset, SanitizeError, Symbols, judge};
use crate::error::Failure;
use crate::output::print;
use crate::render::{Printed as _, name_of};

pub(crate) use options::Boot;

use bochs::Disc;
use console::{Console, Line};
pub(crate) use emulator::Architecture;
use emulator::Emulator;
use error::BootError;
use load::Load;
use options::Replicas;

pub(crate) const EXAMPLES: &str = include_str!("../../../help/boot.txt").trim_ascii_end();

impl Boot {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let text = match &self.workload {
            None => {
                if self.sanitize && (self.arch == Architecture::Loongarch64 || !self.is_qemu()) {
                    return Err(BootError::NoSanitizer(self.machine_name()).into());
                }
                if self.guests && !(self.arch.has_guests() && self.is_qemu()) {
                    return Err(BootError::NoGuests(self.machine_name()).into());
                }
                if self.guests && self.cpus < 3 {
                    return Err(BootError::FewForGuests.into());
                }
                let mode = if self.guests { "guests" } else { "trials" };
                let values = [("mode", mode.to_owned()), ("rounds", self.rounds.to_string())];
                let booted = run(self, &values, &[])?;
                let faults = booted.faults.as_deref();
                let report = trials::Report::new(self, &booted.lines, faults);
                print(&report.in_format(self.format))?;
                return Ok(report.check_sanitizer(faults)?);
            }
            Some(name) => {
                let workload = workload::find(name, self)?;
                let mut values = vec![("mode", "workload".to_owned())];
                if self.counts {
                    values.push(("tick_ns", workload::TICK_NS.to_string()));
                }
                if workload::is_short_of_memory(name) {
                    values.push(("frames", workload::SHORT_FRAMES.to_string()));
                    values.push(("reclaim", name_of(self.reclaim)));
                }
                values.push(("discards", name_of(self.discards)));
                if self.replicas != Replicas::Never {
                    if self.arch == Architecture::Aarch64 {
                        return Err(BootError::NoReplicas.into());
                    }
                    values.push(("replicas", name_of(self.replicas)));
                }
                let lines = run(self, &values, workload.bytes())?.lines;
                workload::Comparison::new(self, name, workload, &lines)?.in_format(self.format)
            }
        };
        Ok(print(&text)?)
    }
}

/// The result of a boot.
struct Booted {
    /// The lines of the console.
    lines: Vec<Line>,
    /// The faults that the sanitizer found, if there was one.
    faults: Option<Vec<Fault>>,
}

/// Boots the kernel.
fn run(options: &Boot, values: &[(&str, String)], payload: &[u8]) -> Result<Booted, Failure> {
    let Boot { arch, cpus, emulator, .. } = *options;
    let checked = match emulator {
        Emulator::Qemu => arch.check_emulator(),
        Emulator::Bochs => bochs::check(options),
    };
    checked?;
    let kernel = match &options.kernel {
        Some(kernel) => kernel.clone(),
        None => kernel::build(arch, options.counts)?,
    };
    let notify = ("notify", name_of(options.notify));
    let values = [&[("cpus", cpus.to_string()), notify], values].concat();
    let load = Load::new(&values, payload).map_err(BootError::Start)?;
    let console = Console { patience: Duration::from_secs(options.patience), all: options.console };
    let lines = match emulator {
        Emulator::Qemu => {
            let mut command = arch.command(&kernel, &load.path(), options);
            if options.sanitize {
                let plugin = plugin(&kernel)?;
                command.args(plugin.arguments());
                let lines = console.watch(&mut command, arch.passed_status())?;
                return Ok(Booted { lines, faults: Some(faults(&plugin)?) });
            }
            console.watch(&mut command, arch.passed_status())
        }
        Emulator::Bochs => {
            let disc = Disc::new(&kernel, &load)?;
            console.watch(&mut disc.command(cpus), bochs::PASSED_STATUS)
        }
    };
    Ok(Booted { lines: lines?, faults: None })
}

/// The sanitizer's plugin with the hooks of the kernel.
fn plugin(kernel: &Path) -> Result<Plugin, Failure> {
    let symbols = Symbols::read(kernel)?;
    let plugin = Plugin::find(None)?.with_hooks(&Preset::Shootdown.hooks(), &symbols)?;
    Ok(plugin.with(&Mode::ALL, u64::MAX))
}

/// The faults that the plugin has found.
fn faults(plugin: &Plugin) -> Result<Vec<Fault>, Failure> {
    let (mut faults, mut totals) = (Vec::new(), None);
    for line in plugin.lines()?.read()? {
        match line {
            PluginLine::Fault(fault) => faults.push(*fault),
            PluginLine::Ended(ended) => totals = Some(ended),
            PluginLine::Refused { cause } => return Err(SanitizeError::Refused { cause }.into()),
            PluginLine::Progress(_) => {}
        }
    }
    judge(&totals.unwrap_or_default(), &Preset::Shootdown.hooks())?;
    Ok(faults)
}
