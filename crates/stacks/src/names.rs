//! The names and source lines of addresses in executables and libraries.

use std::collections::HashMap;
use std::os::fd::AsRawFd as _;

use addr2line::Loader;
use shootdown_recording::record::{Frame, Layer};

use crate::modules::Module;
use crate::stack::ModuleId;

/// The symbol tables that were loaded.
#[derive(Default)]
pub(crate) struct Names {
    loaders: HashMap<ModuleId, Option<Loader>>,
}

impl Names {
    /// Returns the calls at an address of a module, the innermost first: a function, and the
    /// functions that it is inlined into.
    pub(crate) fn frames(&mut self, number: ModuleId, module: &Module, address: u64) -> Vec<Frame> {
        let loader = self.loaders.entry(number).or_insert_with(|| load(module)).as_ref();
        let mut frames = loader.map(|loader| inlined(loader, address)).unwrap_or_default();
        if frames.is_empty() {
            let symbol = loader.and_then(|loader| loader.find_symbol(address));
            let function = symbol.map(|name| addr2line::demangle_auto(name.into(), None).into());
            let file = module.path.rsplit('/').next().unwrap_or_default();
            let function = function.unwrap_or_else(|| format!("[{file}+{address:#x}]"));
            frames.push(Frame { layer: Layer::User, function, file: module.path.clone(), line: 0 });
        }
        frames
    }
}

fn load(module: &Module) -> Option<Loader> {
    // The path may name another file by now, or none.
    let file = module.file.as_ref()?;
    Loader::new(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
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
