//! The header in `include` is the one that is generated from the source, and the book has the
//! example that is built.

use std::fmt::Write as _;
use std::path::Path;

use shootdown_capi::storage::sizes;

/// The part of the header that comes from the sizes of Rust's types.
fn macros() -> String {
    let mut text = String::from(
        "\n/* A kernel without these headers defines the name of its own for the same types. */\n\
         #ifdef SHOOTDOWN_TYPES\n#include SHOOTDOWN_TYPES\n#else\n#include <stdbool.h>\n\
         #include <stddef.h>\n#include <stdint.h>\n#endif\n\n\
         /* Number of CPUs for which the library has room: 64, or 512 or 4096 if it was built \
         with the\n * feature `cpus-512` or `cpus-4096`. */\n\
         #ifndef SHOOTDOWN_CPUS_MAX\n#define SHOOTDOWN_CPUS_MAX 64\n#endif\n\n\
         #define SHOOTDOWN_ALIGNED(n) __attribute__((aligned(n)))\n\n\
         /* The comment of each function has a line of its effects, which a test compares with the \
         machine\n * code: whether the function can interrupt other CPUs; wait until other CPUs \
         answer; call\n * shootdown_os_reclaim; from when on it may be called; and the bytes of \
         stack that it needs at\n * most (with 64 CPUs), with an address to return to, and without \
         the functions that you define.\n * A function that does not wait may be called under a \
         lock for which other CPUs spin masked. */\n\n\
         /* Sizes in words of 64 bits. */\n",
    );
    for (index, by) in sizes::BY_CPUS.iter().enumerate() {
        let condition = if index == 0 { "if" } else { "elif" };
        let _ = write!(
            text,
            "#{condition} SHOOTDOWN_CPUS_MAX == {}\n#define SHOOTDOWN_SPACE_WORDS {}\n\
             #define SHOOTDOWN_PENDING_WORDS {}\n#define SHOOTDOWN_SENT_BATCH_WORDS {}\n",
            by.cpus_max, by.space, by.pending, by.sent_batch,
        );
    }
    let _ = write!(
        text,
        "#else\n#error \"SHOOTDOWN_CPUS_MAX must be 64, 512 or 4096\"\n#endif\n\
         #define SHOOTDOWN_CPU_WORDS {}\n#define SHOOTDOWN_BATCH_WORDS {}\n\
         #define SHOOTDOWN_UNFLUSHED_WORDS {}\n#define SHOOTDOWN_PRIMARY_CHANGES_WORDS {}\n\
         #define SHOOTDOWN_SECONDARY_FAULT_WORDS {}\n\
         #define SHOOTDOWN_EXTENTS_WORDS {}\n#define SHOOTDOWN_VCPU_WORDS {}\n\
         #define SHOOTDOWN_LAZY_PREDICTOR_WORDS {}\n#define SHOOTDOWN_STEAL_TIME_WORDS {}\n\n\
         /* Shows the library that it belongs to this header. */\n\
         #define SHOOTDOWN_LAYOUT \\\n    \
         ((uint64_t)SHOOTDOWN_CPU_WORDS | (uint64_t)SHOOTDOWN_SPACE_WORDS << 16 \\\n     \
         | (uint64_t)SHOOTDOWN_PENDING_WORDS << 32 \\\n     \
         | (uint64_t)(SHOOTDOWN_BATCH_WORDS + SHOOTDOWN_SENT_BATCH_WORDS) << 48)\n",
        sizes::CPU,
        sizes::BATCH,
        sizes::UNFLUSHED,
        sizes::PRIMARY_CHANGES,
        sizes::SECONDARY_FAULT,
        sizes::EXTENTS,
        sizes::VCPU,
        sizes::LAZY_PREDICTOR,
        sizes::STEAL_TIME,
    );
    text
}

/// The header that the source yields.
fn generated() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    config.after_includes = Some(macros());
    let mut sources = cbindgen::Builder::new().with_config(config);
    // In the order of the header.
    for module in [
        "config",
        "storage/mod",
        "trace",
        "os",
        "engine",
        "extent",
        "cpu",
        "space",
        "flush",
        "gather",
        "batch",
        "reuse",
        "tag",
        "processor",
        "crash",
        "secondary",
        "vcpu",
        "kvm",
        "lazy",
        "user_mode",
        "stats",
    ] {
        sources = sources.with_src(folder.join(format!("src/{module}.rs")));
    }
    let mut generated = Vec::new();
    sources.generate().unwrap().write(&mut generated);
    String::from_utf8(generated).unwrap()
}

#[test]
fn package_has_the_version_of_the_crate() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("shootdown.pc");
    let version = concat!("Version: ", env!("CARGO_PKG_VERSION"), "\n");
    assert!(std::fs::read_to_string(package).unwrap().contains(version));
}

#[test]
fn header_is_generated_from_this_source() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/shootdown.h");
    let generated = generated();
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::write(&file, &generated).unwrap();
    }
    let header = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        header == generated,
        "include/shootdown.h is out of date; try:   UPDATE_HEADER=1 cargo test -p shootdown-capi"
    );
}

