//! Encodes a workload.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::codes::Field;
use super::{Encoded, MAGIC, VERSION};
use crate::operation::{Operation, ProgramId, Start, Workload};

/// A workload that is encoded step by step, in any order of its programs.
#[derive(Clone, Debug, Default)]
pub struct Encoder {
    starts: Vec<Start>,
    programs: BTreeMap<ProgramId, Vec<u8>>,
}

impl Encoder {
    /// Adds a thread that starts with the workload.
    pub fn start(&mut self, start: Start) {
        self.starts.push(start);
    }

    /// Adds a step at the end of a program.
    pub fn push(&mut self, program: ProgramId, step: &Operation) {
        step.put(self.programs.entry(program).or_default());
    }

    /// Returns the workload, with this name.
    #[must_use]
    pub fn finish(self, name: &str) -> Encoded {
        let Self { starts, programs } = self;
        let mut out = MAGIC.to_vec();
        VERSION.put(&mut out);
        name.len().put(&mut out);
        out.extend(name.as_bytes());
        starts.len().put(&mut out);
        starts.iter().for_each(|start| start.put(&mut out));
        programs.len().put(&mut out);
        let mut next = 0;
        for (program, steps) in &programs {
            (program.0 - next).put(&mut out);
            next = program.0.wrapping_add(1);
            steps.len().put(&mut out);
        }
        // Each program is freed when it has been copied.
        let program_count = programs.len();
        programs.into_values().for_each(|steps| out.extend(steps));
        Encoded { name: name.into(), starts, program_count, bytes: out.into() }
    }
}

/// Encodes the programs that start with a workload, and all programs that these start.
///
/// This consumes the steps of a workload that is read as it runs.
#[must_use]
pub fn encode(workload: &dyn Workload) -> Encoded {
    let mut encoder = Encoder { starts: workload.processes(), ..Encoder::default() };
    let mut found: VecDeque<_> = encoder.starts.iter().map(|start| start.program).collect();
    while let Some(program) = found.pop_front() {
        if encoder.programs.contains_key(&program) {
            continue;
        }
        // A program without steps also has an entry.
        encoder.programs.insert(program, Vec::new());
        for step in workload.steps(program) {
            if let Operation::Fork(other) | Operation::Spawn(other) = step {
                found.push_back(other);
            }
            encoder.push(program, &step);
        }
    }
    encoder.finish(&workload.name())
}
