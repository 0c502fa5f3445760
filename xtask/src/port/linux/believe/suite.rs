//! A guest that runs programs of others, and what they print: the verdict of each of their cases.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::command::Failure;
use crate::parallel;
use crate::port::boot;
use crate::port::linux::guest::{self, Member};
use crate::port::linux::kernel::Kernel;
use crate::port::machine::Clock;

/// The source of the guest's first program.
const SOURCE: &str = "ports/linux/guest/suite.c";

/// The end of a program that had no time to end.
const TIMEOUT: &str = "timeout";

/// CPU time between two lines.
const CPU_MS_MAX: u64 = 600_000;

/// The verdicts of a program: how it ended, and how often it printed each case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::port::linux) struct Verdicts {
    pub(in crate::port::linux) end: String,
    cases: BTreeMap<String, u32>,
    /// Interrupts of function calls and of flushes, and nanoseconds.
    pub(in crate::port::linux) took: Vec<u64>,
}

/// The programs that a guest has run, with their verdicts.
pub(in crate::port::linux) type Runs = BTreeMap<String, Verdicts>;

/// A guest, and what a suite needs beside the machine of all guests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub(super) cpus: u32,
    /// Options of the emulator.
    pub(super) options: &'static str,
    /// Words on the kernel's command line.
    pub(super) words: &'static str,
}

/// The guest of the suites.
pub(super) const MACHINE: Machine = Machine { cpus: 4, options: "", words: "mitigations=off" };

impl Verdicts {
    pub(in crate::port::linux) fn count(&self, verdict: &str) -> u32 {
        let is_one = |(case, _): &(&String, &u32)| case.starts_with(verdict);
        self.cases.iter().filter(is_one).map(|(_, count)| count).sum()
    }

    /// The cases of which the two have different numbers, and the ends if they differ. A program
    /// that both had no time to end has come to different places; only what failed is compared.
    pub(super) fn differences(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        if self.end != other.end {
            found.push(format!("{} / {}", self.end, other.end));
        }
        let cases: BTreeMap<_, _> = self.cases.iter().chain(&other.cases).collect();
        let are_cut = self.end == TIMEOUT && other.end == TIMEOUT;
        for case in cases.keys().filter(|case| !are_cut || case.starts_with("not ok")) {
            let of = |verdicts: &Self| verdicts.cases.get(*case).copied().unwrap_or(0);
            let (one, two) = (of(self), of(other));
            if one != two {
                found.push(format!("{one} / {two} of: {case}"));
            }
        }
        found
    }
}

/// Makes an archive with the suite's first program, the list of what it runs, and more files.
pub(in crate::port::linux) fn archive(
    name: &str,
    list: &str,
    more: &[Member],
) -> Result<PathBuf, Failure> {
    let folder = crate::output().join("ports/linux");
    std::fs::create_dir_all(&folder).map_err(crate::command::unwritable(&folder))?;
    let (program, file) = (folder.join("suite"), folder.join(format!("{name}.list")));
    guest::compile("gcc", SOURCE, &program)?;
    std::fs::write(&file, list).map_err(crate::command::unwritable(&file))?;
    let mut members = vec![Member::new("init", program), Member::new("list", file)];
    members.extend_from_slice(more);
    let archive = folder.join(format!("{name}.cpio"));
    guest::pack(&archive, &members)?;
    Ok(archive)
}

/// Boots a kernel with an archive, and returns the verdicts of its programs.
fn boot(kernel: &Kernel, archive: &Path, machine: Machine) -> Result<Runs, Failure> {
    let Machine { cpus, options, words } = machine;
    let boot = kernel.boot(archive, (cpus, Clock::Host), words, "");
    let (output, end) = boot.ran_with(options, CPU_MS_MAX)?;
    let log = archive.with_extension(format!("{}.log", kernel.name));
    std::fs::write(&log, &output).map_err(crate::command::unwritable(&log))?;
    boot::judge(&kernel.image, "", &output, end)?;
    Ok(parse(&output))
}

