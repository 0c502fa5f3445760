//! The causes of flushes: from the functions of the kernel in a call stack, or from the system call
//! or fault in which the flush happened.

use std::collections::HashMap;

use serde::Deserialize;
use shootdown_recording::record::Call;

/// The table of the kernel's functions.
const TABLE: &str = include_str!("../causes.toml");

/// Names of causes that `doing` distinguishes.
pub(crate) const COPY_ON_WRITE: &str = "copy-on-write";
pub(crate) const ZERO_PAGE: &str = "zero page upgraded";
pub(crate) const MADVISE: &str = "madvise";
pub(crate) const FORK: &str = "fork";
pub(crate) const EXIT: &str = "exit";
pub(crate) const PAGE_FAULT: &str = "page fault";
/// The cause of a flush outside any recorded call or fault, whose stack is not known either.
pub(crate) const UNKNOWN: &str = "unknown";

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

    /// Returns the number of the cause with this name.
    pub(crate) fn number(&mut self, name: &str) -> CauseId {
        let known = self.names.iter().position(|known| known == name);
        let index = known.unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        });
        CauseId(index as u16)
    }

    /// Returns the name of the cause that the functions of the kernel in a call stack reveal.
    pub(crate) fn of_functions<'a>(
        &self,
        functions: impl Iterator<Item = &'a str>,
    ) -> Option<&str> {
        let indices = functions.filter_map(|function| self.by_function.get(function));
        indices.min().map(|index| &*self.table[*index].name)
    }
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
        Call::Remap { .. } => "mremap".to_owned(),
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
        let of = |functions: &[&str]| causes.of_functions(functions.iter().copied());
        let stack = ["flush_tlb_mm_range", "tlb_finish_mmu", "do_madvise", "do_syscall_64"];
        assert_eq!(of(&stack), Some("madvise"));
        assert_eq!(of(&["do_madvise", "__split_huge_pmd"]), Some("huge page split"));
        assert_eq!(of(&["__vm_munmap", "do_mmap"]), Some("munmap"));
        assert_eq!(of(&["exit_mmap", "do_exit"]), Some("exit"));
        assert_eq!(of(&["handle_mm_fault", "do_wp_page"]), Some(COPY_ON_WRITE));
        assert_eq!(of(&["schedule"]), None);
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
