//! Tests that the tables of `README.md` and `docs/cost.md` show the costs on record.
//!
//! `UPDATE_TABLES=1 cargo test -p shootdown-hot-paths --test tables` writes them.

use std::fmt::Write as _;
use std::path::Path as FilePath;
use std::{env, fs};

use shootdown_hot_paths::{Limits, Path, Plain};

const BEGIN: &str = "<!-- costs: written by the test `tables` of crates/hot-paths -->\n";
const END: &str = "<!-- end of costs -->\n";

/// Instructions of Linux 6.12 on the same path, including the processor's part: see `docs/cost.md`.
fn linux(name: &str) -> &'static str {
    match name {
        "enter_lazy" => "7",
        "leave_lazy" => "40",
        "switch_current_tag" => "83 (no tags)",
        "flush_alone" => "176",
        "flush_gathered_alone" => "260",
        "flush_lazy_skipped" => "381 (examines two CPUs)",
        "handle_flush_IPI" => "190",
        _ => "–",
    }
}

/// The paths that the README shows.
const IN_README: [&str; 3] = ["switch_current_tag", "flush_alone", "flush_lazy_skipped"];

/// Returns the table of the paths that `is_shown` names.
fn table(is_shown: impl Fn(&str) -> bool) -> String {
    let mut table = "| path | ≤ 64 CPUs | ≤ 512 | ≤ 4096 | target | Linux 6.12 |\n\
                     |---|---|---|---|---|---|\n"
        .to_owned();
    let paths = Path::<Plain, 1>::ALL.into_iter().chain([Path::FLUSH_AND_WAIT]);
    for Path { name, limits: Limits { measured: [one, eight, all], target }, .. } in paths {
        if !is_shown(name) {
            continue;
        }
        let stack = name == Path::<Plain, 1>::FLUSH_AND_WAIT.name;
        let title =
            if stack { "stack of one flush, bytes".to_owned() } else { name.replace('_', " ") };
        let target = target.map_or("–".to_owned(), |target| match target {
            [same, eight, all] if same == eight && same == all => same.to_string(),
            [one, eight, all] => format!("{one} / {eight} / {all}"),
        });
        let _ =
            writeln!(table, "| {title} | {one} | {eight} | {all} | {target} | {} |", linux(name));
    }
    table
}

/// Compares the table in `file` with the costs on record, or writes it.
fn check(file: &str, is_shown: impl Fn(&str) -> bool) {
    let path = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    let text = fs::read_to_string(&path).expect("the file exists");
    let (before, rest) = text.split_once(BEGIN).expect("the file marks where the table begins");
    let (shown, after) = rest.split_once(END).expect("the file marks where the table ends");
    let table = table(is_shown);
    if env::var_os("UPDATE_TABLES").is_some() {
        let text = format!("{before}{BEGIN}{table}{END}{after}");
        fs::write(&path, text).expect("the file can be written");
        return;
    }
    assert_eq!(shown, table, "{file}: try UPDATE_TABLES=1 cargo test -p shootdown-hot-paths");
}

#[test]
fn readme_shows_costs_on_record() {
    check("README.md", |name| IN_README.contains(&name));
}

#[test]
fn book_shows_costs_on_record() {
    check("docs/cost.md", |_| true);
}