/// Boots both kernels at the same time, stock first.
pub(super) fn boot_both(
    kernels: &[Kernel; 2],
    archive: &Path,
    machine: Machine,
) -> Result<[Runs; 2], Failure> {
    let mut found = parallel::map(kernels, |kernel| boot(kernel, archive, machine)).into_iter();
    let mut next = || found.next().unwrap_or_else(|| Ok(BTreeMap::new()));
    Ok([next()?, next()?])
}

/// Returns the verdicts of each program that the guest has run.
pub(in crate::port::linux) fn parse(output: &str) -> Runs {
    let mut all = Runs::new();
    let mut current: Option<(String, Verdicts)> = None;
    for line in output.lines().map(str::trim_end) {
        if let Some(entered) = line.strip_prefix("enter ") {
            current = Some((entered.to_owned(), Verdicts::default()));
        } else if let (Some((_, verdicts)), Some(took)) = (&mut current, line.strip_prefix("took "))
        {
            verdicts.took = took.split(' ').filter_map(|count| count.parse().ok()).collect();
        } else if let Some(end) = line.strip_prefix("leave ") {
            if let Some((name, mut verdicts)) = current.take() {
                end.clone_into(&mut verdicts.end);
                all.insert(name, verdicts);
            }
        } else if let (Some((_, verdicts)), Some(case)) = (&mut current, case(line)) {
            *verdicts.cases.entry(case).or_default() += 1;
        }
    }
    all
}

/// Returns a line with a verdict, as `ok: NAME`, `not ok: NAME`, `skip: NAME` or `kernel: REPORT`.
/// Numbers in names are addresses, processes, times, or numbers of cases.
fn case(line: &str) -> Option<String> {
    if guest::is_complaint(line) && !line.contains("Call Trace:") {
        return Some(format!("kernel: {}", without_numbers(line)));
    }
    let text = line.trim_start_matches(['#', ' ', '\t']);
    let (verdict, name) = if let Some((head, name)) = stress(text) {
        (head, name)
    } else if let Some(test) = text.strip_prefix("Testing ") {
        uffd(test)?
    } else if let Some(name) = text.strip_prefix("not ok ") {
        ("not ok", name)
    } else if let Some(name) = text.strip_prefix("ok ") {
        (if name.contains("# SKIP") { "skip" } else { "ok" }, name)
    } else {
        let (mark, name) = text.strip_prefix('[')?.split_once(']')?;
        let verdict = match mark {
            "OK" | "PASS" => "ok",
            "FAIL" => "not ok",
            "SKIP" => "skip",
            _ => return None,
        };
        (verdict, name)
    };
    Some(format!("{verdict}: {}", without_numbers(name)))
}

/// A verdict of `uffd-unit-tests`: `Testing move on anon... done`.
fn uffd(test: &str) -> Option<(&'static str, &str)> {
    let (name, verdict) = test.split_once("... ")?;
    let of = |(word, _): &(&str, _)| verdict.starts_with(word);
    let verdicts = [("done", "ok"), ("failed", "not ok"), ("skipped", "skip")];
    verdicts.iter().find(|it| of(it)).map(|(_, verdict)| (*verdict, name))
}

/// A verdict of stress-ng: `stress-ng: info:  [70] successful run completed in 1.20s`.
fn stress(text: &str) -> Option<(&'static str, &str)> {
    let (kind, rest) = text.strip_prefix("stress-ng: ")?.split_once('[')?;
    let message = rest.split_once("] ")?.1;
    let of = |prefix| message.strip_prefix(prefix).filter(|rest| !rest.starts_with("0"));
    message
        .starts_with("successful run completed")
        .then_some(("ok", message))
        .or_else(|| of("failed: ").map(|rest| ("not ok", rest)))
        .or_else(|| of("skipped: ").map(|rest| ("skip", rest)))
        .or_else(|| kind.starts_with("fail").then_some(("not ok", message)))
}

/// Replaces numbers, also hexadecimal ones, by `N`.
fn without_numbers(text: &str) -> String {
    let mut words = Vec::new();
    for word in text.split_whitespace() {
        let is_hex = word.len() > 5 && word.chars().all(|c| c.is_ascii_hexdigit());
        if is_hex || word.starts_with("0x") {
            words.push("N".to_owned());
            continue;
        }
        let mut short = String::new();
        for c in word.chars() {
            match c {
                '0'..='9' if short.ends_with('N') => {}
                '0'..='9' => short.push('N'),
                c => short.push(c),
            }
        }
        words.push(short);
    }
    words.join(" ")
}

