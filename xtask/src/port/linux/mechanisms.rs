//! What single mechanisms save: ours without one of them at a time, and the entries of the TLB that
//! both kernels load.

use std::fmt::Write as _;

use super::configuration::Configuration;
use super::guest;
use super::kernel;
use super::{BOOK, WORDS, has_emulator, sanitized, table};
use crate::boots::golden;
use crate::command::Failure;
use crate::parallel;
use crate::port::machine::Clock;
use crate::port::row::Row;
use crate::port::source::{Arch, Variant};

/// The switches in debugfs that turn a mechanism off, and what the table calls them.
const MECHANISMS: [(&str, &str); 3] = [
    ("idle_count_as_busy", "idle CPUs count as busy"),
    ("tables_do_not_wait", "page tables do not wait"),
    ("batches_have_one_page", "reclaim flushes each page"),
];

/// The programs of the comparison whose counts vary little.
const PROGRAMS: &str = "purge,200:purge-moving,100:purge-idle,200:tables-idle,100:\
                        protect-idle,200:alone-moving,100:exec,10:exec-threads,20:exit,20:\
                        turns-idle,300:turns-processes,300:reclaim,4";

const CPUS: u32 = BOOK.1;

pub(super) fn compare() -> Result<(), Failure> {
    has_emulator(Arch::X86_64)?;
    let boots = boots()?;
    let [stock, ours] = [Variant::Stock, Variant::Shootdown].map(entries);
    golden::check_part(BOOK.0, "mechanisms", &table(&boots, &[stock?, ours?]))
}

/// Runs the programs with all mechanisms, and without one at a time.
fn boots() -> Result<Vec<Vec<Row>>, Failure> {
    let kernel = kernel::build_with(Configuration::Faults, Variant::Shootdown)?;
    let archive = guest::archive(&kernel)?;
    let switches = MECHANISMS.map(|(switch, _)| format!("{switch}:{PROGRAMS}"));
    let runs: Vec<String> = [PROGRAMS.to_owned()].into_iter().chain(switches).collect();
    let boots = parallel::map(&runs, |run| {
        let boot = kernel.boot(&archive, (CPUS, Clock::Instructions), WORDS, run);
        boot.rows().map(|(rows, _)| table::summed(&rows))
    });
    boots.into_iter().collect()
}

/// The entries that TLBs load for each program: those of its boot beside a TLB that forgets nothing
/// but what is flushed, without those of a boot whose program does nearly nothing.
fn entries(variant: Variant) -> Result<Vec<u64>, Failure> {
    sanitized::build()?;
    let kernel = kernel::build(variant)?;
    let archive = guest::archive(&kernel)?;
    let runs: Vec<&str> = ["naps,1"].into_iter().chain(PROGRAMS.split(':')).collect();
    let loaded = parallel::map(&runs, |run| {
        let machine = (CPUS, Clock::Instructions);
        sanitized::entries_filled(&kernel.boot(&archive, machine, sanitized::WORDS, run))
    });
    let loaded = loaded.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(loaded[1..].iter().map(|all| all.saturating_sub(loaded[0])).collect())
}

/// Returns a table in Markdown: for each program, its interrupts with all mechanisms and without
/// each, and the entries that TLBs load in stock and in ours.
fn table(boots: &[Vec<Row>], entries: &[Vec<u64>; 2]) -> String {
    let mut text = "| program | interrupts, ours |".to_owned();
    for (_, what) in MECHANISMS {
        let _ = write!(text, " {what} |");
    }
    text += " entries loaded, stock | ours |\n|---|";
    text += &format!("{}\n", "---:|".repeat(boots.len() + entries.len()));
    for (index, row) in boots[0].iter().enumerate() {
        let _ = write!(text, "| `{}` |", row.scenario);
        for boot in boots {
            let _ = write!(text, " {} |", boot[index].count("interrupts"));
        }
        let _ = writeln!(text, " {} | {} |", entries[0][index], entries[1][index]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mechanism_is_a_switch_of_the_port() {
        let header = crate::command::read_tracked("ports/linux/shootdown/shootdown_port.h");
        let header = header.expect("a file of the port");
        let (_, mechanisms) = header.split_once("Mechanisms").expect("the mechanisms");
        assert_eq!(mechanisms.matches("\tF(").count(), MECHANISMS.len());
        assert!(MECHANISMS.iter().all(|(name, _)| mechanisms.contains(&format!("\tF({name})"))));
    }

    #[test]
    fn table_has_a_column_for_each_mechanism() {
        let boot = |line: &str| {
            let row = Row::of_boot(line, Variant::Shootdown, 4, guest::COLUMNS).expect("a row");
            table::summed(&[row])
        };
        let lines = ["row exit 5 2 0 1 0", "row exit 5 2 7 1 0", "row exit 5 3 0 1 0"];
        let boots: Vec<_> = lines.iter().chain(&lines[..1]).map(|line| boot(line)).collect();
        let text = table(&boots, &[vec![20], vec![19]]);
        assert!(text.ends_with("\n| `exit` | 2 | 9 | 3 | 2 | 20 | 19 |\n"), "{text}");
        let columns = |line: &str| line.matches('|').count();
        assert!(text.lines().all(|line| columns(line) == 8), "{text}");
    }
}
