//! Boots the kernel of the comparison in QEMU, and reads its rows.

use std::path::Path;
use std::time::Duration;

use super::row::Row;
use super::source::Variant;
use crate::command::{Command, Failure};

/// The exit status of QEMU after the kernel has powered off with success.
const SUCCESS: i32 = 33;

/// Maximum time of a boot. A kernel that panics before it can power off runs for ever.
const LIMIT: Duration = Duration::from_secs(240);

/// Half of the memory is above 4 GiB: the framework maps memory up to the last usable byte, and
/// reads the tables of ACPI, which must be below it.
const MACHINE: &str = "-machine q35,max-ram-below-4g=256M -m 512M -no-reboot -display none \
                       -monitor none -serial stdio -device isa-debug-exit,iobase=0xf4,iosize=0x04";

/// The clock of a boot.
#[derive(Clone, Copy, Debug)]
pub(super) enum Clock {
    /// Counts the instructions of all CPUs, which take turns on one thread of the host. Two boots
    /// give the same rows.
    Instructions,
    /// The host's, with a thread of the host for each CPU.
    Host,
}

/// Boots a kernel with these words on its command line, and returns its output.
pub(super) fn boot(kernel: &Path, cpus: u32, words: &str, clock: Clock) -> Result<String, Failure> {
    let command = Command::new("qemu-system-x86_64").args(MACHINE).args("-smp");
    let command = command.arg(cpus.to_string()).arg("-kernel").arg(kernel);
    // QEMU stops with "Bad icount read" where the timer of its x2APIC is set.
    let (command, words) = match clock {
        Clock::Instructions => (
            command.args("-cpu max,-x2apic -accel tcg,thread=single -icount shift=0,sleep=off"),
            format!("counted {words}"),
        ),
        Clock::Host => (command.args("-cpu max -accel tcg,thread=multi"), words.to_owned()),
    };
    let captured = command.arg("-append").arg(&words).captured_within(LIMIT)?;
    let is_success = captured.status.is_some_and(|status| status.code() == Some(SUCCESS));
    if is_success {
        return Ok(captured.output);
    }
    eprint!("{}", captured.output);
    let end = captured.status.map_or("did not end".to_owned(), |status| status.to_string());
    Err(Failure::new(
        format!("{} with {cpus} CPUs and `{words}`: {end}", kernel.display()),
        "read its output above",
    ))
}

/// Boots a kernel, and returns the rows that it prints.
pub(super) fn rows(
    kernel: &Path,
    variant: Variant,
    cpus: u32,
    words: &str,
    clock: Clock,
) -> Result<Vec<Row>, Failure> {
    let output = boot(kernel, cpus, words, clock)?;
    let rows: Vec<_> =
        output.lines().filter_map(|line| Row::of_boot(line, variant, cpus)).collect();
    if rows.is_empty() {
        return Err(Failure::new(
            format!("{} prints no rows", kernel.display()),
            "boot it by hand",
        ));
    }
    Ok(rows)
}

/// Boots the kernel with the framework's tests. Returns their results, in the order of their names:
/// `test NAME ... ok`.
pub(super) fn test_results(kernel: &Path) -> Result<Vec<String>, Failure> {
    let output = boot(kernel, 4, "", Clock::Host)?;
    let mut results: Vec<_> =
        output.lines().filter(|line| line.starts_with("test ")).map(without_colours).collect();
    results.retain(|result| !result.starts_with("test result"));
    results.sort();
    Ok(results)
}

/// Removes the sequences that set colours.
fn without_colours(line: &str) -> String {
    let mut parts = line.trim_end().split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or("", |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    #[test]
    fn colours_are_removed() {
        let line = "test a::b ... \x1b[32mok\x1b[39m\r";
        assert_eq!(super::without_colours(line), "test a::b ... ok");
    }
}
