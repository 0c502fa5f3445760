//! Linux's own selftests, from the same source, compiled as static programs.

use std::fs;
use std::path::{Path, PathBuf};

use super::suite;
use crate::command::{Command, Failure, unwritable};
use crate::parallel;
use crate::port::linux::configuration::Configuration;
use crate::port::linux::guest::Member;
use crate::port::linux::kernel;
use crate::setup;

/// A folder of selftests, further sources of each program there, and the programs with their
/// arguments. A program that stands twice is compiled once. No version has all of them.
struct Folder {
    name: &'static str,
    sources: &'static [&'static str],
    programs: &'static [&'static str],
}

impl Folder {
    fn place(&self, tree: &Path) -> PathBuf {
        tree.join("tools/testing/selftests").join(self.name)
    }
}

/// The programs of both versions. Left out of `mm`: what needs a module, two NUMA nodes, or memory
/// that fails; the benchmarks of KSM; and of `x86`, what needs 32-bit programs, and the numbers of
/// system calls.
const FOLDERS: [Folder; 4] = [
    Folder {
        name: "mm",
        sources: &["vm_util.c", "thp_settings.c", "hugepage_settings.c"],
        programs: &[
            "compaction_test",
            "cow",
            "droppable",
            "folio_split_race_test",
            "guard-regions",
            "gup_longterm",
            "hugepage-mmap",
            "hugepage-mremap",
            "hugepage-shm",
            "hugepage-vmemmap",
            "hugetlb-madvise",
            "hugetlb-mmap",
            "hugetlb-mremap",
            "hugetlb-shm",
            "hugetlb-vmemmap",
            "hugetlb_fault_after_madv",
            "hugetlb_madv_vs_map",
            "khugepaged",
            "ksm_functional_tests",
            "ksm_tests -M -p 10",
            "ksm_tests -U",
            "ksm_tests -Z -p 10 -z 0",
            "ksm_tests -Z -p 10 -z 1",
            "madv_populate",
            "map_fixed_noreplace",
            "map_hugetlb",
            "map_populate",
            "mdwe_test",
            "memfd_secret",
            "merge",
            "migration",
            "mkdirty",
            "mlock-random-test",
            "mlock2-tests",
            "mrelease_test",
            "mremap_dontunmap",
            "mremap_test",
            "mseal_test",
            "on-fault-limit",
            "pagemap_ioctl",
            "pkey_sighandler_tests",
            "prctl_thp_disable",
            "process_madv",
            "protection_keys",
            "rmap",
            "seal_elf /bin/seal_elf",
            "soft-dirty",
            "split_huge_page_test",
            "thuge-gen",
            "transhuge-stress -d 5",
            "uffd-stress anon 20 4",
            "uffd-stress shmem 20 4",
            "uffd-stress shmem-private 20 4",
            "uffd-unit-tests",
            "uffd-wp-mremap",
            "va_high_addr_switch",
            "virtual_address_range",
        ],
    },
    Folder {
        name: "x86",
        sources: &[],
        programs: &[
            "amx",
            "apx",
            "avx",
            "check_initial_reg_state",
            "corrupt_xstate_header",
            "fsgsbase",
            "fsgsbase_restore",
            "ioperm",
            "iopl",
            "lam",
            "mov_ss_trap",
            "nx_stack",
            "sigaltstack",
            "sigreturn",
            "sigtrap_loop",
            "single_step_syscall",
            "syscall_arg_fault",
            "syscall_nt",
            "sysret_ss_attrs",
            "test_mremap_vdso",
            "test_shadow_stack",
            "test_vsyscall",
        ],
    },
    Folder {
        name: "membarrier",
        sources: &[],
        programs: &["membarrier_test_multi_thread", "membarrier_test_single_thread"],
    },
    Folder {
        name: "rseq",
        sources: &["rseq.c"],
        programs: &[
            "basic_percpu_ops_test",
            "basic_test",
            "param_test -T s -r 100 -t 8",
            "param_test -T l -r 100 -t 8",
            "param_test -T b -M -r 100 -t 8",
            "param_test -T m -M -r 100 -t 8",
            "param_test -T i -r 100 -t 8",
            "param_test -T r -r 100 -t 8",
            "slice_test",
            "syscall_errors_test",
        ],
    },
];

