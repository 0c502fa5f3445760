//! The names of the calls of sampled stacks.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use crate::kernel::KernelNames;
use crate::names::Names;
use crate::perf_map::PerfMap;
use crate::sampler::Sampler;
use crate::stack::{Address, Frame, Layer, StackId};

/// Finds the names of sampled stacks, and remembers them.
#[derive(Default)]
pub struct Symbols {
    kernel: KernelNames,
    names: Names,
    perf_maps: HashMap<u32, PerfMap>,
    frames: HashMap<Address, Vec<Frame>>,
}

impl std::fmt::Debug for Symbols {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Symbols").field("frames", &self.frames.len()).finish_non_exhaustive()
    }
}

impl Symbols {
    /// Reads the names of the kernel's functions.
    #[must_use]
    pub fn new() -> Self {
        let text = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        Self { kernel: KernelNames::parse(&text), ..Self::default() }
    }

    /// Returns the calls of a stack of `sampler`, the innermost first.
    pub fn frames(&mut self, sampler: &Sampler, stack: StackId) -> Vec<Frame> {
        let collected = sampler.collected();
        let addresses = collected.stacks.stack(stack);
        addresses
            .iter()
            .flat_map(|address| {
                if let Some(frames) = self.frames.get(address) {
                    return frames.clone();
                }
                let frames = match *address {
                    Address::Kernel(address) => vec![self.kernel_frame(address)],
                    Address::Module(number, address) => {
                        let module = collected.processes.modules.module(number);
                        self.names.frames(number, module, address)
                    }
                    Address::Anonymous { process, address } => {
                        match self.jit_frame(process, address) {
                            // The compiler may not have written the map yet.
                            None => return vec![unknown(address)],
                            Some(frame) => vec![frame],
                        }
                    }
                };
                self.frames.insert(*address, frames.clone());
                frames
            })
            .collect()
    }

    /// Forgets the maps of JIT compilers, which then are read again.
    pub fn forget_maps(&mut self) {
        self.perf_maps.clear();
    }

    fn kernel_frame(&self, address: u64) -> Frame {
        let name = self.kernel.function(address);
        let function = name.map_or_else(|| format!("[kernel+{address:#x}]"), str::to_owned);
        Frame { layer: Layer::Kernel, function, file: String::new(), line: 0 }
    }

    fn jit_frame(&mut self, process: u32, address: u64) -> Option<Frame> {
        let map = self
            .perf_maps
            .entry(process)
            .or_insert_with(|| PerfMap::read(Path::new("/tmp"), process));
        let function = map.function(address)?.to_owned();
        Some(Frame { layer: Layer::User, function, file: "[jit]".to_owned(), line: 0 })
    }
}

fn unknown(address: u64) -> Frame {
    let function = format!("[{address:#x}]");
    Frame { layer: Layer::User, function, file: String::new(), line: 0 }
}
