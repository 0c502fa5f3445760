//! stress-ng's memory class, and what it has for maps, processes and switches.

use std::path::PathBuf;

use super::suite;
use crate::command::{Command, Failure};
use crate::port::linux::guest::Member;
use crate::port::linux::kernel;
use crate::port::source::Variant;
use crate::setup;

/// The stressors, and the number of operations of all four instances together.
const STRESSORS: [(&str, u32); 37] = [
    ("bad-altstack", 40),
    ("bigheap", 400),
    ("brk", 4000),
    ("clone", 40),
    ("fork", 80),
    ("madvise", 12),
    ("malloc", 4000),
    ("membarrier", 40),
    ("memfd", 8),
    ("memthrash", 4),
    ("mincore", 40),
    ("mlock", 8),
    ("mmap", 4),
    ("mmapaddr", 400),
    ("mmapfixed", 40),
    ("mmapfork", 4),
    ("mmaphuge", 40),
    ("mmapmany", 4000),
    ("mprotect", 400),
    ("mremap", 16),
    ("msync", 40),
    ("msyncmany", 40),
    ("munmap", 4),
    ("pagemove", 4),
    ("pageswap", 40),
    ("pthread", 40),
    ("remap", 8),
    ("rmap", 40),
    ("shm", 8),
    ("shm-sysv", 8),
    ("stack", 40),
    ("stackmmap", 4),
    ("switch", 4000),
    ("tlb-shootdown", 8),
    ("userfaultfd", 400),
    ("vm", 400),
    ("vm-segv", 40),
];

/// For each stressor. stress-ng stops by itself before.
const SECONDS: u32 = 40;

const PROGRAM: &str = "usr/bin/stress-ng";

pub(super) fn run() -> Result<(), Failure> {
    let program = PathBuf::from("/").join(PROGRAM);
    if !program.exists() {
        setup::install_from_distribution("stress-ng")?;
    }
    let kernels = [kernel::build(Variant::Stock)?, kernel::build(Variant::Shootdown)?];
    let members = members(program)?;
    let first = suite::archive("stress", &list(&[]), &members)?;
    let again = |names: &[&str]| suite::archive("stress-again", &list(names), &members);
    suite::compare(&kernels, &first, STRESSORS.len(), again)
}

/// The list of these runs, or of all.
fn list(names: &[&str]) -> String {
    let lines = STRESSORS.iter().map(|(stressor, operations)| {
        format!(
            "{} /{PROGRAM} --{stressor} 4 --{stressor}-ops {operations} --timeout {} --verify \
             --temp-path /tmp --no-rand-seed --vm-bytes 64m --mmap-bytes 16m",
            SECONDS + 60,
            SECONDS
        )
    });
    lines
        .filter(|line| names.is_empty() || names.contains(&line.as_str()))
        .map(|line| line + "\n")
        .collect()
}

/// The program and the libraries that it loads, where it expects them.
fn members(program: PathBuf) -> Result<Vec<Member>, Failure> {
    let libraries = Command::new("ldd").arg(&program).output()?;
    let found = libraries.split_whitespace().filter(|word| word.starts_with('/'));
    let libraries = found.map(|path| Member::new(&path[1..], PathBuf::from(path)));
    Ok(libraries.chain([Member::new(PROGRAM, program.clone())]).collect())
}