/// Sources that only some programs need.
const MORE_SOURCES: [(&str, &str); 11] = [
    ("amx", "xstate.c"),
    ("apx", "xstate.c"),
    ("avx", "xstate.c"),
    ("pkey_sighandler_tests", "pkey_util.c"),
    ("protection_keys", "pkey_util.c"),
    ("uffd-wp-mremap", "uffd-common.c"),
    ("uffd-stress", "uffd-common.c"),
    ("uffd-unit-tests", "uffd-common.c"),
    ("sysret_ss_attrs", "thunks.S"),
    ("fsgsbase_restore", "clang_helpers_64.S"),
    ("syscall_arg_fault", "clang_helpers_64.S"),
];

/// As the Makefiles of the selftests have them. One test forgets a header.
const FLAGS: &str = "-static -O2 -no-pie -pthread -w -mxsave -U_FORTIFY_SOURCE -D_GNU_SOURCE= \
                     -DKSFT_SKIP=4 -I. -I.. -I../../../..";
const HEADERS: &str =
    "-isystem ../../../../usr/include -isystem ../../../include/uapi -isystem ../../../include";

/// As the script of the selftests sets them, for less memory.
const STORES: [&str; 3] = [
    "/proc/sys/vm/nr_hugepages 32",
    "/proc/sys/kernel/shmmax 268435456",
    "/proc/sys/vm/overcommit_memory 1",
];

/// For each program. Those that take longer are ended on both kernels.
const SECONDS: u32 = 60;

pub(super) fn run(linux: Configuration) -> Result<(), Failure> {
    let kernels = kernel::build_both(linux)?;
    let tree = kernel::tree(linux)?;
    let members = members(&tree)?;
    suite::run("selftests", &kernels, programs(&tree).len(), |names| list(&tree, names), &members)
}

/// The programs that this version has, with their folders and arguments.
fn programs(tree: &Path) -> Vec<(&'static Folder, &'static str)> {
    let all = FOLDERS.iter().flat_map(|folder| folder.programs.iter().map(move |it| (folder, *it)));
    all.filter(|(folder, words)| folder.place(tree).join(name(words) + ".c").exists()).collect()
}

fn name(words: &str) -> String {
    words.split(' ').next().unwrap_or_default().to_owned()
}

/// The list of these runs, or of all.
fn list(tree: &Path, names: &[&str]) -> String {
    let stores = STORES.iter().map(|store| format!("store {store}\n"));
    let lines = programs(tree).into_iter().map(|(_, program)| format!("{SECONDS} /bin/{program}"));
    let chosen = lines.filter(|line| names.is_empty() || names.contains(&line.as_str()));
    stores.chain(chosen.map(|line| line + "\n")).collect()
}

/// Compiles the programs below the cache.
fn members(tree: &Path) -> Result<Vec<Member>, Failure> {
    const PACKAGES: &str = "libcap-dev libnuma-dev";
    if !["/usr/include/sys/capability.h", "/usr/include/numa.h"]
        .iter()
        .all(|it| Path::new(it).exists())
    {
        setup::install_from_distribution(PACKAGES)?;
    }
    Command::new("make").args("-s headers").within(tree).output_or_show()?;
    let built = tree.with_file_name("selftests");
    fs::create_dir_all(&built).map_err(unwritable(&built))?;
    let mut programs: Vec<_> =
        programs(tree).into_iter().map(|(folder, words)| (folder, name(words))).collect();
    programs.dedup_by(|one, other| one.1 == other.1);
    let compiled = parallel::map(&programs, |(folder, name)| {
        let program = built.join(name);
        if !program.exists() {
            compile(tree, folder, name, &program)?;
        }
        Ok(Member::new(format!("bin/{name}"), program))
    });
    compiled.into_iter().collect()
}

fn compile(tree: &Path, folder: &Folder, name: &str, to: &PathBuf) -> Result<(), Failure> {
    let place = folder.place(tree);
    // A script of the selftests writes this file: the host has no liburing to link.
    let local = place.join("local_config.h");
    fs::write(&local, "").map_err(unwritable(&local))?;
    let more = MORE_SOURCES.iter().filter(|(program, _)| *program == name).map(|(_, more)| *more);
    let sources = folder.sources.iter().copied().chain(more);
    let sources: Vec<_> = sources.filter(|source| place.join(source).exists()).collect();
    Command::new("gcc")
        .args(FLAGS)
        .args(HEADERS)
        .arg(format!("{name}.c"))
        .args(&sources.join(" "))
        .args("-lcap -lnuma -lm -o")
        .arg(to)
        .within(&place)
        .output_or_show()
}
