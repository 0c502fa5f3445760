//! Linux with the engine instead of its own TLB shootdown, and Linux as published.

mod arm64;
mod believe;
mod cloud;
mod configuration;
mod guest;
mod isolated;
mod kernel;
mod kvm;
mod mechanisms;
mod mix;
mod package;
mod paths;
mod plugin;
mod sanitized;
mod table;

use std::path::{Path, PathBuf};

use configuration::Configuration;
use kernel::Kernel;
pub(crate) use sanitized::soak;

use super::machine::Clock;
use super::row::{self, Row};
use super::source::Variant;
use super::{STALE_MIN, bochs, has_emulator, on_machines};
use crate::boots::golden;
use crate::command::Failure;
use crate::port::source::Arch;

/// The golden files, with the rows of both kernels: on all machines, and with an isolated CPU.
const COUNTS: &str = "ports/linux/counts.csv";
const COUNTS_OF_NEWEST: &str = "ports/linux/counts-7.2.csv";
const ISOLATED_COUNTS: &str = "ports/linux/isolated.csv";
/// The golden file of paths.
const PATHS: &str = "ports/linux/paths.csv";

/// The chapter of the book, and the machine of its first table.
const BOOK: (&str, u32) = ("docs/linux.md", 4);
/// The chapter on Linux 7.2 and AArch64.
const BOOK_OF_OTHERS: &str = "docs/linux-others.md";

/// The machines of the comparison.
const CPUS: &[u32] = &[1, 2, 4, 8, 16, 64];
const CPUS_OF_OTHERS: &[u32] = &[1, 2, 4, 8];

/// The programs of the comparison. A thread that flushes while it holds a lock sends threefold more
/// or fewer interrupts from one number of rounds to the next; the sum over many numbers does not.
const PROGRAMS: &str = "purge,200:purge-moving,100:purge-idle,200:tables-idle,100:\
                        protect-idle,200:alone-moving,100:exec,10:exec-threads,20:exit,20:\
                        turns-idle,300:turns-purge,100:turns-processes,300:mmap,80-99:\
                        mprotect,60-139:reclaim,4";

/// The same with fewer operations, where there are more CPUs than this.
const CPUS_MANY: u32 = 16;
const PROGRAMS_OF_MANY: &str = "purge,20:purge-moving,10:purge-idle,50:tables-idle,50:\
                                protect-idle,50:alone-moving,50:exec,1:exec-threads,5:exit,4:\
                                turns-idle,20:turns-purge,10:turns-processes,50:mmap,80-81:\
                                mprotect,20-21:reclaim,1";

/// The comparison is one of shootdowns, without the cost of mitigations.
const WORDS: &str = "mitigations=off";

/// The checks: what each finds is counted as wrong.
const CHECKS: &str = "replace,400:protect,200:paging,50:filters,20:compact,20:ldt,50";

/// Checks if flushes reach no other CPU.
const HERE_ONLY: &str = "flush_here_only:replace,100:protect,50";

/// The checks on Bochs, which is slow, with programs that switch between spaces.
const CHECKS_ON_BOCHS: &str = "turns-processes,100:purge,20:exit,5:exec,3:replace,40:protect,20";

/// Page-table isolation, whatever the processor: user mode has roots and PCIDs of its own.
const ISOLATED: &str = "pti=on";
const NOT_ISOLATED: &str = "pti=off";

