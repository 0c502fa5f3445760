//! The header in `include` is the one that is generated from the source, and the book has the
//! example that is built.

use std::fmt::Write as _;
use std::path::Path;

use shootdown_capi::storage::sizes;

/// The part of the header that comes from the sizes of Rust's types.
fn macros() -> String {
    let mut text = String::from(
        "\n/* Number of CPUs for which the library has room: 64, or 512 or 4096 if it was built \
         with the\n * feature `cpus-512` or `cpus-4096`. */\n\
         #ifndef SHOOTDOWN_CPUS_MAX\n#define SHOOTDOWN_CPUS_MAX 64\n#endif\n\n\
         #define SHOOTDOWN_ALIGNED(n) __attribute__((aligned(n)))\n\n\
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
         #define SHOOTDOWN_EXTENTS_WORDS {}\n#define SHOOTDOWN_VCPU_WORDS {}\n\
         #define SHOOTDOWN_LAZY_PREDICTOR_WORDS {}\n#define SHOOTDOWN_STEAL_TIME_WORDS {}\n\n\
         /* Shows the library that it belongs to this header. */\n\
         #define SHOOTDOWN_LAYOUT \\\n    \
         ((uint64_t)SHOOTDOWN_CPU_WORDS | (uint64_t)SHOOTDOWN_SPACE_WORDS << 16 \\\n     \
         | (uint64_t)SHOOTDOWN_PENDING_WORDS << 32 \\\n     \
         | (uint64_t)(SHOOTDOWN_BATCH_WORDS + SHOOTDOWN_SENT_BATCH_WORDS) << 48)\n",
        sizes::CPU,
        sizes::BATCH,
        sizes::EXTENTS,
        sizes::VCPU,
        sizes::LAZY_PREDICTOR,
        sizes::STEAL_TIME,
    );
    text
}

#[test]
fn header_is_generated_from_this_source() {
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
        "tag",
        "processor",
        "crash",
        "vcpu",
        "kvm",
        "lazy",
        "stats",
    ] {
        sources = sources.with_src(folder.join(format!("src/{module}.rs")));
    }
    let mut generated = Vec::new();
    sources.generate().unwrap().write(&mut generated);
    let generated = String::from_utf8(generated).unwrap();
    let file = folder.join("include/shootdown.h");
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::write(&file, &generated).unwrap();
    }
    let header = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        header == generated,
        "include/shootdown.h is out of date; try:   UPDATE_HEADER=1 cargo test -p shootdown-capi"
    );
}

#[test]
fn book_shows_the_glue_of_the_kernel() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let glue = std::fs::read_to_string(folder.join("examples/kernel/glue.c")).unwrap();
    let book = std::fs::read_to_string(folder.join("../../docs/embedding-in-c.md")).unwrap();
    let start = book.find("```c\n").unwrap() + "```c\n".len();
    assert!(
        book[start..].starts_with(&format!("{glue}```\n")),
        "docs/embedding-in-c.md does not have crates/capi/examples/kernel/glue.c; try:   copy it"
    );
}
