//! The user part of a call stack.

use framehop::Unwinder as _;
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64};

use crate::events::{RawSample, Registers};
use crate::processes::Processes;
use crate::stack::Address;

/// Largest number of user frames of a stack.
const FRAMES_MAX: usize = 96;

/// Rules that were found for addresses.
pub(crate) type Cache = CacheX86_64;

/// Returns the calls of the program, the innermost first. Uses the copied stack if the sample has
/// one, and otherwise the addresses that frame pointers led the kernel to.
pub(crate) fn user_stack(
    sample: &RawSample,
    processes: &mut Processes,
    cache: &mut Cache,
) -> Vec<Address> {
    let process = sample.process;
    let addresses = match sample.registers {
        Some(registers) if !sample.stack.is_empty() => {
            unwind(&registers, &sample.stack, processes.unwinder(process), cache)
        }
        _ => {
            processes.unwinder(process);
            let callers = sample.user.iter().skip(1).map(|address| address.wrapping_sub(1));
            sample.user.first().copied().into_iter().chain(callers).take(FRAMES_MAX).collect()
        }
    };
    addresses.into_iter().map(|address| processes.locate(process, address)).collect()
}

/// Returns the addresses of the calls: of a caller, the last byte of its call instruction.
fn unwind(
    registers: &Registers,
    stack: &[u8],
    unwinder: &crate::processes::Unwinder,
    cache: &mut Cache,
) -> Vec<u64> {
    let Registers { rbp, rsp, rip, .. } = *registers;
    let mut read = |address: u64| {
        let offset = address.checked_sub(rsp).and_then(|offset| usize::try_from(offset).ok());
        let bytes = offset.and_then(|offset| stack.get(offset..)?.first_chunk());
        bytes.map(|bytes| u64::from_le_bytes(*bytes)).ok_or(())
    };
    let mut frames =
        unwinder.iter_frames(rip, UnwindRegsX86_64::new(rip, rsp, rbp), cache, &mut read);
    let mut addresses = Vec::new();
    // The end of the copy ends the stack with an error, and the frames so far are right.
    while let Ok(Some(frame)) = frames.next()
        && addresses.len() < FRAMES_MAX
    {
        addresses.push(frame.address_for_lookup());
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_without_tables_is_followed_by_frame_pointers() {
        let mut processes = Processes::default();
        processes.exec(1);
        // Two frames: each has the caller's frame pointer, and then the return address.
        let (rsp, outer) = (0x7000, 0x7020_u64);
        let words = [0, 0, outer, 0x1111, outer + 0x1000, 0x2222];
        let stack = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let registers = Registers { rbp: rsp + 16, rsp, rip: 0x3333, ..Registers::default() };
        let sample =
            RawSample { process: 1, registers: Some(registers), stack, ..RawSample::default() };
        let calls = user_stack(&sample, &mut processes, &mut Cache::new());
        let at = |address| Address::Anonymous { process: 1, address };
        assert_eq!(calls, [at(0x3333), at(0x1110), at(0x2221)]);
    }
}
