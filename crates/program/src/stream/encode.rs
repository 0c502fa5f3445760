//! Writes a workload down.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::codes::Field;
use super::{MAGIC, VERSION};
use crate::operation::{Operation, ProgramId, Start, Workload};

/// All of a workload: the programs that run from the beginning, and those that any of them starts,
/// or that these start in turn.
///
/// A workload that is read as it runs is used up by this.
#[must_use]
pub fn encode(workload: &dyn Workload) -> Vec<u8> {
    let starts = workload.processes();
    let programs = programs(workload, &starts);
    let name = workload.name();
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
    programs.values().for_each(|steps| out.extend(steps));
    out
}

/// The steps of each program that can be come to.
fn programs(workload: &dyn Workload, starts: &[Start]) -> BTreeMap<ProgramId, Vec<u8>> {
    let mut programs = BTreeMap::new();
    let mut found: VecDeque<ProgramId> = starts.iter().map(|start| start.program).collect();
    while let Some(program) = found.pop_front() {
        if programs.contains_key(&program) {
            continue;
        }
        let mut steps = Vec::new();
        for step in workload.steps(program) {
            if let Operation::Fork(other) | Operation::Spawn(other) = step {
                found.push_back(other);
            }
            step.put(&mut steps);
        }
        programs.insert(program, steps);
    }
    programs
}
