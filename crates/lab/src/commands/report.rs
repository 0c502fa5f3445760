//! `shootdown report`: recordings and published results on one page.

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use shootdown_sim::Machine;
use tempfile::{Builder, NamedTempFile};

use crate::cli::{Format, Reproduce};
use crate::commands::check::zoo::Row;
use crate::commands::replay::DEFAULT_MACHINE;
use crate::commands::replay::html::{Comparison, comparisons};
use crate::commands::reproduce::html;
use crate::commands::reproduce::text;
use crate::commands::{check, replay, reproduce};
use crate::error::{Failure, shown};
use crate::output::{Existing, Output, OutputError};
use crate::render::page::page as shell;
use crate::studies::Results;
use crate::{machines, print};

#[derive(Args, Clone, Debug)]
pub(crate) struct Report {
    /// Recordings to replay, as `shootdown record` or `shootdown import` writes them
    #[arg(value_name = "TRACE")]
    pub(crate) traces: Vec<PathBuf>,
    /// Where to write the page
    #[arg(long, value_name = "FILE.html", default_value = "report.html")]
    pub(crate) output: PathBuf,
    /// The machine to replay recordings on: a name, or a file that ends in .toml
    #[arg(long, value_name = "MACHINE", default_value = DEFAULT_MACHINE, requires = "traces")]
    pub(crate) machine: String,
    /// Where the simulator's random numbers start
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Simulate less of the published results: seconds instead of minutes, and less exact
    #[arg(long)]
    pub(crate) quick: bool,
}

/// For each bug of the zoo, of which most take milliseconds.
const ZOO_TIME: Duration = Duration::from_secs(60);

/// Runs the command.
pub(crate) fn report(options: &Report) -> Result<(), Failure> {
    let output = output(&options.output, &options.traces)?;
    let machine = machines::find(&options.machine)?;
    // Recordings first: they may be refused, and take seconds.
    let of = |trace: &PathBuf| Comparison::of(trace, &machine, options.seed);
    let replayed: Vec<_> = options.traces.iter().map(of).collect::<Result<_, _>>()?;
    let mut results = reproduce::results(&Reproduce {
        seed: options.seed,
        format: Format::Text,
        only: None,
        report: None,
        machine: None,
        quick: options.quick,
    })?;
    if !replayed.is_empty() {
        add(&mut results.machines, machine);
    }
    let zoo = check::zoo::rows(ZOO_TIME, || ());
    write(&output, &replayed, &results, &zoo)?;
    if !replayed.is_empty() {
        let verdicts = replayed.iter().flat_map(Comparison::verdicts);
        print(&format!("{}\n", replay::text::overview(verdicts)))?;
    }
    let found = zoo.iter().filter(|row| row.is_right()).count();
    let zoo = format!("bugs of other kernels found by the checker: {found} of {}", zoo.len());
    let summary = text::summary(&results.rows);
    print(&format!("{summary}\n{zoo}\n\nreport: {}\n", shown(output.path())))?;
    replayed.iter().try_for_each(Comparison::violated)?;
    reproduce::violated(&results)
}

/// Where a page could be written, other than over what it is made of, before minutes are spent on
/// what it says.
pub(crate) fn output(path: &Path, traces: &[PathBuf]) -> Result<Output, Failure> {
    let output = Output::new(path, Existing::Replace).map_err(unwritable)?;
    // What cannot be looked at is reported when it is read.
    for trace in traces.iter().filter_map(|trace| fs::metadata(trace).ok()) {
        output.spare(&trace).map_err(unwritable)?;
    }
    create(&output)?;
    Ok(output)
}

/// Writes what there is to say, whole or not at all.
pub(crate) fn write(
    output: &Output,
    replayed: &[Comparison],
    results: &Results,
    zoo: &[Row],
) -> Result<(), Failure> {
    let mut file = create(output)?;
    file.write_all(page(replayed, results, zoo).as_bytes())
        .map_err(|error| unwritable(output.unwritable(error)))?;
    output.keep(file).map_err(unwritable)?;
    Ok(())
}

/// A file beside it that, other than a recording, others may read.
fn create(output: &Output) -> Result<NamedTempFile, Failure> {
    Builder::new()
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(output.directory())
        .map_err(|error| unwritable(output.unwritable(error)))
}

fn unwritable(error: OutputError) -> Failure {
    let (path, reason) = match error {
        OutputError::Unwritable { path, error } => return Failure::unwritable(&path, error),
        OutputError::Exists { path } => (path, "it exists"),
        OutputError::IsInput { path } => (path, "it is one of the recordings"),
        OutputError::NoFile { path } => (path, "it exists, and is no file"),
    };
    Failure::unwritable(&path, io::Error::other(reason))
}

fn add(machines: &mut Vec<Machine>, machine: Machine) {
    if machines.iter().all(|known| known.name != machine.name) {
        machines.push(machine);
    }
}

