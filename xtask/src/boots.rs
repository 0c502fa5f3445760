//! The kernel boots on every architecture, and passes its own tests; and the book says what they
//! find.

use std::fmt::Write as _;
use std::fs;

use crate::command::{Command, Failure, cargo};
use crate::setup::emulators::{self, ARCHITECTURES};

/// Where the book has the table of what is found.
const BOOK: &str = "docs/bare-metal.md";
const BEGIN: &str = "<!-- trials -->\n";
const END: &str = "<!-- /trials -->";

/// A thread that wanders; processes that change their memory while they use it; forks and ends.
const WORKLOADS: [&str; 3] = ["migrate", "crowd", "sort"];

/// With as many threads of the host's as there are CPUs; and twice where time is the number of
/// instructions, to the same bytes.
pub(crate) fn all() -> Result<(), Failure> {
    let ready = emulators::for_boots()?;
    let mut found = Vec::new();
    for arch in &ready {
        for cpus in ["1", "4"] {
            boot(arch).args("--cpus").arg(cpus).run()?;
        }
        for workload in WORKLOADS {
            boot(arch).args("--workload").arg(workload).run()?;
        }
        let counted = || boot(arch).args("--counts --format csv").output();
        let trials = counted()?;
        if trials != counted()? {
            return Err(Failure::new(
                format!("two runs on {arch} that count instructions differ"),
                format!("compare two of `shootdown boot --arch {arch} --counts --console`"),
            ));
        }
        println!("{arch}: the same, twice, where instructions are counted");
        found.extend(trials.lines().skip(1).map(str::to_owned));
    }
    if ready.len() < ARCHITECTURES.len() {
        return Ok(());
    }
    in_the_book(&table(&found))
}

/// For as long as it is told, with as many threads of the host's as there are CPUs.
pub(crate) fn storms(rounds: u64) -> Result<(), Failure> {
    for arch in emulators::for_boots()? {
        boot(arch).args("--patience 3600 --rounds").arg(rounds.to_string()).run()?;
    }
    Ok(())
}

/// The same on Bochs, if that can be had. It is deterministic, but for what it is told to do: the
/// more rounds, the more schedules.
pub(crate) fn storms_on_bochs(rounds: u64) -> Result<(), Failure> {
    if let Err(failure) = emulators::bochs() {
        println!("skipped on Bochs: {}", failure.cause());
        return Ok(());
    }
    for cpus in ["1", "2", "4"] {
        boot("x86_64")
            .args("--emulator bochs --patience 3600 --cpus")
            .arg(cpus)
            .arg("--rounds")
            .arg(rounds.to_string())
            .run()?;
    }
    Ok(())
}

fn boot(arch: &str) -> Command {
    cargo("run --quiet -p shootdown-lab -- boot --arch").arg(arch)
}

/// A row for each way to be missed and each fault, a column for each machine.
///
/// Of lines as `shootdown boot --format csv` prints them: machine, way, fault, verdict.
fn table(found: &[String]) -> String {
    let cells: Vec<[&str; 4]> = found
        .iter()
        .filter_map(|line| line.split(',').collect::<Vec<_>>().try_into().ok())
        .collect();
    let mut rows: Vec<(&str, &str)> = Vec::new();
    for [_, way, fault, _] in &cells {
        if !rows.contains(&(way, fault)) {
            rows.push((way, fault));
        }
    }
    let names = ARCHITECTURES.map(|(arch, ..)| arch);
    let mut text = format!("| a CPU that | fault | {} |\n|---|---|", names.join(" | "));
    text += &"---|".repeat(names.len());
    text.push('\n');
    for (way, fault) in rows {
        let _ = write!(text, "| {} | {fault} |", way.replace('-', " "));
        for arch in names {
            let is_it = |cell: &&[&str; 4]| cell[..3] == [arch, way, fault];
            let verdict = cells.iter().find(is_it).map_or("", |[.., verdict]| verdict);
            let _ = write!(text, " {verdict} |");
        }
        text.push('\n');
    }
    text
}

/// The book has this table. Else, unless in CI, it has from now on.
fn in_the_book(table: &str) -> Result<(), Failure> {
    let path = crate::root().join(BOOK);
    let failed = |error: std::io::Error| {
        Failure::new(format!("{BOOK}: {error}"), format!("git checkout {BOOK}"))
    };
    let text = fs::read_to_string(&path).map_err(failed)?;
    let parts = text.split_once(BEGIN).and_then(|(before, rest)| {
        let (old, after) = rest.split_once(END)?;
        Some((before, old, after))
    });
    let Some((before, old, after)) = parts else {
        return Err(Failure::new(
            format!("{BOOK} has no place for what trials find"),
            format!("a line {} and a line {END}", BEGIN.trim_end()),
        ));
    };
    if old == table {
        println!("{BOOK} says what was found");
        return Ok(());
    }
    if std::env::var_os("CI").is_some() {
        return Err(Failure::new(
            format!("{BOOK} does not say what was found:\n{table}"),
            "cargo xtask test, outside of CI, writes it down",
        ));
    }
    println!("{BOOK} says from now on what was found");
    fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}")).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_machines_find_is_side_by_side() {
        let found = ["x86_64,reads-all,none,fresh", "aarch64,reads-all,none,stale"];
        let table = table(&found.map(str::to_owned));
        let rows: Vec<_> = table.lines().collect();
        assert_eq!(rows[0], "| a CPU that | fault | x86_64 | aarch64 | loongarch64 |");
        assert_eq!(rows[2], "| reads all | none | fresh | stale |  |");
        assert_eq!(rows.len(), 3);
    }
}
