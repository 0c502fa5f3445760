//! Linux on AArch64, where it broadcasts: the broadcasts of both kernels, and their interrupts.

use std::fmt::Write as _;
use std::path::Path;

use super::configuration::Configuration;
use super::guest::{self, Boot};
use super::kernel::{self, Kernel};
use super::{BOOK, BOOK_OF_OTHERS, HERE_ONLY, WORDS, on_machines, plugin, table};
use crate::boots::golden;
use crate::command::Failure;
use crate::port::machine::Clock;
use crate::port::row::{self, Columns, Row, pairs};
use crate::setup::{self, emulators};

/// The golden file.
pub(super) const COUNTS: &str = "ports/linux/counts-arm64.csv";

/// The counts of the golden file. Instructions `TLBI` that reach all CPUs, and those that reach the
/// CPU that executes them.
pub(super) const COLUMNS: Columns =
    &["operations", "interrupts", "broadcasts", "local", "instructions", "wrong"];

const PROGRAMS: &str = "purge,200:purge-moving,100:purge-idle,200:tables-idle,100:\
                        protect-idle,200:alone-moving,100:exec,10:exec-threads,20:exit,60:\
                        turns-idle,300:turns-purge,100:turns-processes,2000:mmap,90:\
                        mprotect,2000:reclaim,4:mprotect-threaded,500:allocator,100:\
                        sort-compute,2";

const CHECKS: &str = "replace,400:protect,200:paging,50:filters,20:compact,20:crowd,20:storm,20";

/// With this word, the processor has ASIDs of 8 bits, which run out.
pub(super) const SHORT_ASIDS: &str = "shootdown_short_asids";

/// Compares both kernels on these machines, and checks the contents of pages in ours. Updates the
/// golden file if they are all machines.
pub(super) fn compare(machines: &[u32]) -> Result<(), Failure> {
    if !emulators::for_boots_on("aarch64")? {
        let cause = "qemu-system-aarch64 is not installed, or is older than version 9";
        return Err(Failure::missing(cause, "install qemu-system-arm, version 9 or newer"));
    }
    setup::c_compiler_for_arm()?;
    let kernels = kernel::build_both(Configuration::Arm64)?;
    let archive = guest::archive(&kernels[0])?;
    let plugin = plugin::compile("tlbi")?;
    let mut rows = on_machines(machines, &kernels, |cpus, kernel| {
        let boot = kernel.boot(&archive, (cpus, Clock::Instructions), WORDS, PROGRAMS);
        let rows = counted(&boot, &plugin)?;
        eprintln!("{}, {cpus} CPUs: {} rows", kernel.variant.name(), rows.len());
        Ok(rows)
    })?;
    rows.sort_by_key(|row| (row.cpus, row.variant));
    for &cpus in machines {
        println!("{cpus} CPUs:\n\n{}", of_machine(&rows, cpus));
    }
    println!("{}\n{}", of_machines(&rows), table::of_paths(&rows));
    check_contents(&kernels[1], &archive)?;
    if machines.len() > 1 {
        golden::check_file(COUNTS, &row::csv(&rows, COLUMNS))?;
        check_book(&rows)?;
    }
    Ok(())
}

/// Boots, and returns the rows that the guest prints, with what the plugin counted between the
/// marks at the beginning and the end of each program.
fn counted(boot: &Boot<'_>, plugin: &Path) -> Result<Vec<Row>, Failure> {
    let (runs, _) = plugin::counted(boot, plugin, "")?;
    let row = |(run, marks): &plugin::Marked| {
        let [broadcasts, local] = between(marks)?;
        let of = |column| run.count(column);
        let counts =
            vec![of("operations"), of("calls"), broadcasts, local, of("instructions"), of("wrong")];
        Row::new(&run.scenario, run.cpus, run.variant, COLUMNS, counts)
    };
    Ok(runs.iter().filter_map(row).collect())
}

