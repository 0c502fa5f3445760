//! The names of the calls of sampled stacks.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::mem;

use shootdown_recording::record::{Frame, Layer};

use crate::kernel::KernelNames;
use crate::names::Names;
use crate::perf_map::PerfMap;
use crate::sampler::Sampler;
use crate::stack::{Address, StackId};

/// Finds the names of sampled stacks, and remembers them.
#[derive(Default)]
pub struct Symbols {
    kernel: KernelNames,
    names: Names,
    perf_maps: HashMap<u32, PerfMap>,
    frames: HashMap<Address, Vec<Frame>>,
    /// The process and the address of calls that no map had when they were asked for.
    unnamed: BTreeSet<(u32, u64)>,
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
                        self.names.frames((number, module), address, &sampler.debug_directories)
                    }
                    Address::Anonymous { process, address } => {
                        match self.jit_frame(process, address) {
                            // The compiler may not have written the map yet.
                            None => {
                                self.unnamed.insert((process, address));
                                return vec![unknown(process, address)];
                            }
                            Some(frame) => vec![frame],
                        }
                    }
                };
                self.frames.insert(*address, frames.clone());
                frames
            })
            .collect()
    }

    /// Returns the calls that had no name when [`frames`](Self::frames) returned them, and have one
    /// now, with their names. Some JIT compilers write their map when the program ends.
    pub fn late_names(&mut self) -> Vec<(Frame, Frame)> {
        let mut named = Vec::new();
        for (process, address) in mem::take(&mut self.unnamed) {
            match self.jit_frame(process, address) {
                Some(frame) => named.push((unknown(process, address), frame)),
                None => drop(self.unnamed.insert((process, address))),
            }
        }
        named
    }

    fn kernel_frame(&self, address: u64) -> Frame {
        let name = self.kernel.function(address);
        let function = name.map_or_else(|| format!("[kernel+{address:#x}]"), str::to_owned);
        Frame { layer: Layer::Kernel, function, file: String::new(), line: 0 }
    }

    fn jit_frame(&mut self, process: u32, address: u64) -> Option<Frame> {
        self.perf_maps.entry(process).or_insert_with(|| PerfMap::of(process)).frame(address)
    }
}

/// Returns a call without a name. Its file is the one that may name it.
fn unknown(process: u32, address: u64) -> Frame {
    let (function, file) = (format!("[{address:#x}]"), format!("perf-{process}.map"));
    Frame { layer: Layer::User, function, file, line: 0 }
}
