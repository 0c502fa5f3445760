//! `shootdown guest`: runs a program on a real Linux with 1 to 255 CPUs, which QEMU emulates, and
//! records it.
//!
//! In reading order: `kernel` finds the kernel, with `packages` from Debian's. `archive` is the
//! initramfs, to which `programs` adds the program with its libraries, and `init` the first process
//! of the guest, which calls `shootdown record`. `emulator` runs the guest, and `delivery` is what
//! the guest sends back. `children` are the processes that end with this command.

mod archive;
mod children;
mod delivery;
mod emulator;
mod error;
mod init;
mod kernel;
mod packages;
mod programs;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{HumanBytes, ProgressBar};
use shootdown_run::replay::Survey;

use crate::commands::record::Signals;
use crate::commands::sanitize::OfLinux;
use crate::error::{FOUND, Failure, shown};
use crate::output::{Existing, Output};
use crate::progress;
use crate::recordings::{open, refused};
use crate::render::grouped;

use archive::Files;
use delivery::Delivery;
use emulator::{Clock, Console, Emulated};
use error::GuestError;
use init::{Recorder, Script};
use kernel::Kernel;
use packages::Packages;

pub(crate) const EXAMPLES: &str = include_str!("../../../help/guest.txt").trim_ascii_end();

/// The options of `shootdown guest`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Guest {
    /// The kernel: a version, whose newest update Debian's packages have, the path of an image, or
    /// `shootdown`, which is Linux on the engine
    #[arg(long, value_name = "VERSION|IMAGE", default_value = "6.12")]
    kernel: OsString,
    /// The number of CPUs
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=255))]
    cpus: u32,
    /// Use the number of instructions as the clock: CPUs take turns, on one thread of the host
    #[arg(long)]
    counted: bool,
    /// A file or directory that the program needs; repeat the option for several
    #[arg(long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A file that the program writes, to bring back to its place here; repeat it for several
    #[arg(long = "take", value_name = "FILE")]
    taken: Vec<PathBuf>,
    /// The file of the recording; without it, the program runs unrecorded
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Report CPUs that can use translations which they must not use any more
    #[arg(long, conflicts_with = "output")]
    sanitize: bool,
    /// Replace FILE, and files that are brought back, if they exist
    #[arg(long)]
    force: bool,
    /// The size of each of the two kernel buffers per CPU, in KiB
    #[arg(long, value_name = "N", default_value_t = 4096,
          value_parser = clap::value_parser!(u32).range(4..=1 << 20))]
    buffer_kib: u32,
    /// The memory of the guest [default: 512 MiB, the buffers, and three times the files]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(64..=1 << 20))]
    memory_mib: Option<u64>,
    /// More parameters of the kernel, for example transparent_hugepage=never
    #[arg(long, value_name = "PARAMETERS", default_value = "", allow_hyphen_values = true)]
    append: String,
    /// A static busybox for the guest [default: this machine's, or Debian's package]
    #[arg(long, value_name = "PROGRAM")]
    busybox: Option<PathBuf>,
    /// The longest time of the guest, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3600,
          value_parser = clap::value_parser!(u64).range(1..=864_000))]
    limit: u64,
    /// Show every line of the guest's console
    #[arg(long)]
    console: bool,
    /// Print nothing but errors and the program's output
    #[arg(long, short)]
    quiet: bool,
    /// The program to run, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Guest {
    /// Runs the program in a guest, and returns its exit status.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        let progress = match self.quiet {
            true => ProgressBar::hidden(),
            false => progress::bar(None, "{spinner} {elapsed:>4} {wide_msg}"),
        };
        progress.enable_steady_tick(progress::PERIOD);
        let status = self.run_and_bring_back(&progress);
        progress.finish_and_clear();
        Ok(status?)
    }

    fn run_and_bring_back(&self, progress: &ProgressBar) -> Result<u8, GuestError> {
        let existing = if self.force { Existing::Replace } else { Existing::Keep };
        let output = self.output.as_ref().map(|path| Output::new(path, existing)).transpose()?;
        let taken: Vec<Output> =
            self.taken.iter().map(|path| Output::new(path, existing)).collect::<Result<_, _>>()?;
        let mut signals = Signals::listen().map_err(GuestError::Signals)?;
        let mut files = Files::default();
        let program = self.programs(&mut files, progress, &mut signals)?;
        let mut packages = Packages::new(&mut signals, progress);
        let kernel = Kernel::find(&self.kernel, &mut packages)?;
        let busybox = self.busybox.clone().map_or_else(|| packages.busybox(), Ok)?;
        let directory = std::env::current_dir().map_err(GuestError::Temporary)?;
        let command = std::iter::once(program.as_os_str())
            .chain(self.command.iter().skip(1).map(OsString::as_os_str));
        let script = Script {
            command: command.collect(),
            directory: &directory,
            recorder: output.as_ref().map(|_| Recorder { buffer_kib: self.buffer_kib }),
            taken: self.taken.iter().map(PathBuf::as_path).collect(),
        };
        let sanitizer = match self.sanitize {
            true => Some(self.sanitizer(&kernel, &busybox, &mut signals, progress)?),
            false => None,
        };
        init::add(&mut files, &script, &busybox)?;
        let start = Instant::now();
        let plugin = sanitizer.as_ref().map(OfLinux::arguments);
        let delivery = self.boot(&kernel, &files, plugin.as_ref(), &mut signals, progress)?;
        progress.finish_and_clear();
        let bytes = match &output {
            Some(output) => {
                Some(keep(&delivery, "recording", output)?.ok_or_else(|| recorder(&delivery))?)
            }
            None => None,
        };
        show(&delivery)?;
        for (number, output) in taken.iter().enumerate() {
            if keep(&delivery, &format!("taken{number}"), output)?.is_none() {
                self.note(&format!("note: the guest has no file {}", shown(output.path())));
            }
        }
        if let (Some(output), Some(bytes)) = (&self.output, bytes) {
            self.summarise(&delivery, &kernel, (output, bytes), start.elapsed())?;
        }
        match sanitizer.map(|sanitizer| sanitizer.conclude()).transpose()? {
            None | Some(0) => Ok(delivery.status()),
            Some(_) => Ok(FOUND),
        }
    }

    /// Boots the kernel for its symbols, and returns the sanitizer of the next boot.
    fn sanitizer(
        &self,
        kernel: &Kernel,
        busybox: &Path,
        signals: &mut Signals,
        progress: &ProgressBar,
    ) -> Result<OfLinux, GuestError> {
        let mut files = Files::default();
        let command = ["/.shootdown/busybox", "cat", "/proc/kallsyms"].map(OsStr::new).to_vec();
        let directory = Path::new("/");
        let script = Script { command, directory, recorder: None, taken: Vec::new() };
        init::add(&mut files, &script, busybox)?;
        let delivery = self.boot(kernel, &files, None, signals, progress)?;
        Ok(OfLinux::new(&delivery.text("stdout"))?)
    }

    /// Collects the program, its libraries and the user's files. Returns the program's path.
    fn programs(
        &self,
        files: &mut Files,
        progress: &ProgressBar,
        signals: &mut Signals,
    ) -> Result<PathBuf, GuestError> {
        progress.set_message("collecting files");
        let program = self.command.first().map_or(OsStr::new(""), OsString::as_os_str);
        let program = programs::add(files, program)?;
        // The recorder is this executable, with its own libraries.
        let ours = std::env::current_exe().map_err(GuestError::Temporary)?;
        for path in self.files.iter().chain([&ours]) {
            files.host(path)?;
        }
        programs::add_libraries(files, signals)?;
        Ok(program)
    }

    fn boot(
        &self,
        kernel: &Kernel,
        files: &Files,
        plugin: Option<&[String; 2]>,
        signals: &mut Signals,
        progress: &ProgressBar,
    ) -> Result<Delivery, GuestError> {
        let directory = tempfile::tempdir().map_err(GuestError::Temporary)?;
        let initramfs = directory.path().join("initramfs");
        let mut archive = BufWriter::new(File::create(&initramfs).map_err(GuestError::Temporary)?);
        files.write(&mut archive)?;
        archive.flush().map_err(GuestError::Temporary)?;
        drop(archive);
        progress.set_message(format!("booting Linux {} on {} CPUs", kernel.release, self.cpus));
        // The symbols are those of the addresses that the kernel was linked for.
        let fixed = if self.sanitize { "nokaslr " } else { "" };
        let emulated = Emulated {
            kernel: &kernel.image,
            initramfs: &initramfs,
            cpus: self.cpus,
            clock: if self.counted { Clock::Instructions } else { Clock::Host },
            memory_mib: self.memory_mib.unwrap_or_else(|| self.memory_for(files)),
            append: &format!("{fixed}{}", self.append),
            plugin,
            received: directory.path(),
        };
        let console = Console { progress, all: self.console };
        let sent = emulated.run(Duration::from_secs(self.limit), signals, &console)?;
        Delivery::parse(sent)
            .ok_or_else(|| GuestError::Crashed { last: "a part of its files".to_owned() })
    }

    /// Returns the memory of the guest: for the kernel, for the buffers of each CPU, and for the
    /// archive, the files in it, and as much that the program may write.
    fn memory_for(&self, files: &Files) -> u64 {
        const KERNEL_MIB: u64 = 512;
        /// Structures of the kernel for each CPU.
        const CPU_KIB: u64 = 8192;
        let of_cpus = (u64::from(self.cpus) * (2 * u64::from(self.buffer_kib) + CPU_KIB)) >> 10;
        KERNEL_MIB + of_cpus + ((3 * files.bytes()) >> 20)
    }

    /// Prints what was recorded, with the requests and interrupts of the guest's kernel.
    fn summarise(
        &self,
        delivery: &Delivery,
        kernel: &Kernel,
        (output, bytes): (&Path, u64),
        time: Duration,
    ) -> Result<(), GuestError> {
        let survey = open(output).and_then(|reader| {
            Survey::of(reader, |_| ()).map_err(|error| refused(output, error))
        })?;
        let counts = &survey.kernel;
        let (program, output) = (shown(&self.command[0]), shown(output));
        self.note(&format!(
            "recorded {} records (lost {}) of {program} on {} CPUs, Linux {}, in {:.1} s: {output} \
             ({})",
            grouped(survey.totals.records),
            survey.totals.lost,
            self.cpus,
            kernel.release,
            time.as_secs_f64(),
            HumanBytes(bytes),
        ));
        self.note(&format!(
            "{} flush requests to other CPUs, {} interrupts; all programs: {} (TLB in \
             /proc/interrupts)",
            counts.requests.map_or_else(|| "unknown".to_owned(), grouped),
            grouped(counts.interrupts_sent),
            grouped(delivery.shootdowns()),
        ));
        self.note(&format!("try:   shootdown replay {output} --machine xeon-2s"));
        Ok(())
    }

    /// Prints a line on standard error.
    fn note(&self, line: &str) {
        if !self.quiet {
            // If standard error is closed, only the line is lost.
            let _ = writeln!(io::stderr(), "{line}");
        }
    }
}