/// Runs the programs of a list on both kernels, and compares their verdicts.
///
/// # Errors
///
/// As [`compare`].
pub(super) fn run(
    name: &str,
    kernels: &[Kernel; 2],
    programs: usize,
    list: impl Fn(&[&str]) -> String,
    members: &[Member],
) -> Result<(), Failure> {
    let boot = |name: &str, names: &[&str]| {
        boot_both(kernels, &archive(name, &list(names), members)?, MACHINE)
    };
    let found = boot(name, &[])?;
    let again = |names: &[&str]| boot(&format!("{name}-again"), names);
    compare([kernels[0].name, kernels[1].name], programs, &found, again)
}

/// Compares the verdicts of both kernels, and prints a table with a row for each program.
///
/// A program whose verdicts differ is run again on both, with the others of its kind: some vary
/// from one run to the next on either kernel.
///
/// # Errors
///
/// If not all `programs` ran on stock, or the verdicts of one differ in both runs.
pub(super) fn compare(
    names: [&str; 2],
    programs: usize,
    [stock, ours]: &[Runs; 2],
    again: impl Fn(&[&str]) -> Result<[Runs; 2], Failure>,
) -> Result<(), Failure> {
    all_ran(programs, stock.len())?;
    let differing: Vec<&str> =
        stock.keys().filter(|name| differ(stock, ours, name)).map(String::as_str).collect();
    println!("{}", table(stock, ours));
    for (name, of) in names.iter().zip([stock, ours]) {
        println!("{name}: {}", summary(of));
    }
    if differing.is_empty() {
        return Ok(());
    }
    println!("\nonce more: {}", differing.join(", "));
    let [stock, ours] = again(&differing)?;
    let still: Vec<_> = differing.into_iter().filter(|name| differ(&stock, &ours, name)).collect();
    if still.is_empty() {
        println!("the second time, they are equal");
        return Ok(());
    }
    for name in &still {
        if let (Some(one), Some(two)) = (stock.get(*name), ours.get(*name)) {
            println!("{name}: {}", one.differences(two).join("; "));
        }
    }
    let cause = format!("verdicts differ twice: {}", still.join(", "));
    Err(Failure::new(cause, "compare the logs in target/ports/linux"))
}

fn table(stock: &Runs, ours: &Runs) -> String {
    let mut text = "| program | end | ok | not ok | skipped | differences |\n\
                    |---|---|---:|---:|---:|---|\n"
        .to_owned();
    for (name, verdicts) in stock {
        let [ok, not_ok, skipped] = ["ok", "not ok", "skip"].map(|word| verdicts.count(word));
        let empty = Verdicts::default();
        let found = verdicts.differences(ours.get(name).unwrap_or(&empty)).join("; ");
        let end = &verdicts.end;
        text += &format!("| `{name}` | {end} | {ok} | {not_ok} | {skipped} | {found} |\n");
    }
    text
}

fn summary(runs: &Runs) -> String {
    let sum = |word| runs.values().map(|verdicts| verdicts.count(word)).sum::<u32>();
    let [ok, not_ok, skipped, reports] = ["ok", "not ok", "skip", "kernel"].map(sum);
    format!(
        "{} programs, {ok} cases ok, {not_ok} not, {skipped} skipped, {reports} reports of the \
         kernel",
        runs.len()
    )
}

fn all_ran(programs: usize, ran: usize) -> Result<(), Failure> {
    if ran == programs {
        return Ok(());
    }
    let cause = format!("{ran} of {programs} programs ran on stock");
    Err(Failure::new(cause, "read the log in target/ports/linux"))
}

