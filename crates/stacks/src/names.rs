//! The names and source lines of addresses in executables and libraries.

use std::collections::HashMap;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;

use addr2line::Loader;
use object::{Object as _, ReadCache};
use shootdown_recording::record::{Frame, Layer};

use crate::debug_files;
use crate::modules::Module;
use crate::stack::ModuleId;

/// The symbol tables that were loaded.
#[derive(Default)]
pub(crate) struct Names {
    loaders: HashMap<ModuleId, Vec<Loader>>,
}

impl Names {
    /// Returns the calls at an address of a module, the innermost first: a function, and the
    /// functions that it is inlined into. `directories` may have the debug data of modules that
    /// are stripped.
    pub(crate) fn frames(
        &mut self,
        (number, module): (ModuleId, &Module),
        address: u64,
        directories: &[PathBuf],
    ) -> Vec<Frame> {
        let loaders = self.loaders.entry(number).or_insert_with(|| load(module, directories));
        let frames = loaders.iter().map(|loader| inlined(loader, address));
        let mut frames = frames.into_iter().find(|frames| !frames.is_empty()).unwrap_or_default();
        // The C library, allocators and runtimes are known by their libraries, and their sources
        // are not on the user's machine.
        if loaders.len() > 1 && module.path.contains(".so") {
            for frame in &mut frames {
                (frame.file, frame.line) = (module.path.clone(), 0);
            }
        }
        if frames.is_empty() {
            let symbol = loaders.iter().find_map(|loader| loader.find_symbol(address));
            let function = symbol.map(|name| addr2line::demangle_auto(name.into(), None).into());
            let file = module.path.rsplit('/').next().unwrap_or_default();
            let function = function.unwrap_or_else(|| format!("[{file}+{address:#x}]"));
            frames.push(Frame { layer: Layer::User, function, file: module.path.clone(), line: 0 });
        }
        frames
    }
}

/// Returns the tables of a module: those of its debug data, if it is stripped, and its own.
fn load(module: &Module, directories: &[PathBuf]) -> Vec<Loader> {
    let Some(file) = &module.file else { return Vec::new() };
    let cache = ReadCache::new(file);
    let stripped = object::File::parse(&cache).ok().filter(|object| !object.has_debug_symbols());
    let build_id = stripped.as_ref().and_then(|object| object.build_id().ok()?);
    let debug = build_id.and_then(|number| debug_files::find(number, directories));
    // The path may name another file by now, or none.
    let own = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    debug.into_iter().chain([own]).filter_map(|path| Loader::new(path).ok()).collect()
}

fn inlined(loader: &Loader, address: u64) -> Vec<Frame> {
    let mut frames = Vec::new();
    let Ok(mut found) = loader.find_frames(address) else { return frames };
    while let Ok(Some(frame)) = found.next() {
        let Some(function) = frame.function.as_ref().and_then(|name| name.demangle().ok()) else {
            // DWARF knows the line and no function: the symbol table names it.
            return Vec::new();
        };
        let location = frame.location.as_ref();
        frames.push(Frame {
            layer: Layer::User,
            function: function.into_owned(),
            file: location.and_then(|location| location.file).unwrap_or_default().to_owned(),
            line: location.and_then(|location| location.line).unwrap_or_default(),
        });
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::Modules;
    use std::fs;
    use std::process::Command;

    #[inline(never)]
    fn place() {}

    #[test]
    fn stripped_module_is_named_by_its_debug_data() {
        let directory = tempfile::tempdir().expect("a directory");
        let own = std::env::current_exe().expect("a path");
        let stripped = directory.path().join("stripped");
        let ran = Command::new("strip").arg("-o").args([&stripped, &own]).status();
        if !ran.is_ok_and(|status| status.success()) {
            println!("skipped: no program `strip`");
            return;
        }
        let bytes = fs::read(&own).expect("the executable");
        let object = object::File::parse(&*bytes).expect("an executable");
        let Some(number) = object.build_id().expect("notes") else {
            println!("skipped: the linker wrote no build ID");
            return;
        };
        let hex: String = number.iter().map(|byte| format!("{byte:02x}")).collect();
        let below = directory.path().join(".build-id").join(&hex[..2]);
        fs::create_dir_all(&below).expect("a directory");
        std::os::unix::fs::symlink(&own, below.join(format!("{}.debug", &hex[2..]))).expect("link");

        // The executable can be moved: the place of the function relative to a known one.
        let map = fs::read_to_string("/proc/self/maps").expect("mappings");
        let first = map.lines().find(|line| line.ends_with(own.to_str().expect("a name")));
        let base = first.and_then(|line| u64::from_str_radix(line.split('-').next()?, 16).ok());
        let address = place as *const () as u64 - base.expect("a mapping");
        let mut modules = Modules::default();
        let module = modules.open(std::process::id(), stripped.to_str().expect("a name"));
        let named = |directories: &[PathBuf]| {
            let module = (module, modules.module(module));
            Names::default().frames(module, address, directories)[0].function.clone()
        };
        assert!(named(&[]).starts_with("[stripped+0x"), "{}", named(&[]));
        let name = named(&[directory.path().to_owned()]);
        assert!(name.ends_with("place"), "{name}");
    }
}
