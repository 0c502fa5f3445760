//! The book's page of errata, which is generated from the tables and from recorded instructions.

use core::fmt::{Debug, Display};
use std::collections::BTreeMap;
use std::format;
use std::path::Path;
use std::string::{String, ToString};
use std::vec::Vec;

use shootdown::{Broadcaster, CpuSet, Entries, Extent, PageSize, Root, Tag};

use crate::aarch64::{self, Aarch64};
use crate::errata::{Answer, Erratum, Workarounds};
use crate::riscv64::{self, RiscV64};
use crate::x86_64::{self, KernelPages, X86_64};
use crate::{Processor, aarch64::features::tests::V8_0};

/// Compares a file of the book with the text that `change` makes of it, or updates it if the
/// environment has `UPDATE_BOOK`. Outside of the repository, there is no book.
fn check(file: &str, change: impl FnOnce(&str) -> String) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(file);
    let Ok(old) = std::fs::read_to_string(&file) else { return };
    let new = change(&old);
    if std::env::var_os("UPDATE_BOOK").is_some() {
        std::fs::write(&file, new).expect("writable");
    } else {
        let remedy = "UPDATE_BOOK=1 cargo test -p shootdown-hw book";
        assert!(old == new, "{} is out of date; try:   {remedy}", file.display());
    }
}

/// Returns a line of CSV, without the marks of code.
fn line(cells: &[&str]) -> String {
    let quoted = |cell: &&str| format!("\"{}\"", cell.replace('"', "\"\"").replace('`', ""));
    cells.iter().map(quoted).collect::<Vec<_>>().join(",") + "\n"
}

fn rows<C: Display>(architecture: &str, rows: &[Erratum<C>]) -> String {
    let row = |row: &Erratum<C>| {
        let mut cpus: Vec<_> = row.cpus.iter().map(ToString::to_string).collect();
        cpus.extend((!row.condition.is_empty()).then(|| row.condition.to_string()));
        let answer = match row.answer {
            Answer::Yes => "yes",
            Answer::No => "no",
            Answer::NotApplicable => "n.a.",
        };
        let Erratum { numbers, effect, linux, here, source, .. } = row;
        line(&[architecture, numbers, effect, &cpus.join(", "), linux, answer, here, source])
    };
    rows.iter().map(row).collect()
}

#[test]
fn book_has_the_table_of_errata() {
    let head = ["architecture", "erratum", "effect", "processors", "Linux", "answer"];
    let table = line(&[&head[..], &["this project", "source"]].concat())
        + &rows("AArch64", aarch64::errata::TABLE)
        + &rows("x86-64", x86_64::errata::TABLE)
        + &rows("RISC-V", riscv64::errata::TABLE);
    check("data/errata.csv", |_| table);
}

/// A row that answers yes by a workaround selects one, and no other row does.
#[test]
fn answers_match_workarounds() {
    fn check<C>(rows: &[Erratum<C>]) {
        for row in rows {
            let selects = row.needs != Workarounds::NONE;
            assert!(!selects || row.answer == Answer::Yes, "{}", row.numbers);
            assert!(!selects || !row.cpus.is_empty(), "{}", row.numbers);
            let texts = [row.numbers, row.effect, row.linux, row.here, row.source];
            assert!(texts.iter().all(|text| !text.is_empty()), "{}", row.numbers);
            assert!(!row.cpus.is_empty() || !row.condition.is_empty(), "{}", row.numbers);
        }
    }
    check(aarch64::errata::TABLE);
    check(x86_64::errata::TABLE);
    check(riscv64::errata::TABLE);
}

/// Counts instructions by their names in assembler.
fn counts(steps: &[impl Debug]) -> String {
    let mut counts = BTreeMap::<_, usize>::new();
    for step in steps {
        let step = format!("{step:?}");
        let name = match step.split('(').next() {
            Some("Tlbi") => "TLBI",
            Some("CompleteLocal") => "DSB NSH",
            Some("CompleteShared") => "DSB ISH",
            Some("Synchronize") => "ISB",
            Some("SetTtbr0") => "MSR TTBR0",
            Some("InvalidateInstructions") => "IC IALLU",
            Some("InterruptSme") => "call of the kernel",
            Some("Tlbsync") => "TLBSYNC",
            Some("DropAll" | "DropAsid" | "DropPage") => "SFENCE.VMA",
            other => panic!("{other:?} has no name"),
        };
        *counts.entry(name).or_default() += 1;
    }
    let counts: Vec<_> = counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
    counts.join(", ")
}