/// Arguments after `linux`.
pub(super) fn command(arguments: &[&str]) -> Result<(), Failure> {
    let (linux, arguments) = match arguments {
        ["--linux", version, rest @ ..] => (Configuration::of_linux(version)?, rest),
        _ => (Configuration::Small, arguments),
    };
    match (arguments, linux) {
        ([], Configuration::Newest) => compare(linux, CPUS_OF_OTHERS),
        ([], _) => compare(linux, CPUS),
        (["--cpus", count], _) => match count.parse() {
            Ok(count @ 1..=64) => compare(linux, &[count]),
            _ => usage(),
        },
        (["--arm64"], Configuration::Small) => arm64::compare(CPUS_OF_OTHERS),
        (["--arm64", "--cpus", count], Configuration::Small) => match count.parse() {
            Ok(count @ 1..=64) => arm64::compare(&[count]),
            _ => usage(),
        },
        (["--arm64", "--believe"], Configuration::Small) => believe::command_on_arm64(),
        (["--isolated"], Configuration::Small) => isolated(),
        (["--believe", parts @ ..], _) => believe::command(linux, parts),
        (["--kvm"], Configuration::Small) => kvm::check(),
        (["--cloud"], Configuration::Small) => cloud::check(),
        (["--programs"], Configuration::Small) => cloud::programs(),
        (["--mechanisms"], Configuration::Small) => mechanisms::compare(),
        (["--stress"], Configuration::Small) => mix::compare(),
        (["--kernel-only"], _) => kernels_only(linux),
        (["--storm", seconds], _) => match seconds.parse() {
            Ok(seconds) => storm(linux, seconds),
            Err(_) => usage(),
        },
        _ => usage(),
    }
}

fn usage() -> Result<(), Failure> {
    let remedy = "cargo xtask port linux [--linux 7.2], with nothing, --cpus COUNT, --kernel-only, \
                  --storm SECONDS, or --believe [PART...]; or, of 6.12, \
                  --arm64 [--cpus COUNT | --believe], --isolated, --kvm, --cloud, --programs, \
                  --stress, or --mechanisms";
    Err(Failure::usage("the arguments are not understood", remedy))
}

/// Builds both kernels, stock first, and their archives.
fn both(linux: Configuration) -> Result<([Kernel; 2], [PathBuf; 2]), Failure> {
    let kernels = kernel::build_both(linux)?;
    let archives = [guest::archive(&kernels[0])?, guest::archive(&kernels[1])?];
    Ok((kernels, archives))
}

/// Compares both kernels on these machines. Updates the golden file if they are all machines.
fn compare(linux: Configuration, machines: &[u32]) -> Result<(), Failure> {
    has_emulator(Arch::X86_64)?;
    let (kernels, archives) = both(linux)?;
    let archives = [archives[0].as_path(), archives[1].as_path()];
    let both: Vec<_> = kernels.iter().zip(archives).collect();
    let plugin = plugin::compile(paths::PLUGIN)?;
    let runs = on_machines(machines, &both, |cpus, (kernel, archive)| {
        let run = if cpus > CPUS_MANY { PROGRAMS_OF_MANY } else { PROGRAMS };
        let boot = kernel.boot(archive, (cpus, Clock::Instructions), WORDS, run);
        let (runs, output) = paths::counted(&boot, &plugin)?;
        if cpus > 1 && output.contains("count tables_kept 0") {
            let cause = "no page table waited for an idle CPU, which may walk it";
            return Err(Failure::new(cause, "find the function that frees page tables as pages"));
        }
        eprintln!("{}, {cpus} CPUs: {} runs", kernel.variant.name(), runs.len());
        Ok(runs)
    })?;
    let mut rows = table::summed(&runs.iter().map(|run| run.row.clone()).collect::<Vec<_>>());
    rows.sort_by_key(|row| (row.cpus, row.variant));
    let paths = paths::of_runs(&runs);
    for &cpus in machines {
        println!("{cpus} CPUs:\n\n{}", table::of_machine(&rows, cpus));
    }
    println!("{}\n{}", table::of_machines(&rows), table::of_spreads(&rows));
    println!("{}", paths::table(&paths));
    let is_newest = linux == Configuration::Newest;
    if machines.len() > 1 {
        let file = if is_newest { COUNTS_OF_NEWEST } else { COUNTS };
        golden::check_file(file, &row::csv(&rows, table::COLUMNS))?;
        if is_newest {
            check_book_of_newest(&rows)?;
        } else {
            golden::check_file(PATHS, &row::csv(&paths, paths::COLUMNS))?;
            check_book(&rows, &paths)?;
        }
    }
    check_contents(&kernels[1], archives[1])?;
    if machines.len() > 1 && !is_newest {
        compare_isolated(&kernels, archives)?;
    }
    Ok(())
}

