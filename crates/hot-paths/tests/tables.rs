//! Tests that the tables of `docs/cost.md` and `docs/limits.md` show the costs on record, and the
//! sizes.
//!
//! `UPDATE_TABLES=1 cargo test -p shootdown-hot-paths --test tables` writes them.

use std::fmt::Write as _;
use std::path::Path as FilePath;
use std::{env, fs};

use shootdown::{CpuState, Pending, Space};
use shootdown_hot_paths::{Counted, Limits, Path, Plain};

/// Returns the table of the paths.
fn table() -> String {
    let mut table =
        "| path | ≤ 64 CPUs | ≤ 512 | ≤ 4096 | target |\n|---|---|---|---|---|\n".to_owned();
    let paths = Path::<Plain, 1>::ALL.into_iter().chain([Path::FLUSH_AND_WAIT]);
    for Path { name, limits: Limits { measured: [one, eight, all], target }, .. } in paths {
        let stack = name == Path::<Plain, 1>::FLUSH_AND_WAIT.name;
        let title =
            if stack { "stack of one flush, bytes".to_owned() } else { name.replace('_', " ") };
        let target = target.map_or("–".to_owned(), |target| match target {
            [same, eight, all] if same == eight && same == all => same.to_string(),
            [one, eight, all] => format!("{one} / {eight} / {all}"),
        });
        let _ = writeln!(table, "| {title} | {one} | {eight} | {all} | {target} |");
    }
    table
}

/// What is held during each loop, besides the CPU's flush interrupt, which is masked.
fn held(name: &str) -> &'static str {
    match name {
        "wait_for_all" => "nothing: it polls, and answers other flushes",
        "trim_cpumask" => "the mask's phase; no CPU waits for it",
        "switch_at_rollover" => "the lock of the list of ASIDs; no switch waits for it",
        _ => "–",
    }
}

fn loops() -> String {
    let mut table = "| loop | held | 64 CPUs | 512 | 4096 | for each of 4096 |\n\
                     |---|---|---|---|---|---|\n"
        .to_owned();
    let loops = Path::<Plain, 1>::LOOPS.iter().chain(&Path::LOOPS_OF_TAGS);
    let loops = loops.map(|path| (path.name, path.limits));
    let of_reuse = Path::<Plain, 1, true>::LOOPS_OF_REUSE.map(|path| (path.name, path.limits));
    for (name, Limits { measured: [one, eight, all], .. }) in loops.chain(of_reuse) {
        let (title, held, each) = (name.replace('_', " "), held(name), all / 4096);
        let _ = writeln!(table, "| {title} | {held} | {one} | {eight} | {all} | {each} |");
    }
    table
}

/// Bytes of the types that a kernel allocates.
fn sizes() -> String {
    fn of<const W: usize>() -> [usize; 3] {
        [
            size_of::<CpuState<Counted<Plain, W>>>(),
            size_of::<Space<Counted<Plain, W>>>(),
            size_of::<Pending<'static, Counted<Plain, W>>>().next_multiple_of(16),
        ]
    }
    let [one, eight, all] = [of::<1>(), of::<8>(), of::<64>()];
    let mut table = "| bytes | ≤ 64 CPUs | ≤ 512 | ≤ 4096 |\n|---|---|---|---|\n".to_owned();
    let names = ["a CPU's state, six tags", "a space", "a `Pending`, at most"];
    for ((name, one), (eight, all)) in names.iter().zip(one).zip(eight.iter().zip(all)) {
        let _ = writeln!(table, "| {name} | {one} | {eight} | {all} |");
    }
    table
}

/// Compares the table of this kind in `file` with `table`, or writes it.
fn check(file: &str, kind: &str, table: &str) {
    let begin = format!("<!-- {kind}: written by the test `tables` of crates/hot-paths -->\n");
    let end = format!("<!-- end of {kind} -->\n");
    let path = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    let text = fs::read_to_string(&path).expect("the file exists");
    let (before, rest) = text.split_once(&begin).expect("the file marks where the table begins");
    let (shown, after) = rest.split_once(&end).expect("the file marks where the table ends");
    if env::var_os("UPDATE_TABLES").is_some() {
        let text = format!("{before}{begin}{table}{end}{after}");
        fs::write(&path, text).expect("the file can be written");
        return;
    }
    assert_eq!(shown, table, "{file}: try UPDATE_TABLES=1 cargo test -p shootdown-hot-paths");
}

#[test]
fn book_shows_costs_on_record() {
    check("docs/cost.md", "costs", &table());
}

#[test]
fn book_shows_loops_and_sizes() {
    // One after the other, because both tables are in one file.
    check("docs/limits.md", "loops", &loops());
    check("docs/limits.md", "sizes", &sizes());
}