/// The exported functions of the header, each with the line of its comment that declares its
/// effects, in the order of the header.
fn effects(header: &str) -> Vec<(String, String)> {
    let mut effects = Vec::new();
    let mut line = None;
    for text in header.lines() {
        if text.starts_with(" * Interrupts: ") {
            line = Some(text[3..].to_owned());
        } else if let Some((before, _)) = text.split_once('(').filter(|_| !text.starts_with(' ')) {
            let name = before.rsplit([' ', '*']).next().unwrap();
            let is_exported = name.starts_with("shootdown_")
                && !name.starts_with("shootdown_os_")
                && !name.starts_with("shootdown_mmu_");
            if is_exported {
                let line = line.take().unwrap_or_else(|| panic!("{name} declares no effects"));
                effects.push((name.to_owned(), line));
            }
        }
    }
    effects
}

/// Returns `true` if the engine has a public method of this name.
fn is_method_in_rust(name: &str, folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return is_method_in_rust(name, &path);
        }
        let text = std::fs::read_to_string(path).unwrap();
        ["pub fn", "pub const fn", "pub unsafe fn", "pub const unsafe fn"].iter().any(|words| {
            ['(', '<'].iter().any(|end| text.contains(&format!("    {words} {name}{end}")))
        })
    })
}

/// The table of the README: functions of equal effects share a row.
fn effects_table(header: &str, engine: &Path) -> String {
    let mut rows = std::collections::BTreeMap::<Vec<String>, (Vec<String>, u64)>::new();
    for (name, line) in effects(header) {
        let words: Vec<&str> = line.split([':', '.']).map(str::trim).collect();
        let [_, interrupts, _, waits, _, reclaims, _, callable, _, stack, _] = words[..] else {
            panic!("{name}: {line}")
        };
        let key = [interrupts, waits, reclaims, callable].map(|word| match word {
            "yes" | "no" => word.to_owned(),
            at => at.replace("shootdown_", ""),
        });
        let row = rows.entry(key.to_vec()).or_default();
        let name = name.strip_prefix("shootdown_").unwrap();
        let mark = if is_method_in_rust(name, engine) { "*" } else { "" };
        row.0.push(format!("`{name}`{mark}"));
        row.1 = row.1.max(stack.parse().unwrap());
    }
    let mut table = String::from(
        "| functions | interrupts CPUs | waits for CPUs | reclaims spaces | callable | \
         stack, bytes |\n\
         |---|---|---|---|---|---|\n",
    );
    for (effects, (names, stack)) in rows {
        let _ = writeln!(table, "| {} | {} | {stack} |", names.join(", "), effects.join(" | "));
    }
    table
}

/// The call of each function where its comment permits it, in `hostile.c`. That has no processor of
/// `shootdown-hw`.
#[test]
fn hostile_calls_cover_each_early_function() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
    let hostile = read("tests/hostile.c");
    let processor = read("src/processor.rs") + &read("src/kvm.rs");
    for (words, case) in [
        ("before shootdown_init.", "calls_before_init"),
        ("before shootdown_online.", "calls_before_online"),
    ] {
        let body = hostile.split(&format!("static void {case}(void) {{")).nth(1).unwrap();
        let body = body.split("\n}\n").next().unwrap();
        for (name, line) in effects(&generated()) {
            let is_ours = processor.contains(&format!("fn {name}(")) || name == "shootdown_init";
            if line.contains(words) && !is_ours {
                let call = format!("{name}(");
                let is_unpin = name == "shootdown_unpin_tag";
                assert!(body.contains(&call) || is_unpin, "{case} does not call {name}");
            }
        }
    }
}

#[test]
fn readme_has_the_table_of_effects() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = effects_table(&generated(), &folder.join("../shootdown/src"));
    let file = folder.join("README.md");
    let readme = std::fs::read_to_string(&file).unwrap();
    const BEGIN: &str = "<!-- effects: written by the test of the header -->\n";
    let (before, rest) = readme.split_once(BEGIN).expect("the README has a place for the table");
    let (shown, after) = rest.split_once("\n\n").unwrap();
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::write(&file, format!("{before}{BEGIN}{table}\n{after}")).unwrap();
        return;
    }
    let is_current = format!("{shown}\n") == table;
    assert!(
        is_current,
        "the README's table differs; try:   UPDATE_HEADER=1 cargo test -p shootdown-capi"
    );
}

#[test]
fn book_shows_the_end_of_glue() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let glue = std::fs::read_to_string(folder.join("examples/kernel/glue.c")).unwrap();
    let book = std::fs::read_to_string(folder.join("../../docs/embedding-in-c.md")).unwrap();
    let shown = book.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert!(
        shown.contains("shootdown_flush(") && glue.ends_with(shown),
        "docs/embedding-in-c.md lacks the end of crates/capi/examples/kernel/glue.c; try:   copy it"
    );
}
