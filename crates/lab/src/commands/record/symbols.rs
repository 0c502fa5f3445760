//! The functions of the kernel that contain an address.

use std::ops::Range;

use shootdown_recording::raw::{CallSite, Function};
use shootdown_stacks::KernelNames;

/// The functions that flush TLBs on other CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Symbols {
    flush_space: Vec<Range<u64>>,
    call_function: Vec<Range<u64>>,
}

impl Symbols {
    /// Parses `/proc/kallsyms`. Returns `None` if the functions are missing or have no addresses,
    /// which the kernel hides from some users.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let names = KernelNames::parse(text);
        let ranges = |wanted: &[&str]| names.ranges(wanted).collect::<Vec<_>>();
        let flush_space = ranges(&["flush_tlb_func", "flush_tlb_func_remote"]);
        let call_function =
            ranges(&["smp_call_function_many_cond", "on_each_cpu_cond_mask", "shootdown_os_ring"]);
        let has_flushes = !flush_space.is_empty() || cfg!(not(target_arch = "x86_64"));
        (has_flushes && !call_function.is_empty()).then_some(Self { flush_space, call_function })
    }

    /// Returns the function that starts at `address`.
    pub(super) fn function(&self, address: u64) -> Function {
        match self.flush_space.iter().any(|range| range.start == address) {
            true => Function::FlushSpace,
            false => Function::Other,
        }
    }

    /// Returns the kernel's filter for calls of the functions that flush.
    pub(super) fn filter(&self) -> String {
        let starts = self.flush_space.iter().map(|it| format!("func == {:#x}", it.start));
        starts.collect::<Vec<_>>().join(" || ")
    }

    /// Returns the caller that `return_address` belongs to.
    pub(super) fn call_site(&self, return_address: u64) -> CallSite {
        match self.call_function.iter().any(|range| range.contains(&return_address)) {
            true => CallSite::CallFunction,
            false => CallSite::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
0000000000001000 t flush_tlb_func.constprop.0
0000000000003000 T on_each_cpu_cond_mask
0000000000002000 t smp_call_function_many_cond
0000000000003080 T next
0000000000002800 T another_function\t[module]
0000000000004000 T shootdown_os_ring
";

    #[test]
    fn return_address_belongs_to_symbol_before_it() {
        let symbols = Symbols::parse(TEXT).expect("symbols");
        let sites: Vec<_> = [0x1fff, 0x2000, 0x27ff, 0x2800, 0x3079, 0x3080, 0x4001]
            .into_iter()
            .filter(|address| symbols.call_site(*address) == CallSite::CallFunction)
            .collect();
        assert_eq!(sites, [0x2000, 0x27ff, 0x3079, 0x4001]);
        assert_eq!(symbols.function(0x1000), Function::FlushSpace);
        assert_eq!(symbols.function(0x1001), Function::Other);
    }

    #[test]
    fn hidden_addresses_are_refused() {
        let hidden: String =
            TEXT.lines().map(|line| format!("{:016}{}\n", 0, &line[16..])).collect();
        assert_eq!(Symbols::parse(&hidden), None);
        assert_eq!(Symbols::parse("garbage\n"), None);
    }
}