type Row = (Workarounds, &'static str, [String; 2]);

#[expect(unsafe_code, reason = "instructions are only recorded")]
fn aarch64_rows() -> Vec<Row> {
    use aarch64::instruction::{interrupt_sme, steps_of};
    let row = |needed, path, run: &dyn Fn(&Aarch64)| -> Row {
        let of = [Workarounds::NONE, needed].map(|workarounds| {
            // SAFETY: instructions are only recorded.
            let processor = unsafe { Aarch64::new(aarch64::Features { workarounds, ..V8_0 }) };
            // SAFETY: as above.
            let processor = unsafe { processor.with_sme_interrupt(interrupt_sme) };
            // SAFETY: as above.
            unsafe { processor.load_kernel(Root(0x1000)) };
            counts(&steps_of(|| run(&processor)))
        });
        (needed, path, of)
    };
    let flush = |processor: &Aarch64, pages| {
        let extent = Extent::pages(0x1000, pages, PageSize::SIZE_4K);
        let issued = processor.broadcast(&CpuSet::<[u64; 1]>::new(), Tag(1), extent);
        assert_eq!(issued, Ok(()), "hardware refuses none");
        processor.complete();
    };
    // SAFETY: as above.
    let switch = |it: &Aarch64| unsafe { it.load(Root(0x2000), Tag(2), Entries::Keep) };
    Vec::from([
        row(Workarounds::REPEATED_COMPLETION, "broadcast of 1 page", &|it| flush(it, 1)),
        row(Workarounds::REPEATED_COMPLETION, "broadcast of 511 pages", &|it| flush(it, 511)),
        row(Workarounds::SME_INTERRUPT, "broadcast of 1 page", &|it| flush(it, 1)),
        row(Workarounds::ASID_APART, "switch", &switch),
        row(Workarounds::ICACHE_AT_SWITCH, "switch", &switch),
    ])
}

#[expect(unsafe_code, reason = "instructions are only recorded")]
fn other_rows() -> Vec<Row> {
    let tlbsync = [Workarounds::NONE, Workarounds::SECOND_TLBSYNC].map(|workarounds| {
        let features = x86_64::Features { workarounds, ..x86_64::Features::NONE };
        // SAFETY: instructions are only recorded.
        let processor = unsafe { X86_64::new(features, KernelPages::Global) };
        counts(&x86_64::recorded::steps_of(|| _ = processor.complete()))
    });
    let fences = |pages| {
        [Workarounds::NONE, Workarounds::WHOLE_FENCES].map(|workarounds| {
            let mode = riscv64::encoding::Mode::Sv39;
            let features =
                riscv64::Features { mode, asid_bits: 16, has_svinval: false, workarounds };
            // SAFETY: instructions are only recorded.
            let processor = unsafe { RiscV64::new(features) };
            let extent = Extent::pages(0x1000, pages, PageSize::SIZE_4K);
            counts(&riscv64::instructions::steps_of(|| processor.invalidate(Tag(1), extent)))
        })
    };
    Vec::from([
        (Workarounds::SECOND_TLBSYNC, "completion of a broadcast", tlbsync),
        (Workarounds::WHOLE_FENCES, "local flush of 1 page", fences(1)),
        (Workarounds::WHOLE_FENCES, "local flush of 64 pages", fences(64)),
    ])
}

/// Prints the table, for `cargo xtask bench paths`.
#[test]
fn book_has_the_costs_of_workarounds() {
    let head = "| workaround | path | without | with |\n|---|---|---|---|\n";
    let rows = aarch64_rows().into_iter().chain(other_rows());
    let rows = rows.map(|(needed, path, [without, with])| {
        format!("| `{needed:?}` | {path} | {without} | {with} |\n")
    });
    let table = head.to_string() + &rows.collect::<String>();
    std::println!("{table}");
    check("errata.md", |page| {
        let (before, rest) = page.split_once("<!-- costs -->\n").expect("the first mark");
        let (_, after) = rest.split_once("<!-- /costs -->").expect("the second mark");
        format!("{before}<!-- costs -->\n{table}<!-- /costs -->{after}")
    });
}
