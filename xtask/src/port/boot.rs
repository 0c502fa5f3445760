//! Boots a kernel of the comparison in an emulator, and reads its rows.

use std::path::Path;

use super::machine::{Clock, Machine};
use super::row::{Columns, Row};
use super::source::{Arch, Variant};
use super::watch::{self, End};
use crate::command::Failure;

/// Returns a failure unless the kernel has come to its end. The exit statuses of emulators are no
/// proof: after a failure, it is 0 with OpenSBI.
pub(super) fn judge(kernel: &Path, words: &str, output: &str, end: End) -> Result<(), Failure> {
    let how = match end {
        End::Done => return Ok(()),
        End::Exited(status) => format!("stops with {status}"),
        End::Hangs { cpu_ms, time } => format!(
            "has printed nothing for {} s of CPU time, which took {} s",
            cpu_ms / 1000,
            time.as_secs()
        ),
    };
    eprint!("{output}");
    Err(Failure::new(format!("{} with `{words}` {how}", kernel.display()), "read its output above"))
}

/// Returns the rows that a kernel has printed.
pub(super) fn parse(
    output: &str,
    variant: Variant,
    cpus: u32,
    columns: Columns,
) -> Result<Vec<Row>, Failure> {
    let row = |line| Row::of_boot(line, variant, cpus, columns);
    let rows: Vec<_> = output.lines().filter_map(row).collect();
    if rows.is_empty() {
        return Err(Failure::new("the kernel prints no rows", "boot it by hand"));
    }
    Ok(rows)
}

/// Boots a kernel, and returns the rows that it prints.
pub(super) fn rows(
    kernel: &Path,
    variant: Variant,
    machine: Machine,
    words: &str,
) -> Result<Vec<Row>, Failure> {
    let (output, end) = watch::run(machine.command(kernel, words), watch::CPU_MS_MAX)?;
    judge(kernel, words, &output, end)?;
    parse(&output, variant, machine.cpus, super::COLUMNS)
}

/// Boots the kernel with the framework's tests. Returns their results, in the order of their names:
/// `test NAME ... ok`.
pub(super) fn test_results(kernel: &Path, arch: Arch) -> Result<Vec<String>, Failure> {
    let machine = Machine { arch, cpus: 4, clock: Clock::Host };
    let (output, end) = watch::run(machine.command(kernel, ""), watch::CPU_MS_MAX)?;
    let mut results: Vec<_> =
        output.lines().filter(|line| line.starts_with("test ")).map(without_colours).collect();
    if !results.iter().any(|result| result.starts_with("test result")) {
        judge(kernel, "", &output, end)?;
    }
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
