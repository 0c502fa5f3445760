//! Machine code of JIT compilers that has neither tables nor frame pointers, and is so simple that
//! its end shows where the return address is.
//!
//! Python's `-X perf` calls each of its functions from such a piece of code: it makes room on the
//! stack, calls, gives the room back, and returns.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Largest number of addresses that are remembered.
const KNOWN_MAX: usize = 1 << 16;

/// The ends of pieces of code, as far as they were looked at.
#[derive(Debug, Default)]
pub(crate) struct JitCode {
    /// By process and return address.
    known: HashMap<(u32, u64), Option<u64>>,
}

impl JitCode {
    /// Returns the number of bytes between the stack pointer and the return address when a call
    /// returns to `address`, if the code there shows it. The process must still live.
    pub(crate) fn frame_bytes(&mut self, process: u32, address: u64) -> Option<u64> {
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        let read = || {
            let mut code = [0; 5];
            let memory = File::open(format!("/proc/{process}/mem")).ok()?;
            memory.read_exact_at(&mut code, address).ok()?;
            frame_bytes(code)
        };
        *self.known.entry((process, address)).or_insert_with(read)
    }
}

/// Decodes `add $bytes, %rsp; ret`.
fn frame_bytes(code: [u8; 5]) -> Option<u64> {
    match code {
        [0x48, 0x83, 0xc4, bytes @ 0..=0x7f, 0xc3] => Some(bytes.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_a_function_is_decoded() {
        assert_eq!(frame_bytes([0x48, 0x83, 0xc4, 8, 0xc3]), Some(8));
        assert_eq!(frame_bytes([0x48, 0x83, 0xc4, 8, 0x5d]), None, "pop %rbp");
        assert_eq!(frame_bytes([0x48, 0x83, 0xc4, 0x88, 0xc3]), None, "a negative number");
    }

    #[test]
    fn code_of_a_process_is_read() {
        static CODE: [u8; 5] = [0x48, 0x83, 0xc4, 0x18, 0xc3];
        let (process, mut code) = (std::process::id(), JitCode::default());
        assert_eq!(code.frame_bytes(process, (&raw const CODE).addr() as u64), Some(0x18));
        assert_eq!(code.frame_bytes(process, 0), None);
    }
}
