//! The user part of a call stack.

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64};
use framehop::{FrameAddress, Unwinder as _};

use crate::events::{RawSample, Registers};
use crate::jit_code::JitCode;
use crate::processes::Processes;
use crate::stack::Address;

/// Largest number of user frames of a stack.
const FRAMES_MAX: usize = 96;

/// Rules that were found for addresses.
#[derive(Default)]
pub(crate) struct Cache {
    tables: CacheX86_64,
    jit_code: JitCode,
}

/// Returns the calls of the program, the innermost first. Uses the copied stack if the sample has
/// one, and otherwise the addresses that frame pointers led the kernel to.
pub(crate) fn user_stack(
    sample: &RawSample,
    processes: &mut Processes,
    cache: &mut Cache,
) -> Vec<Address> {
    let process = sample.process;
    processes.prepare(process);
    let addresses = match sample.registers {
        Some(registers) if !sample.stack.is_empty() => {
            unwind(process, &registers, &sample.stack, (processes, cache))
        }
        _ => {
            let callers = sample.user.iter().skip(1).map(|address| address.wrapping_sub(1));
            sample.user.first().copied().into_iter().chain(callers).take(FRAMES_MAX).collect()
        }
    };
    addresses.into_iter().map(|address| processes.locate(process, address)).collect()
}

/// Returns the addresses of the calls: of a caller, the last byte of its call instruction.
fn unwind(
    process: u32,
    registers: &Registers,
    stack: &[u8],
    (processes, cache): (&Processes, &mut Cache),
) -> Vec<u64> {
    let Registers { rbp, rsp, rip, .. } = *registers;
    let Some(unwinder) = processes.unwinder(process) else { return vec![rip] };
    let mut read = |address: u64| {
        let offset = address.checked_sub(rsp).and_then(|offset| usize::try_from(offset).ok());
        let bytes = offset.and_then(|offset| stack.get(offset..)?.first_chunk());
        bytes.map(|bytes| u64::from_le_bytes(*bytes)).ok_or(())
    };
    let mut registers = UnwindRegsX86_64::new(rip, rsp, rbp);
    let mut frame = FrameAddress::from_instruction_pointer(rip);
    let mut addresses = vec![rip];
    while addresses.len() < FRAMES_MAX {
        // Of the innermost call, more than the last instructions may be left to run.
        let jit_frame_bytes = match addresses.len() {
            1 => None,
            _ if !processes.is_anonymous(process, frame.address()) => None,
            _ => cache.jit_code.frame_bytes(process, frame.address()),
        };
        let caller = match jit_frame_bytes {
            Some(bytes) => {
                let at = registers.sp().wrapping_add(bytes);
                registers.set_sp(at.wrapping_add(8));
                read(at).ok()
            }
            // The end of the copy ends the stack with an error, and the frames so far are right.
            None => unwinder
                .unwind_frame(frame, &mut registers, &mut cache.tables, &mut read)
                .ok()
                .flatten(),
        };
        let Some(caller) = caller.and_then(FrameAddress::from_return_address) else { break };
        addresses.push(caller.address_for_lookup());
        frame = caller;
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
        let registers = Registers { rbp: rsp + 16, rsp, rip: 0x3333 };
        let sample =
            RawSample { process: 1, registers: Some(registers), stack, ..RawSample::default() };
        let calls = user_stack(&sample, &mut processes, &mut Cache::default());
        let at = |address| Address::Anonymous { process: 1, address };
        assert_eq!(calls, [at(0x3333), at(0x1110), at(0x2221)]);
    }

    #[test]
    fn code_that_only_calls_is_followed_without_frame_pointers() {
        static CODE: [u8; 5] = [0x48, 0x83, 0xc4, 8, 0xc3];
        let process = std::process::id();
        let mut processes = Processes::default();
        // Without mappings, all code belongs to no file.
        processes.exec(process);
        let trampoline = (&raw const CODE).addr() as u64;
        // The innermost function has a frame pointer. The code that called it has none, and keeps
        // the pointer of its own caller, whose frame is the next.
        let rsp = 0x7000;
        let outer = rsp + 48;
        let words = [0, 0, outer, trampoline, 0, 0x1111, outer + 0x1000, 0x2222];
        let stack = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        let registers = Registers { rbp: rsp + 16, rsp, rip: 0x3333 };
        let sample =
            RawSample { process, registers: Some(registers), stack, ..RawSample::default() };
        let calls = user_stack(&sample, &mut processes, &mut Cache::default());
        let at = |address| Address::Anonymous { process, address };
        assert_eq!(calls, [at(0x3333), at(trampoline - 1), at(0x1110), at(0x2221)]);
    }
}
