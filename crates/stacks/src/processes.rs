//! The executable mappings of processes.

use std::collections::{BTreeMap, HashMap};
use std::fs;

use framehop::{Module as Unwindable, Unwinder as _};

use crate::events::RawMapping;
use crate::modules::{Modules, Section};
use crate::stack::{Address, ModuleId};

/// Finds the callers of an address, in one process.
pub(crate) type Unwinder = framehop::x86_64::UnwinderX86_64<Section>;

/// All processes that are known.
#[derive(Default)]
pub(crate) struct Processes {
    processes: HashMap<u32, Process>,
    pub(crate) modules: Modules,
}

/// A process.
#[derive(Default)]
struct Process {
    /// The mappings of files, by their first address.
    mappings: BTreeMap<u64, Mapping>,
    /// `None` since the mappings changed.
    unwinder: Option<Unwinder>,
    /// `true` if the mappings that existed before the first event were added.
    is_complete: bool,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    end: u64,
    module: ModuleId,
    /// The mapping's first address, less the address that the file states for it.
    bias: u64,
}

impl Processes {
    /// Adds a mapping. It replaces those that it overlaps.
    pub(crate) fn map(&mut self, map: &RawMapping) {
        let module = self.modules.open(map.process, &map.path);
        let stated = self.modules.module(module).stated_address(map.offset);
        let process = self.processes.entry(map.process).or_default();
        let end = map.start.saturating_add(map.length);
        let overlapped = |(start, mapping): (&u64, &Mapping)| {
            (*start < end && map.start < mapping.end).then_some(*start)
        };
        let overlapped: Vec<_> = process.mappings.iter().filter_map(overlapped).collect();
        for start in overlapped {
            process.mappings.remove(&start);
        }
        process.unwinder = None;
        let Some(stated) = stated else { return };
        let bias = map.start.wrapping_sub(stated);
        process.mappings.insert(map.start, Mapping { end, module, bias });
    }

    /// Gives a new process the mappings of its parent.
    pub(crate) fn fork(&mut self, process: u32, parent: u32) {
        self.complete(parent);
        let mappings =
            self.processes.get(&parent).map(|parent| parent.mappings.clone()).unwrap_or_default();
        let child = Process { mappings, unwinder: None, is_complete: true };
        self.processes.insert(process, child);
    }

    /// Removes the mappings of a process that starts another program.
    pub(crate) fn exec(&mut self, process: u32) {
        let started = Process { is_complete: true, ..Process::default() };
        self.processes.insert(process, started);
    }

    pub(crate) fn exit(&mut self, process: u32) {
        self.processes.remove(&process);
    }

    /// Returns the place of an address in its module.
    pub(crate) fn locate(&self, process: u32, address: u64) -> Address {
        let mappings = self.processes.get(&process).map(|process| &process.mappings);
        let below = mappings.and_then(|mappings| mappings.range(..=address).next_back());
        match below.filter(|(_, mapping)| address < mapping.end) {
            Some((_, mapping)) => {
                Address::Module(mapping.module, address.wrapping_sub(mapping.bias))
            }
            None => Address::Anonymous { process, address },
        }
    }

    /// Returns `true` if an address belongs to no file: a JIT compiler made the code there.
    pub(crate) fn is_anonymous(&self, process: u32, address: u64) -> bool {
        matches!(self.locate(process, address), Address::Anonymous { .. })
    }

    /// Returns the unwinder of a process that was [prepared](Self::prepare).
    pub(crate) fn unwinder(&self, process: u32) -> Option<&Unwinder> {
        self.processes.get(&process)?.unwinder.as_ref()
    }

    /// Makes the unwinder of a process, unless it has one for its present mappings.
    pub(crate) fn prepare(&mut self, number: u32) {
        self.complete(number);
        let process = self.processes.entry(number).or_default();
        let modules = &self.modules;
        let mappings = &process.mappings;
        process.unwinder.get_or_insert_with(|| {
            let mut unwinder = Unwinder::new();
            for (start, mapping) in mappings {
                let module = modules.module(mapping.module);
                unwinder.add_module(Unwindable::new(
                    module.path.clone(),
                    *start..mapping.end,
                    mapping.bias,
                    module.sections().clone(),
                ));
            }
            unwinder
        });
    }

    /// Adds the mappings of a process that existed before the first event.
    fn complete(&mut self, number: u32) {
        let process = self.processes.entry(number).or_default();
        if std::mem::replace(&mut process.is_complete, true) {
            return;
        }
        let maps = fs::read(format!("/proc/{number}/maps")).unwrap_or_default();
        for line in String::from_utf8_lossy(&maps).lines() {
            if let Some(map) = parse(number, line) {
                self.map(&map);
            }
        }
    }
}

/// Parses a line of `/proc/PID/maps`, if it is an executable mapping of a file.
fn parse(process: u32, line: &str) -> Option<RawMapping> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (hex(start)?, hex(end)?);
    let is_executable = words.next()?.contains('x');
    let offset = hex(words.next()?)?;
    let path = words.nth(2)?.trim_start();
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let length = end.checked_sub(start)?;
    (is_executable && path.starts_with('/')).then(|| RawMapping {
        process,
        start,
        length,
        offset,
        path: path.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_files_with_code_are_parsed() {
        let line = "55d4ca-55d4cb r-xp 00002000 fe:00 1234                       /usr/bin/a b";
        let map = parse(7, line).expect("a mapping");
        assert_eq!((map.start, map.length, map.offset), (0x55d4ca, 1, 0x2000));
        assert_eq!(map.path, "/usr/bin/a b");
        assert!(parse(7, &line.replace("r-xp", "rw-p")).is_none());
        assert!(parse(7, "7ffe-7fff r-xp 00000000 00:00 0                  [vdso]").is_none());
        assert!(parse(7, "").is_none());
    }

    #[test]
    fn addresses_follow_fork_and_exec() {
        let mut processes = Processes::default();
        let path = std::env::current_exe().expect("a path").to_str().expect("a name").to_owned();
        let map = RawMapping { process: 1, start: 0x10_0000, length: 0x2000, offset: 0, path };
        processes.exec(1);
        processes.map(&map);
        processes.fork(2, 1);
        let module = ModuleId(0);
        assert_eq!(processes.locate(2, 0x10_1234), Address::Module(module, 0x1234));
        processes.exec(2);
        let nowhere = Address::Anonymous { process: 2, address: 0x10_1234 };
        assert_eq!(processes.locate(2, 0x10_1234), nowhere);
        assert_eq!(processes.locate(1, 0x10_1fff), Address::Module(module, 0x1fff));
        // A mapping of no module replaces what it overlaps.
        processes.map(&RawMapping { path: "/nowhere".into(), start: 0x10_1000, ..map });
        let nowhere = Address::Anonymous { process: 1, address: 0x10_0000 };
        assert_eq!(processes.locate(1, 0x10_0000), nowhere);
    }
}
