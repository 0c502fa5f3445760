//! Samples of flush requests, and their call stacks before and after names are known.

use std::collections::HashMap;

/// The number of a distinct call stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(pub(crate) u32);

/// A sampled flush request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Time on `CLOCK_MONOTONIC`, in nanoseconds.
    pub time_ns: u64,
    /// The CPU that requested the flush.
    pub cpu: u32,
    /// Linux's number of the process (`tgid`).
    pub process: u32,
    /// Linux's number of the thread.
    pub thread: u32,
    /// Number of flush requests for which this sample stands: those since the last sample on this
    /// CPU, with this one.
    pub requests: u64,
    /// The call stack.
    pub stack: StackId,
}

/// The number of an executable or library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ModuleId(pub(crate) u32);

/// The address of a call, before its name is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    Kernel(u64),
    /// An address as the file of the module states it.
    Module(ModuleId, u64),
    /// An address in memory that belongs to no file: code of a JIT compiler.
    Anonymous {
        process: u32,
        address: u64,
    },
}

/// The distinct stacks, each with the innermost call first.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    numbers: HashMap<Box<[Address]>, StackId>,
    stacks: Vec<Box<[Address]>>,
}

impl Stacks {
    /// Returns the number of a stack.
    pub(crate) fn number(&mut self, stack: &[Address]) -> StackId {
        if let Some(number) = self.numbers.get(stack) {
            return *number;
        }
        let number = StackId(self.stacks.len() as u32);
        self.stacks.push(stack.into());
        self.numbers.insert(stack.into(), number);
        number
    }

    pub(crate) fn stack(&self, number: StackId) -> &[Address] {
        self.stacks.get(number.0 as usize).map_or(&[], |stack| stack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stacks_have_one_number() {
        let mut stacks = Stacks::default();
        let (one, other) = ([Address::Kernel(1), Address::Kernel(2)], [Address::Kernel(1)]);
        let numbers = [&one[..], &other, &one].map(|stack| stacks.number(stack));
        assert_eq!((numbers[0], numbers[1]), (numbers[2], StackId(1)));
        assert_eq!(stacks.stack(numbers[1]), other);
    }
}