/// Compares both kernels with an isolated CPU, and updates their golden file.
fn isolated() -> Result<(), Failure> {
    has_emulator(Arch::X86_64)?;
    let (kernels, archives) = both(Configuration::Small)?;
    compare_isolated(&kernels, [&archives[0], &archives[1]])
}

fn compare_isolated(kernels: &[Kernel; 2], archives: [&Path; 2]) -> Result<(), Failure> {
    let rows = isolated::compare(kernels, archives)?;
    golden::check_file(ISOLATED_COUNTS, &row::csv(&rows, isolated::COLUMNS))?;
    check_isolated(&rows)
}

/// Runs the checks with a thread of the host for each CPU, without and with page-table isolation,
/// and the same on Bochs with PCIDs. If flushes reach no other CPU, they must find much.
///
/// Bochs keeps nothing under a PCID that is not loaded, so it does not show a user half that is
/// not dropped. The model in `crates/hw/src/tests/halves.rs` does.
fn check_contents(kernel: &Kernel, archive: &Path) -> Result<(), Failure> {
    let on_qemu =
        |words, run| wrong(words, kernel.boot(archive, (4, Clock::Host), words, run).rows());
    let on_bochs = |words, run| {
        let boot = kernel.boot(archive, (2, Clock::Instructions), words, run);
        wrong(words, boot.rows_on_bochs())
    };
    expect_none("QEMU", on_qemu(NOT_ISOLATED, CHECKS)?)?;
    expect_none("QEMU, isolated", on_qemu(ISOLATED, CHECKS)?)?;
    expect_many(on_qemu(NOT_ISOLATED, HERE_ONLY)?)?;
    if let Err(failure) = bochs::install() {
        println!("skipped with PCIDs: {}", failure.cause());
        return Ok(());
    }
    expect_none("Bochs", on_bochs(NOT_ISOLATED, CHECKS_ON_BOCHS)?)?;
    expect_none("Bochs, isolated", on_bochs(ISOLATED, CHECKS_ON_BOCHS)?)
}

/// The sum of what the checks found, in a kernel that is isolated or not as `words` demand.
fn wrong(words: &str, boot: Result<(Vec<Row>, String), Failure>) -> Result<u64, Failure> {
    let (rows, output) = boot?;
    if output.contains("CPUs, isolated") != (words == ISOLATED) {
        return Err(Failure::new(format!("the kernel does not obey {words}"), "boot it by hand"));
    }
    Ok(rows.iter().map(|row| row.count("wrong")).sum())
}

fn expect_none(place: &str, found: u64) -> Result<(), Failure> {
    println!("checks on {place}: {found} wrong");
    if found == 0 {
        return Ok(());
    }
    let cause = format!("{place}: {found} stale reads, or lost or late writes");
    Err(Failure::new(cause, "find the cause in ports/linux/shootdown"))
}

/// Checks what was found if flushes reach no other CPU.
fn expect_many(found: u64) -> Result<(), Failure> {
    println!("checks if flushes reach no other CPU: {found} wrong");
    if found >= STALE_MIN {
        return Ok(());
    }
    let cause = format!("only {found} are wrong if flushes reach no other CPU");
    Err(Failure::new(cause, "find out why ports/linux/guest does not detect them"))
}

/// All programs at the same time, on 4 and 8 CPUs, three of which come and go.
fn storm(linux: Configuration, seconds: u32) -> Result<(), Failure> {
    has_emulator(Arch::X86_64)?;
    let kernel = kernel::build_with(linux, Variant::Shootdown)?;
    let archive = guest::archive(&kernel)?;
    for cpus in [4, 8] {
        let run = format!("storm,{seconds}");
        let (rows, output) = kernel.boot(&archive, (cpus, Clock::Host), "", &run).rows()?;
        let wrong: u64 = rows.iter().map(|row| row.count("wrong")).sum();
        let reclaimed = guest::count(&output, "spaces_reclaimed");
        println!("{cpus} CPUs, {seconds} s: {wrong} wrong, {reclaimed} spaces given back");
        if wrong > 0 {
            return Err(Failure::new("stale reads, or lost or late writes", "find the cause"));
        }
    }
    Ok(())
}

