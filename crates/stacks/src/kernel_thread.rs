//! Samples of the kernel's threads. They have no registers of a program, which the parser of
//! `perf-event-data` 0.1 expects nevertheless.

use crate::events::{RawSample, split};

/// `PERF_RECORD_SAMPLE`
pub(crate) const SAMPLE: u32 = 9;
/// `PERF_SAMPLE_REGS_ABI_NONE`
const NO_REGISTERS: u64 = 0;

/// Returns the sample in the bytes of a record, if it has the kernel's calls and no registers: the
/// process and the thread, the time, the CPU, the number of calls, the calls, and zeros.
pub(crate) fn sample(record: &[u8]) -> Option<RawSample> {
    let (words, []) = record.as_chunks::<8>() else { return None };
    let [thread, time, cpu, calls, rest @ ..] = words else { return None };
    let (chain, rest) = rest.split_at_checked(u64::from_ne_bytes(*calls).try_into().ok()?)?;
    if rest.is_empty() || rest.iter().any(|word| u64::from_ne_bytes(*word) != NO_REGISTERS) {
        return None;
    }
    let chain: Vec<_> = chain.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    let (kernel, _) = split(&chain);
    let [process, thread] = halves(*thread);
    let [cpu, _] = halves(*cpu);
    let time_ns = u64::from_ne_bytes(*time);
    Some(RawSample { time_ns, cpu, process, thread, kernel, ..RawSample::default() })
}

fn halves(word: [u8; 8]) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = word;
    [[a, b, c, d], [e, f, g, h]].map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_without_registers_has_its_kernel_calls() {
        let pair = |a: u32, b: u32| [a.to_ne_bytes(), b.to_ne_bytes()].concat();
        let word = |word: u64| word.to_ne_bytes().to_vec();
        let head = [pair(7, 8), word(900), pair(3, 0), word(3)].concat();
        let chain = [word(-128_i64 as u64), word(0xffff_8000_0000_0001), word(5)].concat();
        for rest in [vec![0], vec![0, 0]] {
            let rest: Vec<_> = rest.into_iter().flat_map(word).collect();
            let found = sample(&[&*head, &chain, &rest].concat()).expect("a sample");
            assert_eq!((found.time_ns, found.cpu), (900, 3));
            assert_eq!((found.process, found.thread), (7, 8));
            assert_eq!(found.kernel, [0xffff_8000_0000_0001, 5]);
            assert!(found.registers.is_none() && found.stack.is_empty());
        }
        let with_registers = [&*head, &chain, &word(2)].concat();
        for damaged in [&head[..], &[&*head, &chain].concat(), &with_registers, &head[..12], &[]] {
            assert!(sample(damaged).is_none());
        }
        let too_long = [pair(7, 8), word(900), pair(3, 0), word(u64::MAX), word(0)].concat();
        assert!(sample(&too_long).is_none());
    }
}