/// Writes a file of the delivery, and returns its size, or `None` if the guest did not have it.
fn keep(delivery: &Delivery, name: &str, output: &Output) -> Result<Option<u64>, GuestError> {
    let Some(bytes) = delivery.file(name) else { return Ok(None) };
    let mut file = output.create()?;
    file.write_all(bytes).map_err(|error| output.unwritable(error))?;
    Ok(Some(output.keep(file)?))
}

/// Prints the output of the program.
fn show(delivery: &Delivery) -> Result<(), GuestError> {
    let print = |name, mut to: Box<dyn io::Write>| {
        let bytes = delivery.file(name).unwrap_or_default();
        match to.write_all(bytes).and_then(|()| to.flush()) {
            // A reader such as `head` may have read enough.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                let path = PathBuf::from(format!("the program's {name}"));
                Err(GuestError::File { path, error })
            }
            _ => Ok(()),
        }
    };
    print("stdout", Box::new(io::stdout()))?;
    print("stderr", Box::new(io::stderr()))
}

/// Returns the error of a recorder that made no recording.
fn recorder(delivery: &Delivery) -> GuestError {
    let errors = delivery.text("stderr");
    let after = |start: &str| errors.lines().rev().find_map(|line| line.strip_prefix(start));
    let error = after("error: ").unwrap_or("the recorder ended without a recording").trim();
    let remedy = after("try:").unwrap_or("add --console, and more memory with --memory-mib").trim();
    GuestError::Recorder { error: error.to_owned(), remedy: remedy.to_owned() }
}