fn kernels_only(linux: Configuration) -> Result<(), Failure> {
    for variant in [Variant::Stock, Variant::Shootdown] {
        let kernel = kernel::build_with(linux, variant)?;
        println!("{}: {}", variant.name(), kernel.image.display());
    }
    println!("Nothing of these kernels has run on hardware. They are for tests, under GPL-2.0.");
    Ok(())
}

/// CI: the port's files compile in each tree of Linux that the cache has.
pub(super) fn test() -> Result<(), Failure> {
    for configuration in [Configuration::Small, Configuration::Newest, Configuration::Arm64] {
        match kernel::compile_port(configuration) {
            Err(failure) if failure.status() == 3 => println!("skipped: {}", failure.cause()),
            result => result?,
        }
    }
    Ok(())
}

/// Compares the tables in the book with the rows, or updates them outside of CI.
fn check_book(rows: &[Row], paths: &[Row]) -> Result<(), Failure> {
    golden::check_part(BOOK.0, "calls", &paths::table(paths))?;
    golden::check_part("README.md", "linux-paths", &paths::table(paths))?;
    golden::check_part(BOOK.0, "counts", &table::of_machine(rows, BOOK.1))?;
    golden::check_part(BOOK.0, "machines", &table::of_machines(rows))?;
    golden::check_part(BOOK.0, "paths", &table::of_paths(rows))?;
    golden::check_part(BOOK.0, "spreads", &table::of_spreads(rows))
}

/// The same, for the newest version, of which the book has fewer tables.
fn check_book_of_newest(rows: &[Row]) -> Result<(), Failure> {
    golden::check_part(BOOK_OF_OTHERS, "machines of 7.2", &table::of_machines(rows))?;
    golden::check_part(BOOK_OF_OTHERS, "paths of 7.2", &table::of_paths(rows))
}

fn check_isolated(rows: &[Row]) -> Result<(), Failure> {
    golden::check_part(BOOK.0, "isolated", &isolated::of_counts(rows))?;
    golden::check_part(BOOK.0, "entries", &isolated::of_entries(rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::read_tracked;

    #[test]
    fn edits_are_well_formed() {
        for configuration in [Configuration::Small, Configuration::Newest, Configuration::Arm64] {
            kernel::edits(configuration).expect("edits");
        }
    }

    #[test]
    fn book_has_the_golden_counts() {
        let golden =
            |file| row::of_csv(&read_tracked(file).expect("golden counts"), table::COLUMNS);
        let (rows, newest) = (golden(COUNTS), golden(COUNTS_OF_NEWEST));
        let isolated = read_tracked(ISOLATED_COUNTS).expect("golden counts");
        let isolated = row::of_csv(&isolated, isolated::COLUMNS);
        assert!(!rows.is_empty() && !newest.is_empty() && !isolated.is_empty());
        let paths = row::of_csv(&read_tracked(PATHS).expect("golden paths"), paths::COLUMNS);
        check_book(&rows, &paths).expect("the tables of the book");
        check_book_of_newest(&newest).expect("those of the newest version");
        check_isolated(&isolated).expect("those with an isolated CPU");
        let stress = row::of_csv(&read_tracked(mix::COUNTS).expect("counts"), table::COLUMNS);
        assert!(!stress.is_empty());
        mix::check_book(&stress).expect("that of stress-ng");
        let arm64 = row::of_csv(&read_tracked(arm64::COUNTS).expect("counts"), arm64::COLUMNS);
        assert!(!arm64.is_empty());
        arm64::check_book(&arm64).expect("those of AArch64");
    }
}