fn page(replayed: &[Comparison], results: &Results, zoo: &[Row]) -> String {
    let mut body = INTRODUCTION.to_owned();
    if !replayed.is_empty() {
        body += &comparisons(replayed);
    }
    body += &html::results(results);
    if !zoo.is_empty() {
        body += &check::html::zoo(zoo);
    }
    let (words, left_out) =
        if replayed.is_empty() { ("", "") } else { (WORDS_OF_REPLAYS, NOT_MODELLED) };
    let _ = write!(body, "<h2 id=\"words\">The words</h2>\n<dl>\n{WORDS}{words}</dl>\n{left_out}");
    body += &html::provenance(results);
    shell("TLB shootdowns, and who could do without them", &body)
}

const INTRODUCTION: &str = "\
<p>Every CPU keeps translations of addresses in its TLB. Whoever changes a page table has to \
make sure that no CPU goes on using the old translation: the kernel interrupts the CPUs that \
may have it, and waits until all have flushed it. That is a TLB shootdown. Whoever is \
interrupted loses the time of the interrupt and what was flushed from its TLB; whoever waits, \
waits for the slowest. Many of these interrupts are for nothing: they reach CPUs that are idle, \
or elsewhere, or never had the translation. <a href=\"#words\">The words</a> are explained \
below.</p>\n";

const WORDS: &str = "\
<dt>interrupts sent<dd>One for each CPU that was to be told at once.\n\
<dt>to lazy<dd>Interrupts for nothing: the CPU had the address space loaded, but was idle or in \
a kernel thread, and could have caught up when it came back.\n\
<dt>to absent<dd>Interrupts for nothing: the CPU did not have the address space at all.\n\
<dt>full, ranged<dd>A full flush drops all translations of an address space, a ranged one only \
those of the pages that changed.\n\
<dt>violations<dd>Uses of a translation after a flush that covered it was waited for: the \
program reads or writes memory that is no longer its own. Anything but 0 is a bug.\n\
<dt>hazards<dd>Freed page tables that a CPU’s speculation could still have walked.\n\
<dt>held<dd>Page tables out of use that were held back because a CPU could still walk them: the \
most at any time. When there are more than 1024, CPUs are interrupted to have them back.\n";

const _: () = assert!(shootdown_vm::HELD_TABLES_MAX == 1024, "as it says above");

const WORDS_OF_REPLAYS: &str = "\
<dt>spared<dd>CPUs that were told without an interrupt of their own, by one that was on its way \
already.\n\
<dt>interrupted<dd>What all CPUs together spent in flush interrupts.\n\
<dt>at a switch<dd>Flushes by a CPU that comes back to an address space and catches up with \
what it missed. They interrupt nobody.\n\
<dt>TLB refills<dd>Walks of the page table for a translation that was not in the TLB.\n\
<dt>wait for a flush<dd>From its beginning until all who had to know did: half of all flushes \
took no longer than p50, 99 of 100 no longer than p99.\n\
<dt>recorded schedule<dd>Every step on its recorded CPU and in its recorded order, so that \
linux-7.0 can be held against what the recorded kernel really did.\n\
<dt>simulated schedule<dd>The simulated machine decides which thread runs when, and where.\n";

const NOT_MODELLED: &str = "\
<h2>What a replay leaves out</h2>\n<ul>\n\
<li>Of a program’s accesses, only those that faulted were recorded. What it loses when its TLB \
is emptied is therefore too low, and full flushes look cheaper than they are.\n\
<li>Of a page fault, only the beginning was recorded: the rest counts as computing, and again \
as the simulated kernel’s work. Times are therefore too long, for all designs alike: hold them \
against each other, not against the recorded time.\n\
<li>Computing takes as long as it took where it was recorded, whatever the machine.\n\
<li>Interrupts that came from outside of the program, for reclaim or write-back, are counted \
but not replayed.\n\
</ul>\n";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::studies::example;

    #[test]
    fn without_recordings_nothing_is_said_of_them() {
        let page = page(&[], &example::results(), &[]);
        assert!(page.contains("id=\"published\"") && page.contains("id=\"words\""));
        assert!(!page.contains("replay leaves out") && !page.contains("recording-"));
    }

    #[test]
    fn a_recording_is_not_written_over_by_any_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let (trace, link) = (folder.path().join("a.shootdown"), folder.path().join("link"));
        fs::write(&trace, "a recording").expect("a file");
        fs::hard_link(&trace, &link).expect("a link");
        for path in [&trace, &link] {
            let error = output(path, std::slice::from_ref(&trace)).unwrap_err().to_string();
            assert!(error.contains("one of the recordings"), "{error}");
        }
        assert!(output(&folder.path().join("b.html"), &[trace]).is_ok());
    }

    #[test]
    fn a_page_is_whole_or_not_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("report.html");
        let output = output(&path, &[]).expect("a folder that can be written to");
        assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 0);
        fs::write(&path, "an older page").expect("a file");
        write(&output, &[], &example::results(), &[]).expect("a page in place of the older");
        let page = fs::read_to_string(&path).expect("the page");
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
        assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 1);
        for bad in [&folder.path().join("no").join("report.html"), folder.path()] {
            assert!(matches!(super::output(bad, &[]), Err(Failure::Unwritable { .. })));
        }
    }
}