/// The differences of the sums in the second line from the first.
fn between(marks: &[String; 2]) -> Option<[u64; 2]> {
    let sums = |line: &str| -> Option<[u64; 2]> {
        let (broadcasts, local) = line.split_once(' ')?;
        Some([broadcasts.parse().ok()?, local.parse().ok()?])
    };
    let (before, after) = (sums(&marks[0])?, sums(&marks[1])?);
    Some([after[0] - before[0], after[1] - before[1]])
}

/// Runs the checks, with a thread of the host for each CPU, and again with ASIDs that run out. If
/// flushes reach no other CPU, they must find much.
fn check_contents(kernel: &Kernel, archive: &Path) -> Result<(), Failure> {
    let wrong = |words, run| {
        let (rows, output) = kernel.boot(archive, (4, Clock::Host), words, run).rows()?;
        let rollovers = guest::count(&output, "rollovers");
        println!("{words}: {rollovers} rollovers of ASIDs");
        if words.contains(SHORT_ASIDS) != (rollovers > 0) {
            let cause = format!("{rollovers} rollovers of ASIDs with {words}");
            return Err(Failure::new(cause, "find the cause in shootdown_arm64.c"));
        }
        Ok(rows.iter().map(|row| row.count("wrong")).sum::<u64>())
    };
    super::expect_none("QEMU, AArch64", wrong(WORDS, CHECKS)?)?;
    let words = format!("{WORDS} {SHORT_ASIDS}");
    super::expect_none("QEMU, AArch64, ASIDs of 8 bits", wrong(&words, CHECKS)?)?;
    super::expect_many(wrong(WORDS, HERE_ONLY)?)
}

/// Compares the tables in the book with the rows, or updates them outside of CI.
pub(super) fn check_book(rows: &[Row]) -> Result<(), Failure> {
    golden::check_part(BOOK_OF_OTHERS, "arm64", &of_machine(rows, BOOK.1))?;
    golden::check_part(BOOK_OF_OTHERS, "arm64-machines", &of_machines(rows))?;
    golden::check_part(BOOK_OF_OTHERS, "arm64-paths", &table::of_paths(rows))
}

/// Returns a table in Markdown of the programs on a machine.
fn of_machine(rows: &[Row], cpus: u32) -> String {
    let head = "| program | operations | broadcasts, stock | ours | local, stock | ours | \
                interrupts, stock | ours | 1000 instructions, stock | ours |\n\
                |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n";
    let columns = [("broadcasts", 1), ("local", 1), ("interrupts", 1), ("instructions", 1000)];
    table::of_columns(rows, cpus, head, &columns)
}

/// Returns a table in Markdown of the sums over the programs, for each machine.
fn of_machines(rows: &[Row]) -> String {
    let mut text = "| CPUs | broadcasts, stock | ours | interrupts, stock | ours | programs with \
                    more of both in ours |\n|---:|---:|---:|---:|---:|---|\n"
        .to_owned();
    for pairs in pairs(rows).chunk_by(|one, other| one.0.cpus == other.0.cpus) {
        let more = table::more(pairs, |row| row.count("broadcasts") + row.count("interrupts"));
        let [broadcasts, interrupts] =
            ["broadcasts", "interrupts"].map(|column| table::sums(pairs.iter(), column));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {more} |",
            pairs[0].0.cpus, broadcasts.0, broadcasts.1, interrupts.0, interrupts.1,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::source::Variant;

    #[test]
    fn counts_are_those_between_marks() {
        assert_eq!(between(&["5 7", "8 17"].map(str::to_owned)), Some([3, 10]));
    }

    #[test]
    fn tables_name_programs_with_more() {
        let row = |line, variant| Row::of_boot(line, variant, 4, COLUMNS).expect("a row");
        let rows = [
            row("row mmap 9 1 30 7 2000 0", Variant::Stock),
            row("row mmap 9 32 0 8 3000 0", Variant::Shootdown),
        ];
        let machine = of_machine(&rows, 4);
        assert!(
            machine.contains("| `mmap` | 9 | 30 | 0 | 7 | 8 | 1 | 32 | 2 | 3 |\n"),
            "{machine}"
        );
        let sums = of_machines(&rows);
        assert!(sums.contains("| 4 | 30 | 0 | 1 | 32 | `mmap` (32 to 31) |\n"), "{sums}");
    }
}