fn differ(stock: &Runs, ours: &Runs, name: &str) -> bool {
    match (stock.get(name), ours.get(name)) {
        (Some(stock), Some(ours)) => !stock.differences(ours).is_empty(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "booted 4 CPUs\r\nenter 60 /bin/cow\r\nTAP version 13\r\n\
        ok 1 Basic COW after fork() at 0x7f00\r\n# ok 2 Basic COW after fork() at 0x8f00\r\n\
        not ok 3 hugetlb (2048 kB)\r\nok 4 zero # SKIP no memory\r\n\r\nleave exit 1\r\n\
        enter 9 /bin/ldt_gdt\r\n[RUN]\tx\r\n[OK]\tLDT entry 0 has AR 0x0040FA00\r\n\
        [FAIL]\tentry 1\r\nleave signal 11\r\nend\r\n";

    #[test]
    fn cases_have_verdicts_without_numbers() {
        let all = parse(OUTPUT);
        let cow = &all["60 /bin/cow"];
        assert_eq!(cow.end, "exit 1");
        assert_eq!(cow.cases["ok: N Basic COW after fork() at N"], 2);
        assert_eq!(["ok", "not ok", "skip"].map(|word| cow.count(word)), [2, 1, 1]);
        let ldt = &all["9 /bin/ldt_gdt"];
        assert_eq!(ldt.end, "signal 11");
        assert_eq!(["ok", "not ok", "skip"].map(|word| ldt.count(word)), [1, 1, 0]);
    }

    #[test]
    fn one_other_verdict_is_a_difference() {
        let stock = &parse(OUTPUT)["60 /bin/cow"];
        assert!(stock.differences(&stock.clone()).is_empty());
        let ours = &parse(&OUTPUT.replace("not ok 3", "ok 3"))["60 /bin/cow"];
        let found = stock.differences(ours);
        assert_eq!(found, ["1 / 0 of: not ok: N hugetlb (N kB)", "0 / 1 of: ok: N hugetlb (N kB)"]);
        let ended = &parse(&OUTPUT.replace("exit 1", "timeout"))["60 /bin/cow"];
        assert_eq!(stock.differences(ended), ["exit 1 / timeout"]);
        let shorter = OUTPUT.replace("exit 1", "timeout").replace("ok 1 ", "# ");
        assert!(ended.differences(&parse(&shorter)["60 /bin/cow"]).is_empty());
        let worse = shorter.replace("ok 4 zero # SKIP", "not ok 4");
        assert_eq!(ended.differences(&parse(&worse)["60 /bin/cow"]).len(), 1);
    }

    #[test]
    fn program_that_did_not_run_is_no_equal_verdict() {
        let ran = parse(OUTPUT).len();
        assert!(all_ran(2, ran).is_ok());
        assert_eq!(all_ran(3, ran).unwrap_err().cause(), "2 of 3 programs ran on stock");
        assert!(all_ran(2, parse("booted 4 CPUs\r\nend\r\n").len()).is_err());
    }

    #[test]
    fn verdicts_of_stress_are_cases() {
        let done = case("stress-ng: info:  [70] successful run completed in 1.20s").unwrap();
        assert_eq!(done, "ok: successful run completed in N.Ns");
        assert_eq!(case("stress-ng: info:  [70] failed: 0"), None);
        let failed = case("stress-ng: fail:  [71] mmap: wrong byte at 0x12").unwrap();
        assert_eq!(failed, "not ok: mmap: wrong byte at N");
        assert_eq!(case("stress-ng: info:  [70] dispatching hogs: 4 mmap"), None);
    }

    #[test]
    fn verdicts_of_uffd_are_cases() {
        assert_eq!(case("Testing move on anon... done").unwrap(), "ok: move on anon");
        assert_eq!(
            case("Testing wp on shmem... skipped [reason: x]").unwrap(),
            "skip: wp on shmem"
        );
        assert_eq!(
            case("Testing poison on anon... failed [errno=22]").unwrap(),
            "not ok: poison on anon"
        );
    }

    #[test]
    fn reports_of_the_kernel_are_cases() {
        let report = case("[    3.201] WARNING: CPU: 2 PID: 71 at mm/mmu.c:12").unwrap();
        assert!(report.starts_with("kernel: "), "{report}");
        assert_eq!(case("[    3.201] Call Trace:"), None);
    }
}
