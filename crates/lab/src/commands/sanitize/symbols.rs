//! The symbols of a kernel: from its ELF file, from `System.map`, or from `/proc/kallsyms`. Names
//! of Rust are paths.

use std::fs;
use std::path::Path;

use object::{Object as _, ObjectSymbol as _, SymbolKind};

use super::error::SanitizeError;

/// The functions of a kernel.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    /// Sorted by address, each once.
    by_address: Vec<(u64, String)>,
}

/// The longest distance of an address from the symbol that names it.
const LONGEST: u64 = 1 << 20;

impl Symbols {
    /// Reads a file of any of the formats.
    ///
    /// # Errors
    ///
    /// If the file has no symbols.
    pub(crate) fn read(path: &Path) -> Result<Self, SanitizeError> {
        let failed = |error: String| SanitizeError::Symbols { path: path.to_owned(), error };
        let bytes = fs::read(path).map_err(|error| failed(error.to_string()))?;
        let found = if bytes.starts_with(b"\x7fELF") {
            let file = object::File::parse(&*bytes).map_err(|error| failed(error.to_string()))?;
            let symbols = file.symbols().filter(|symbol| symbol.is_definition());
            let symbols = symbols.filter(|symbol| {
                matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Label | SymbolKind::Unknown)
            });
            symbols
                .filter_map(|symbol| Some((symbol.address(), symbol.name().ok()?.to_owned())))
                // Labels within functions, and marks of code and data.
                .filter(|(_, name)| !name.is_empty() && !name.starts_with(['.', '$']))
                .map(|(address, name)| (address, format!("{:#}", rustc_demangle::demangle(&name))))
                .collect()
        } else {
            lines(&String::from_utf8_lossy(&bytes))
        };
        Self::checked(found, path)
    }

    /// Reads lines of `/proc/kallsyms`.
    ///
    /// # Errors
    ///
    /// If there are none, or all addresses are 0.
    pub(crate) fn of_kallsyms(text: &str) -> Result<Self, SanitizeError> {
        Self::checked(lines(text), Path::new("/proc/kallsyms"))
    }

    fn checked(found: Vec<(u64, String)>, path: &Path) -> Result<Self, SanitizeError> {
        if found.is_empty() {
            let (path, error) = (path.to_owned(), "it has no symbols".to_owned());
            return Err(SanitizeError::Symbols { path, error });
        }
        if found.iter().all(|(address, _)| *address == 0) {
            return Err(SanitizeError::HiddenAddresses(path.to_owned()));
        }
        Ok(Self::of(found))
    }

    fn of(mut by_address: Vec<(u64, String)>) -> Self {
        by_address.sort_unstable();
        by_address.dedup();
        Self { by_address }
    }

    /// The addresses of all functions with a name: those of several files, or instances of one.
    pub(super) fn addresses(&self, name: &str) -> impl Iterator<Item = u64> {
        self.by_address.iter().filter(move |(_, found)| found == name).map(|(address, _)| *address)
    }

    /// The function with an address, and the distance from its start.
    pub(super) fn function(&self, address: u64) -> Option<(String, u64)> {
        let after = self.by_address.partition_point(|(start, _)| *start <= address);
        let (start, name) = &self.by_address[after.checked_sub(1)?];
        (address - start < LONGEST).then(|| (name.clone(), address - start))
    }

    /// The function with an address and the distance from its start, or the address alone.
    pub(super) fn place(&self, address: u64) -> String {
        self.function(address)
            .map_or_else(|| format!("{address:#x}"), |(name, at)| format!("{name}+{at:#x}"))
    }
}

/// Reads lines of an address, a type and a name.
fn lines(text: &str) -> Vec<(u64, String)> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let kind = words.next().filter(|kind| kind.len() == 1)?;
        let is_code = matches!(kind, "t" | "T" | "w" | "W");
        is_code.then_some((address, words.next()?.to_owned()))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_kallsyms_are_read() {
        let text = "ffffffff81000000 T _text\nffffffff81000040 t clear_page_erms\t[m]\n\
                    ffffffff82000000 D data\nno line\n";
        let symbols = Symbols::of(lines(text));
        let address = |name| symbols.addresses(name).next();
        assert_eq!(address("clear_page_erms"), Some(0xffff_ffff_8100_0040));
        assert_eq!(address("data"), None);
        assert_eq!(symbols.place(0xffff_ffff_8100_0044), "clear_page_erms+0x4");
        assert_eq!(symbols.place(0x1000), "0x1000");
    }

    #[test]
    fn name_of_two_functions_has_both_addresses() {
        let symbols = Symbols::of(lines("20 t f\n10 t f\n10 t f\n18 t g\n"));
        assert_eq!(symbols.addresses("f").collect::<Vec<_>>(), [0x10, 0x20]);
    }

    #[test]
    fn file_without_addresses_is_refused() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), "0000000000000000 T _text\n").expect("it is written");
        let refused = Symbols::read(file.path()).unwrap_err();
        assert!(matches!(refused, SanitizeError::HiddenAddresses(_)));
        fs::write(file.path(), "text\n").expect("it is written");
        assert!(matches!(Symbols::read(file.path()), Err(SanitizeError::Symbols { .. })));
    }
}
