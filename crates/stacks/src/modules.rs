//! Executables and libraries: the sections that unwinding needs, and the relation between offsets
//! in a file and the addresses that the file states.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use framehop::ExplicitModuleSectionInfo;
use object::{Object as _, ObjectSection as _, ObjectSegment as _, ReadCache, SegmentFlags};

use crate::stack::ModuleId;

/// The bytes of a section.
pub(crate) type Section = Arc<[u8]>;

/// An executable or library.
#[derive(Debug)]
pub(crate) struct Module {
    /// The path, as the process that mapped the file names it.
    pub(crate) path: String,
    /// The file, which stays readable if it is renamed, or if its process ends.
    pub(crate) file: Option<File>,
    segments: Vec<Segment>,
    sections: ExplicitModuleSectionInfo<Section>,
}

/// A part of a file that is loaded.
#[derive(Clone, Debug)]
struct Segment {
    /// Offsets in the file.
    range: Range<u64>,
    /// The address that the file states for the first byte.
    address: u64,
    is_executable: bool,
}

/// Bytes of a page. Whole pages are mapped: one that two segments share is mapped twice.
const PAGE_BYTES: u64 = 4096;
/// The flag of executable segments (`PF_X`).
const EXECUTABLE: u32 = 1;

/// All modules that were mapped.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    modules: Vec<Module>,
    by_path: HashMap<String, ModuleId>,
}

impl Modules {
    /// Returns the module at `path`, which `process` has mapped. A file that cannot be read makes a
    /// module without sections.
    pub(crate) fn open(&mut self, process: u32, path: &str) -> ModuleId {
        if let Some(module) = self.by_path.get(path) {
            return *module;
        }
        let number = ModuleId(self.modules.len() as u32);
        self.modules.push(Module::open(process, path));
        self.by_path.insert(path.to_owned(), number);
        number
    }

    pub(crate) fn module(&self, number: ModuleId) -> &Module {
        &self.modules[number.0 as usize]
    }
}

impl Module {
    fn open(process: u32, path: &str) -> Self {
        // A process in a container has another root directory.
        let inside = Path::new("/proc").join(process.to_string()).join("root");
        let inside = inside.join(path.trim_start_matches('/'));
        let file = File::open(inside).or_else(|_| File::open(path)).ok();
        let (segments, sections) = file.as_ref().and_then(parse).unwrap_or_default();
        Self { path: path.to_owned(), file, segments, sections }
    }

    /// Returns the address that the file states for a byte of the file, which is the first of an
    /// executable mapping if it begins a page.
    pub(crate) fn stated_address(&self, offset: u64) -> Option<u64> {
        let begins_page = |segment: &Segment| segment.range.start & !(PAGE_BYTES - 1) <= offset;
        let is_code = |segment: &&Segment| {
            segment.is_executable && begins_page(segment) && offset < segment.range.end
        };
        let code = self.segments.iter().find(is_code);
        let any = || self.segments.iter().find(|segment| segment.range.contains(&offset));
        let Segment { range, address, .. } = code.or_else(any)?;
        Some(address.wrapping_add(offset).wrapping_sub(range.start))
    }

    pub(crate) fn sections(&self) -> &ExplicitModuleSectionInfo<Section> {
        &self.sections
    }
}

type Parsed = (Vec<Segment>, ExplicitModuleSectionInfo<Section>);

fn parse(file: &File) -> Option<Parsed> {
    let cache = ReadCache::new(file);
    let object = object::File::parse(&cache).ok()?;
    let segments = object.segments().filter_map(|segment| {
        let (offset, length) = segment.file_range();
        let range = offset..offset.checked_add(length)?;
        let is_executable = matches!(
            segment.flags(), SegmentFlags::Elf { p_flags } if p_flags & EXECUTABLE != 0
        );
        Some(Segment { range, address: segment.address(), is_executable })
    });
    let range = |name| {
        let section = object.section_by_name(name)?;
        Some(section.address()..section.address().checked_add(section.size())?)
    };
    let data = |name| -> Option<Section> {
        let section = object.section_by_name(name)?;
        Some(section.uncompressed_data().ok()?.into())
    };
    let sections = ExplicitModuleSectionInfo {
        base_svma: 0,
        text_svma: range(".text"),
        got_svma: range(".got"),
        eh_frame_svma: range(".eh_frame"),
        eh_frame: data(".eh_frame"),
        eh_frame_hdr_svma: range(".eh_frame_hdr"),
        eh_frame_hdr: data(".eh_frame_hdr"),
        // Go writes this section, and not the ones above.
        debug_frame: data(".debug_frame"),
        ..ExplicitModuleSectionInfo::default()
    };
    Some((segments.collect(), sections))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_executable_has_tables_for_unwinding() {
        let mut modules = Modules::default();
        let path = std::env::current_exe().expect("a path");
        let number = modules.open(std::process::id(), path.to_str().expect("a name"));
        let module = modules.module(number);
        assert!(module.sections().eh_frame.is_some() && module.file.is_some());
        assert_eq!(module.stated_address(0), Some(0), "an executable that can be moved");
        assert_eq!(modules.open(0, path.to_str().expect("a name")), number, "opened once");
    }

    #[test]
    fn page_of_two_segments_is_that_of_the_code() {
        // As the linker of LLVM writes them.
        let segment = |range, address, is_executable| Segment { range, address, is_executable };
        let segments = vec![
            segment(0..0x1cd4, 0, false),
            segment(0x1ce0..0x5000, 0x2ce0, true),
            segment(0x5a50..0x6000, 0x7a50, false),
        ];
        let sections = ExplicitModuleSectionInfo::default();
        let module = Module { path: String::new(), file: None, segments, sections };
        let stated = [0x1000, 0x1ce0, 0x4fff, 0x800, 0x5a50].map(|at| module.stated_address(at));
        assert_eq!(stated, [0x2000, 0x2ce0, 0x5fff, 0x800, 0x7a50].map(Some));
        assert_eq!(module.stated_address(0x6000), None);
    }

    #[test]
    fn file_that_is_missing_or_no_module_has_no_sections() {
        let mut modules = Modules::default();
        for path in ["/nowhere", "/proc/self/status"] {
            let number = modules.open(std::process::id(), path);
            assert_eq!(modules.module(number).stated_address(0), None, "{path}");
        }
    }
}
