//! The names of the kernel's functions.

use std::ops::Range;

/// The kernel's functions.
#[derive(Debug, Default)]
pub struct KernelNames {
    /// In ascending order of their addresses.
    functions: Vec<(u64, Box<str>)>,
}

impl KernelNames {
    /// Parses `/proc/kallsyms`. Functions without an address, which the kernel hides from some
    /// users, are left out.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut functions: Vec<(u64, Box<str>)> = text.lines().filter_map(parse).collect();
        functions.sort_by_key(|(address, _)| *address);
        Self { functions }
    }

    /// Returns the addresses of each function with one of these names. The compiler may have made
    /// several of one.
    pub fn ranges(&self, names: &[&str]) -> impl Iterator<Item = Range<u64>> {
        let end = |at: usize| self.functions.get(at + 1).map_or(u64::MAX, |(start, _)| *start);
        let named = move |(_, (_, name)): &(usize, &(u64, Box<str>))| names.contains(&&**name);
        let functions = self.functions.iter().enumerate().filter(named);
        functions.map(move |(at, (start, _))| *start..end(at))
    }

    /// Returns the function that contains `address`.
    #[must_use]
    pub fn function(&self, address: u64) -> Option<&str> {
        let after = self.functions.partition_point(|(start, _)| *start <= address);
        self.functions.get(after.checked_sub(1)?).map(|(_, name)| &**name)
    }
}

fn parse(line: &str) -> Option<(u64, Box<str>)> {
    let (address, rest) = line.split_once(' ')?;
    let (kind, name) = rest.split_once(' ')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let is_function = matches!(kind, "t" | "T" | "w" | "W");
    let name = name.split_once('\t').map_or(name, |(name, _)| name);
    // The padding before a function, and clones of a function by the compiler.
    let is_padding = name.starts_with("__pfx_");
    let name = name.split('.').next()?;
    (address != 0 && is_function && !is_padding).then(|| (address, name.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_belongs_to_function_before_it() {
        let names = KernelNames::parse(
            "0000000000002000 t do_madvise.part.0\n0000000000001ff0 T __pfx_do_madvise\n\
             0000000000001000 T flush_tlb_mm_range\n0000000000003000 D data\n0 t hidden\n",
        );
        assert_eq!(names.function(0xfff), None);
        assert_eq!(names.function(0x1ff8), Some("flush_tlb_mm_range"));
        assert_eq!(names.function(0x2fff), Some("do_madvise"));
        let ranges: Vec<_> = names.ranges(&["flush_tlb_mm_range", "do_madvise"]).collect();
        assert_eq!(ranges, [0x1000..0x2000, 0x2000..u64::MAX]);
    }
}
