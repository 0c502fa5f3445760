//! QEMU: its command, and the wait for the end of the guest.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use super::children::{Owned, Waited, not_started, wait};
use super::error::GuestError;
use super::init::STAGE;
use crate::commands::record::Signals;
use crate::error::shown;

pub(super) const QEMU: (&str, &str) = ("qemu-system-x86_64", "qemu-system-x86");

/// The program that makes the kernel end QEMU when this process ends, even by SIGKILL.
const SETPRIV: (&str, &str) = ("setpriv", "util-linux");

/// The clock of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clock {
    /// The host's: each CPU of the guest is a thread of the host.
    Host,
    /// The number of instructions: CPUs take turns on one thread of the host.
    Instructions,
}

/// The machine that QEMU emulates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Emulated<'a> {
    pub(super) kernel: &'a Path,
    pub(super) initramfs: &'a Path,
    pub(super) cpus: u32,
    pub(super) clock: Clock,
    pub(super) memory_mib: u64,
    /// More parameters of the kernel.
    pub(super) append: &'a str,
    /// QEMU's arguments for a plugin.
    pub(super) plugin: Option<&'a [String; 2]>,
    /// The directory for what the guest sends.
    pub(super) received: &'a Path,
}

/// The parameters of the kernel.
///
/// Its messages are few. A panic ends QEMU. The kernel's defences against speculation, which TCG
/// does not need, would cost time. A virtual CPU that the host does not run for seconds is no
/// reason to change the clock, to complain, or to panic, as the check of the timer at boot would.
const PARAMETERS: &str = "console=ttyS0 quiet panic=-1 oops=panic mitigations=off tsc=reliable \
                          no_timer_check nowatchdog rcupdate.rcu_cpu_stall_suppress=1 \
                          random.trust_cpu=on";

impl Emulated<'_> {
    fn command(&self) -> Command {
        let received = |name: &str| self.received.join(name).display().to_string();
        let mut command = Command::new(SETPRIV.0);
        command.args(["--pdeathsig", "KILL", "--", QEMU.0]).args(["-nodefaults", "-no-reboot"]);
        command.args(["-display", "none", "-serial", "stdio"]);
        command.args(["-serial", &format!("file:{}", received(SERIAL))]);
        command.args(["-device", "virtio-serial-pci", "-chardev"]);
        command.arg(format!("file,id=sent,path={}", received(PORT)));
        command.args(["-device", "virtserialport,chardev=sent,name=sent"]);
        // QEMU 7.2 executes `cmpxchg16b` wrongly, and Linux's allocator uses it.
        command.args(["-cpu", "max,-cx16,-la57", "-smp", &self.cpus.to_string()]);
        command.args(["-m", &format!("{}M", self.memory_mib)]);
        match self.clock {
            Clock::Host => command.args(["-accel", "tcg,thread=multi"]),
            Clock::Instructions => {
                command.args(["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"])
            }
        };
        command.args(self.plugin.into_iter().flatten());
        command.arg("-kernel").arg(self.kernel).arg("-initrd").arg(self.initramfs);
        command.args(["-append", &format!("{PARAMETERS} {}", self.append)]);
        command
    }

    /// Runs the guest to its end, and returns the bytes that it sent.
    ///
    /// # Errors
    ///
    /// If QEMU is missing, the guest takes longer than `limit`, or the user stops the command.
    pub(super) fn run(
        &self,
        limit: Duration,
        signals: &mut Signals,
        console: &Console<'_>,
    ) -> Result<Vec<u8>, GuestError> {
        // `setpriv` would report a missing program as its own failure.
        let version = Command::new(QEMU.0).arg("--version").output();
        version.map_err(|error| not_started(QEMU.0, QEMU.1, error))?;
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| not_started(SETPRIV.0, SETPRIV.1, error))?;
        let mut qemu = Owned(child);
        let lines = lines_of(qemu.0.stdout.take());
        let errors = lines_of(qemu.0.stderr.take());
        let (begin, mut last) = (Instant::now(), String::new());
        let waited = wait(&mut qemu.0, signals, || {
            lines.try_iter().for_each(|line| console.show(line, &mut last));
            begin.elapsed() < limit
        })?;
        until_end(&lines).for_each(|line| console.show(line, &mut last));
        if waited == Waited::GaveUp {
            return Err(GuestError::TooLong { last, limit });
        }
        let mut sent = Vec::new();
        for name in [PORT, SERIAL] {
            // QEMU creates neither file if it does not start.
            let Ok(mut file) = File::open(self.received.join(name)) else { continue };
            file.read_to_end(&mut sent).map_err(GuestError::Temporary)?;
        }
        if sent.is_empty() {
            let last = until_end(&errors).last().unwrap_or(last);
            return Err(GuestError::Crashed { last });
        }
        Ok(sent)
    }
}

/// The files of what the guest sends. It uses one of them.
const PORT: &str = "port";
const SERIAL: &str = "serial";

/// The text in the line of the console that has the cause of a panic. A stack trace follows it.
const PANIC: &str = "Kernel panic";

/// The user's view of the guest's console.
#[derive(Debug)]
pub(super) struct Console<'a> {
    pub(super) progress: &'a ProgressBar,
    /// If `true`, every line is printed.
    pub(super) all: bool,
}

impl Console<'_> {
    /// Shows a line, which becomes the last one unless it is empty or follows a panic.
    fn show(&self, line: String, last: &mut String) {
        if line.is_empty() {
            return;
        }
        if let Some(stage) = line.strip_prefix(STAGE) {
            self.progress.set_message(stage.to_owned());
        }
        if self.all {
            self.progress.suspend(|| eprintln!("{}", shown(&line)));
        }
        if !last.contains(PANIC) {
            *last = line;
        }
    }
}

/// Returns the lines up to the end of a pipe, for which it waits. After the end of QEMU, the thread
/// that reads the pipe may still be at work.
fn until_end(lines: &Receiver<String>) -> impl Iterator<Item = String> {
    /// A process that QEMU left behind would keep the pipe open.
    const PATIENCE: Duration = Duration::from_secs(1);
    std::iter::from_fn(|| lines.recv_timeout(PATIENCE).ok())
}

/// Returns a channel that receives the lines of a pipe.
fn lines_of(pipe: Option<impl io::Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    if let Some(pipe) = pipe {
        thread::spawn(move || {
            for bytes in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&bytes).trim().to_owned();
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
    }
    receiver
}
