//! The causes of flushes: from the functions of the kernel in a call stack, or from the system call
//! or fault in which the flush happened.

use std::cmp::Ordering;
use std::collections::HashMap;

use serde::Deserialize;
use shootdown_recording::record::Call;

/// The table of the kernel's functions.
const TABLE: &str = include_str!("../causes.toml");

/// Names of causes that `doing` distinguishes.
pub(crate) const COPY_ON_WRITE: &str = "copy-on-write";
pub(crate) const ZERO_PAGE: &str = "zero page upgraded";
pub(crate) const FILE_COPY: &str = "private copy of a file's page";
pub(crate) const MADVISE: &str = "madvise";
pub(crate) const FORK: &str = "fork";
pub(crate) const EXIT: &str = "exit";
pub(crate) const SHARED_WRITE: &str = "first write to a clean page of a shared file";
pub(crate) const PAGE_FAULT: &str = "page fault";
/// The cause of a flush outside any recorded call or fault, whose stack is not known either. The
/// end of a fault is not recorded, and one on a page that was not mapped flushes nothing itself.
pub(crate) const UNKNOWN: &str = "unknown";

/// The beginnings of the names of functions that begin a system call.
const CALLS: [&str; 8] = [
    "__x64_sys_",
    "__ia32_sys_",
    "__ia32_compat_sys_",
    "__arm64_sys_",
    "__riscv_sys_",
    "__do_sys_",
    "__se_sys_",
    "ksys_",
];
/// Functions that begin a page fault, and those that call a system call's function.
const FAULTS: [&str; 4] =
    ["exc_page_fault", "asm_exc_page_fault", "do_user_addr_fault", "do_page_fault"];
const DISPATCHERS: [&str; 3] = ["x64_sys_call", "do_syscall_64", "invoke_syscall"];
/// Functions that call the function of a kernel thread, or of its work.
const THREADS: [&str; 4] = ["process_one_work", "worker_thread", "kthread", "smpboot_thread_fn"];

/// The number of a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CauseId(u16);

/// The causes by number, and the table.
#[derive(Clone, Debug)]
pub struct Causes {
    table: Vec<Entry>,
    by_function: HashMap<String, usize>,
    names: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    functions: Vec<String>,
    setting: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    cause: Vec<Entry>,
}

impl Causes {
    /// Returns the table of the crate.
    ///
    /// # Panics
    ///
    /// Does not panic: a test parses the table.
    #[must_use]
    pub fn new() -> Self {
        Self::parse(TABLE).expect("the table of causes is valid")
    }

    fn parse(text: &str) -> Result<Self, toml::de::Error> {
        let Table { cause: table } = toml::from_str(text)?;
        let mut by_function = HashMap::new();
        for (index, entry) in table.iter().enumerate() {
            for function in &entry.functions {
                by_function.entry(function.clone()).or_insert(index);
            }
        }
        Ok(Self { table, by_function, names: Vec::new() })
    }

    /// Returns the name of a cause.
    #[must_use]
    pub fn name(&self, cause: CauseId) -> &str {
        &self.names[usize::from(cause.0)]
    }

    /// Returns the setting of the kernel that controls a cause without a call site.
    #[must_use]
    pub fn setting(&self, cause: CauseId) -> Option<&str> {
        let name = self.name(cause);
        self.table.iter().find(|entry| entry.name == name)?.setting.as_deref()
    }

    /// Returns the names of the causes in the table.
    #[cfg(test)]
    pub(crate) fn of_table(&self) -> impl Iterator<Item = &str> {
        self.table.iter().map(|entry| &*entry.name)
    }

    /// Returns the number of the cause with this name.
    pub(crate) fn number(&mut self, name: &str) -> CauseId {
        let known = self.names.iter().position(|known| known == name);
        let index = known.unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        });
        CauseId(index as u16)
    }

    /// Returns the name of the cause that the functions of the kernel in a call stack reveal, the
    /// innermost first.
    #[must_use]
    pub fn of_functions(&self, functions: &[&str]) -> Option<String> {
        let indices = functions.iter().filter_map(|function| self.by_function.get(*function));
        let of_table = indices.min().map(|index| self.table[*index].name.clone());
        of_table.or_else(|| entry(functions))
    }
}

/// Returns the name of the system call, the fault or the kernel thread that a stack begins with.
fn entry(functions: &[&str]) -> Option<String> {
    let called = |at: usize| at.checked_sub(1).map(|inner| functions[inner].to_owned());
    functions.iter().enumerate().find_map(|(at, function)| {
        let call = CALLS.iter().find_map(|start| function.strip_prefix(start));
        match *function {
            _ if call.is_some() => call.map(str::to_owned),
            name if FAULTS.contains(&name) => Some(PAGE_FAULT.to_owned()),
            name if DISPATCHERS.contains(&name) || THREADS.contains(&name) => called(at),
            _ => None,
        }
    })
}

impl Default for Causes {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the name of the cause of flushes in a system call.
pub(crate) fn of_call(call: &Call) -> String {
    match call {
        Call::Map { .. } => "mmap over a mapping".to_owned(),
        Call::Unmap { .. } => "munmap".to_owned(),
        Call::Protect { .. } => "mprotect".to_owned(),
        Call::Advise { advice, .. } => format!("{MADVISE}({})", advice_name(*advice)),
        Call::Remap { old_length, new_length, .. } => match new_length.cmp(old_length) {
            Ordering::Less => "mremap (smaller)".to_owned(),
            Ordering::Equal => "mremap (same size)".to_owned(),
            Ordering::Greater => "mremap".to_owned(),
        },
        Call::Sync { .. } => "write-back".to_owned(),
        Call::Break { .. } => "brk".to_owned(),
    }
}

/// Returns Linux's name of an advice.
fn advice_name(advice: u32) -> String {
    let name = match advice {
        4 => "DONTNEED",
        8 => "FREE",
        9 => "REMOVE",
        10 => "DONTFORK",
        11 => "DOFORK",
        12 => "MERGEABLE",
        14 => "HUGEPAGE",
        15 => "NOHUGEPAGE",
        20 => "COLD",
        21 => "PAGEOUT",
        24 => "DONTNEED_LOCKED",
        25 => "COLLAPSE",
        other => return other.to_string(),
    };
    format!("MADV_{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_functions_decide_before_general_ones() {
        let causes = Causes::new();
        let of = |functions: &[&str]| causes.of_functions(functions).unwrap_or_default();
        let stack = ["flush_tlb_mm_range", "tlb_finish_mmu", "do_madvise", "do_syscall_64"];
        assert_eq!(of(&stack), "madvise");
        assert_eq!(of(&["do_madvise", "__split_huge_pmd"]), "huge page split");
        assert_eq!(of(&["__vm_munmap", "do_mmap"]), "munmap");
        assert_eq!(of(&["exit_mmap", "do_exit"]), "exit");
        assert_eq!(of(&["exit_mmap", "exec_mmap", "begin_new_exec"]), "exec (old space)");
        assert_eq!(of(&["shift_arg_pages", "setup_arg_pages"]), "exec");
        assert_eq!(of(&["do_wp_page", "handle_mm_fault"]), COPY_ON_WRITE);
        assert_eq!(of(&["do_page_mkwrite", "do_wp_page", "handle_mm_fault"]), SHARED_WRITE);
        let collapse = ["collapse_huge_page", "madvise_collapse", "do_madvise"];
        assert_eq!(of(&collapse), "madvise(MADV_COLLAPSE)");
        assert_eq!(of(&["schedule"]), "");
    }

    #[test]
    fn stack_without_an_entry_is_named_by_its_beginning() {
        let causes = Causes::new();
        let of = |functions: &str| {
            let functions: Vec<_> = functions.split(' ').collect();
            causes.of_functions(&functions).unwrap_or_default()
        };
        let zap = "native_flush_tlb_multi flush_tlb_mm_range tlb_finish_mmu zap_page_range_single";
        let truncate = format!(
            "{zap} unmap_mapping_range shmem_setattr __x64_sys_ftruncate \
                                x64_sys_call do_syscall_64"
        );
        assert_eq!(of(&truncate), "ftruncate");
        assert_eq!(of(&format!("{zap} ksys_shmdt __x64_sys_shmdt")), "shmdt");
        assert_eq!(of(&format!("{zap} handle_mm_fault exc_page_fault")), PAGE_FAULT);
        assert_eq!(of(&format!("{zap} handle_mm_fault __x64_sys_mlock")), "mlock");
        assert_eq!(of(&format!("{zap} clear_young kdamond_fn kthread")), "DAMON");
        assert_eq!(of(&format!("{zap} reap oom_reaper kthread ret_from_fork")), "oom_reaper");
        let work = "process_one_work worker_thread kthread";
        assert_eq!(of(&format!("{zap} free_pages_work {work}")), "free_pages_work");
        assert_eq!(
            of("flush_tlb_mm_range change_protection mwriteprotect_range __x64_sys_ioctl"),
            "userfaultfd write-protect"
        );
    }

    const CALLERS: &str = include_str!("../callers.txt");

    #[test]
    fn every_caller_of_a_flush_has_a_cause() {
        let causes = Causes::new();
        let mut without = Vec::new();
        for line in CALLERS.lines().filter(|line| !line.starts_with('#')) {
            let (above, callers) = line.split_once(": ").expect("a colon");
            for caller in callers.split(' ') {
                let is_listed = causes.by_function.contains_key(caller);
                let stack = ["flush_tlb_mm_range", caller, above, "__x64_sys_other"];
                let cause = causes.of_functions(&stack);
                let is_named = match above {
                    "itself" => is_listed,
                    "entries" => !is_listed && cause.as_deref() == Some("other"),
                    _ => {
                        causes.by_function.contains_key(above) && cause.as_deref() != Some("other")
                    }
                };
                without.extend((!is_named).then_some((above, caller)));
            }
        }
        assert!(without.is_empty(), "{without:?}");
    }

    #[test]
    fn functions_are_listed_once() {
        let causes = Causes::new();
        let listed: usize = causes.table.iter().map(|entry| entry.functions.len()).sum();
        assert_eq!(listed, causes.by_function.len());
    }

    #[test]
    fn causes_of_calls_are_in_the_table() {
        let causes = Causes::new();
        let call = Call::Unmap { address: 0, length: 0 };
        assert!(causes.table.iter().any(|entry| entry.name == of_call(&call)));
        let advise = Call::Advise { address: 0, length: 0, advice: 21 };
        assert!(causes.table.iter().any(|entry| entry.name == of_call(&advise)));
    }
}
