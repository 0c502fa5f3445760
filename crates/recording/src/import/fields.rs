//! Parses the name and the fields of an event, as the kernel and trace-cmd's plugins print them.

use super::head::decimal;
use crate::format::CPUS_MAX;
use crate::raw::{CallSite, Function, RawKind, Tid};
use crate::record::{Call, FaultCode, FlushReason, Left};

/// The event of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// An event that a recording uses.
    Event(RawKind),
    /// An event that no recording uses.
    Ignored,
    /// An event of an unknown kind.
    Unknown,
}

/// The reason why an event of a known kind cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParseError {
    /// Fields are missing, or have an unknown format.
    Format,
    /// A function is printed as its address.
    Symbol,
}

/// `smp_call_function_many_cond`, which sends flush interrupts, and the functions that it may be
/// inlined into; and the function that sends those of the engine in Linux.
const CALL_SITES: [&str; 5] = [
    "smp_call_function_many_cond",
    "on_each_cpu_cond_mask",
    "smp_call_function_many",
    "smp_call_function",
    "shootdown_os_ring",
];

/// The start of the names of perf's own records.
pub(super) const PERF_RECORD: &str = "PERF_RECORD_";

/// The system calls that a recording contains.
const CALLS: [&str; 7] = ["mmap", "munmap", "mprotect", "madvise", "mremap", "brk", "msync"];

/// Parses the text that follows the head of a line.
pub(super) fn parse(rest: &str) -> Result<Parsed, ParseError> {
    // perf's own records have no colon after their name.
    if let Some(record) = rest.strip_prefix(PERF_RECORD) {
        return lost(record).ok_or(ParseError::Format);
    }
    // In the kernel's own text, system calls have the syntax of calls.
    if let Some(call) = rest.strip_prefix("sys_") {
        if let Some((name, arguments)) = call.split_once('(').filter(|(name, _)| is_word(name)) {
            let arguments = arguments.trim_end().strip_suffix(')').ok_or(ParseError::Format)?;
            return entered(name, arguments);
        }
        if let Some((name, value)) = call.split_once(" -> ").filter(|(name, _)| is_word(name)) {
            return returned(name, value);
        }
    }
    let (name, text) = match rest.split_once(": ") {
        Some((name, text)) => (name, text.trim_start()),
        None => (rest.strip_suffix(':').unwrap_or(rest), ""),
    };
    let name = name.rsplit(':').next().unwrap_or_default();
    if let Some(call) = name.strip_prefix("sys_enter_") {
        return entered(call, text);
    }
    if let Some(call) = name.strip_prefix("sys_exit_") {
        return returned(call, text);
    }
    event(name, text)
}

fn event(name: &str, text: &str) -> Result<Parsed, ParseError> {
    let kind = match name {
        "sched_switch" => switch(text),
        "sched_waking" => {
            word(text, " pid=").and_then(decimal).map(|tid| RawKind::Waking { tid: Tid(tid) })
        }
        "sched_wakeup" => queued(text),
        "task_newtask" => new_task(text),
        "sched_process_fork" => fork(text),
        "sched_process_exec" => exec(text),
        "sched_process_exit" => Some(RawKind::Exit),
        "page_fault_user" | "page_fault_kernel" => return fault(text).ok_or(ParseError::Format),
        "tlb_flush" => flush(text),
        "csd_queue_cpu" => {
            let function = symbol(word(text, "func=").ok_or(ParseError::Format)?)?;
            let is_flush = function == "flush_tlb_func";
            let function = if is_flush { Function::FlushSpace } else { Function::Other };
            let target = word(text, "cpu=").and_then(decimal);
            target.map(|target| RawKind::QueueCall { function, target })
        }
        "ipi_send_cpu" | "ipi_send_cpumask" => {
            let site = call_site(text)?;
            let targets = match name {
                "ipi_send_cpu" => word(text, "cpu=").and_then(decimal).map(|target| vec![target]),
                _ => word(text, "cpumask=").and_then(mask),
            };
            targets.map(|targets| RawKind::Ipi { targets, site })
        }
        _ => return Ok(Parsed::Unknown),
    };
    kind.map(Parsed::Event).ok_or(ParseError::Format)
}

/// Parses a record of perf, such as `LOST lost 14`.
fn lost(record: &str) -> Option<Parsed> {
    let Some(count) = record.strip_prefix("LOST ") else { return Some(Parsed::Ignored) };
    let count = count.trim().strip_prefix("lost ")?.parse().ok()?;
    Some(Parsed::Event(RawKind::Lost { count }))
}

/// Parses `prev_comm=a prev_pid=1 prev_prio=120 prev_state=S ==> next_comm=b next_pid=2
/// next_prio=120`, or trace-cmd's `a:1 [120] S ==> b:2 [120]`.
fn switch(text: &str) -> Option<RawKind> {
    if text.starts_with("prev_comm=") {
        let (text, next) = text.rsplit_once(" next_pid=")?;
        let next = Tid(decimal(next.split(' ').next()?)?);
        let (text, next_name) = text.rsplit_once(" ==> next_comm=")?;
        let (_, state) = text.rsplit_once(" prev_state=")?;
        return Some(RawKind::Switch { left: left(state), next, next_name: next_name.to_owned() });
    }
    let (text, _) = text.trim_end().strip_suffix(']')?.rsplit_once(" [")?;
    let (text, next) = text.rsplit_once(':')?;
    let next = Tid(decimal(next)?);
    let (text, next_name) = text.rsplit_once(" ==> ")?;
    let (_, state) = text.rsplit_once("] ")?;
    Some(RawKind::Switch { left: left(state), next, next_name: next_name.to_owned() })
}

/// Parses the letters of a state: `R`, `R+`, `S`, `D|K`, `Z`, `X`.
fn left(state: &str) -> Left {
    let state = state.split(' ').next().unwrap_or_default();
    if state.contains(['Z', 'X', 'x']) {
        Left::Dead
    } else if state.contains('R') {
        Left::Runnable
    } else {
        Left::Blocked
    }
}

/// Parses `comm=b pid=2 prio=120 target_cpu=001`.
fn queued(text: &str) -> Option<RawKind> {
    let tid = Tid(decimal(word(text, " pid=")?)?);
    Some(RawKind::Queued { tid, target: decimal(word(text, " target_cpu=")?)? })
}

/// Parses `pid=2 comm=b clone_flags=3d0f00 oom_score_adj=0`.
fn new_task(text: &str) -> Option<RawKind> {
    let tid = Tid(decimal(word(text, "pid=")?)?);
    let (_, text) = text.split_once(" comm=")?;
    let (name, flags) = text.rsplit_once(" clone_flags=")?;
    let clone_flags = Some(hexadecimal(flags.split(' ').next()?)?);
    Some(RawKind::NewTask { tid, clone_flags, name: name.to_owned() })
}

/// Parses `comm=a pid=1 child_comm=b child_pid=2`.
fn fork(text: &str) -> Option<RawKind> {
    let (text, tid) = text.rsplit_once(" child_pid=")?;
    let tid = Tid(decimal(tid.trim_end())?);
    let (_, name) = text.split_once(" child_comm=")?;
    Some(RawKind::NewTask { tid, clone_flags: None, name: name.to_owned() })
}

/// Parses `filename=/usr/bin/b pid=2 old_pid=2`.
fn exec(text: &str) -> Option<RawKind> {
    let (file, _) = text.strip_prefix("filename=")?.rsplit_once(" pid=")?;
    Some(RawKind::Exec { file: file.to_owned() })
}

/// Parses `address=0x7f00 ip=0x5500 error_code=0x6`.
fn fault(text: &str) -> Option<Parsed> {
    let address = word(text, "address=")?;
    // The kernel's own addresses are printed as symbols; no program faults there.
    if address.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        return Some(Parsed::Ignored);
    }
    let address = hexadecimal(address)?;
    let code = FaultCode(u32::try_from(hexadecimal(word(text, " error_code=")?)?).ok()?);
    Some(Parsed::Event(RawKind::Fault { address, code }))
}

/// Parses `pages:-1 reason:local MM shootdown (3)`, or trace-cmd's `pages=-1 reason=…`.
fn flush(text: &str) -> Option<RawKind> {
    let pages = word(text, "pages:").or_else(|| word(text, "pages="))?;
    let pages = if pages == "-1" { None } else { Some(pages.parse().ok()?) };
    let (_, number) = text.trim_end().strip_suffix(')')?.rsplit_once('(')?;
    let reason = match number {
        "0" => FlushReason::TaskSwitch,
        "1" => FlushReason::Remote,
        "2" => FlushReason::Local,
        "3" => FlushReason::LocalSpace,
        "4" => FlushReason::Request,
        "5" => FlushReason::WrongCpu,
        _ => return None,
    };
    Some(RawKind::Flush { reason, pages })
}

fn call_site(text: &str) -> Result<CallSite, ParseError> {
    // A wake-up has no callback. Its sender does not matter.
    let callback = word(text, " callback=").ok_or(ParseError::Format)?;
    if callback.trim_start_matches("0x").bytes().all(|byte| byte == b'0') {
        return Ok(CallSite::Other);
    }
    let site = symbol(word(text, " callsite=").ok_or(ParseError::Format)?)?;
    Ok(if CALL_SITES.contains(&site) { CallSite::CallFunction } else { CallSite::Other })
}

/// Returns the name of a function, without the offset (`+0x20/0x60`) and a compiler's suffix
/// (`.isra.0`).
fn symbol(text: &str) -> Result<&str, ParseError> {
    if !text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        return Err(ParseError::Symbol);
    }
    Ok(text.split(['+', '.', ' ']).next().unwrap_or_default())
}

/// Parses CPUs: `0000000e` or `1,00000000` (hexadecimal, 32 CPUs to a group), or `1-3,5`.
fn mask(text: &str) -> Option<Vec<u32>> {
    let is_list = text.contains('-') || text.split(',').skip(1).any(|group| group.len() != 8);
    let mut cpus = Vec::new();
    if is_list {
        for range in text.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (decimal(first)?, decimal(last)?);
            // Overlapping ranges could expand a short text to more CPUs than there are.
            if last >= CPUS_MAX || cpus.len() > CPUS_MAX as usize {
                return None;
            }
            cpus.extend(first..=last);
        }
        return Some(cpus);
    }
    for (group, digits) in text.rsplit(',').enumerate() {
        let bits = u32::from_str_radix(digits, 16).ok()?;
        let first = u32::try_from(group).ok()? * 32;
        cpus.extend((0..32).filter(|bit| bits & 1 << bit != 0).map(|bit| first + bit));
    }
    Some(cpus)
}

/// Parses the arguments of a system call, such as `addr: 0x7fce7b769000, len: 0x94d7`.
fn entered(name: &str, arguments: &str) -> Result<Parsed, ParseError> {
    if !CALLS.contains(&name) {
        return Ok(Parsed::Unknown);
    }
    let call = call(name, arguments).ok_or(ParseError::Format)?;
    Ok(Parsed::Event(RawKind::Enter(call)))
}

/// Parses arguments by their order, because their names differ among calls and versions.
fn call(name: &str, arguments: &str) -> Option<Call> {
    let value = |argument: &str| {
        let (_, value) = argument.rsplit_once(": ")?;
        hexadecimal(value.trim().split(' ').next()?)
    };
    let values: Vec<u64> = arguments.split(',').map(value).collect::<Option<_>>()?;
    // Linux takes these arguments as `int`, so that only their low half is significant.
    let low = |value: u64| value as u32;
    Some(match (name, values.as_slice()) {
        ("mmap", &[address, length, protection, flags, _, _]) => {
            Call::Map { address, length, protection: low(protection), flags: low(flags) }
        }
        ("munmap", &[address, length]) => Call::Unmap { address, length },
        ("mprotect", &[address, length, protection]) => {
            Call::Protect { address, length, protection: low(protection) }
        }
        ("madvise", &[address, length, advice]) => {
            Call::Advise { address, length, advice: low(advice) }
        }
        ("mremap", &[address, old_length, new_length, flags, new_address]) => {
            Call::Remap { address, old_length, new_length, flags: low(flags), new_address }
        }
        ("msync", &[address, length, flags]) => Call::Sync { address, length, flags: low(flags) },
        ("brk", &[address]) => Call::Break { address },
        _ => return None,
    })
}

/// Parses the result of a system call, such as `0x7fce7b773000`, `0xfffffffffffffff4` or `-12`.
fn returned(name: &str, value: &str) -> Result<Parsed, ParseError> {
    if !CALLS.contains(&name) {
        return Ok(Parsed::Unknown);
    }
    let value = value.trim();
    let value = match value.strip_prefix('-') {
        Some(_) => value.parse().ok(),
        None => hexadecimal(value).map(u64::cast_signed),
    };
    let value = value.ok_or(ParseError::Format)?;
    Ok(Parsed::Event(RawKind::Return { value }))
}

/// Returns the text between a key and the next space. The last occurrence of the key counts,
/// because names stand first and may contain a key.
fn word<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.rsplit_once(key)?.1.split(' ').next()
}

/// Parses a hexadecimal number, with or without `0x`.
fn hexadecimal(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    if digits.starts_with('+') { None } else { u64::from_str_radix(digits, 16).ok() }
}

fn is_word(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(rest: &str) -> RawKind {
        match parse(rest) {
            Ok(Parsed::Event(kind)) => kind,
            other => panic!("{rest}: {other:?}"),
        }
    }

    #[test]
    fn names_may_look_like_the_fields_after_them() {
        let next = |next_name: &str| RawKind::Switch {
            left: Left::Blocked,
            next: Tid(7),
            next_name: next_name.to_owned(),
        };
        let kernel = "sched_switch: prev_comm=a next_pid=5 b prev_pid=1 prev_prio=120 prev_state=S \
                      ==> next_comm=b next_pid=3 next_pid=7 next_prio=120";
        assert_eq!(event(kernel), next("b next_pid=3"));
        let trace_cmd = "sched_switch:         a:1 [120] S:1 [120] S ==> b [1] R:2:7 [120]";
        assert_eq!(event(trace_cmd), next("b [1] R:2"));
        let waking = "sched:sched_waking: comm=a pid=5 pid=7 prio=120 target_cpu=000";
        assert_eq!(event(waking), RawKind::Waking { tid: Tid(7) });
        let queued = "sched_wakeup: comm=a pid=7 prio=120 target_cpu=001";
        assert_eq!(event(queued), RawKind::Queued { tid: Tid(7), target: 1 });
        let made = "task_newtask: pid=7 comm=a clone_flags=9 clone_flags=3d0f00 oom_score_adj=0";
        let name = "a clone_flags=9".to_owned();
        let expected = RawKind::NewTask { tid: Tid(7), clone_flags: Some(0x3d_0f00), name };
        assert_eq!(event(made), expected);
    }

    #[test]
    fn state_gives_how_a_thread_left() {
        assert_eq!(["R", "R+", "S", "D|K", "I", "Z", "X", "x"].map(left), {
            use Left::{Blocked, Dead, Runnable};
            [Runnable, Runnable, Blocked, Blocked, Blocked, Dead, Dead, Dead]
        });
    }

    #[test]
    fn targets_are_a_mask_or_a_list() {
        assert_eq!(mask("e"), Some(vec![1, 2, 3]));
        assert_eq!(mask("00000003"), Some(vec![0, 1]));
        assert_eq!(mask("2,80000001"), Some(vec![0, 31, 33]));
        assert_eq!(mask("1-3,5"), Some(vec![1, 2, 3, 5]));
        assert_eq!(mask("1,3"), Some(vec![1, 3]));
        assert_eq!(mask("0-4294967295"), None);
        assert_eq!(mask(&"0-8191,".repeat(5000)), None);
        assert_eq!(mask("ARRAY[0e"), None);
        assert_eq!(mask(""), None);
    }

    #[test]
    fn only_function_calls_can_flush() {
        let site = |callsite: &str, callback: &str| {
            parse(&format!("ipi_send_cpu: cpu=1 callsite={callsite} callback={callback}"))
        };
        let ipi = |site| Ok(Parsed::Event(RawKind::Ipi { targets: vec![1], site }));
        let callback = "generic_smp_call_function_single_interrupt+0x0/0x10";
        let inlined = "on_each_cpu_cond_mask+0x20/0x60";
        assert_eq!(site(inlined, callback), ipi(CallSite::CallFunction));
        let cloned = "smp_call_function_many_cond.isra.0+0x1f";
        assert_eq!(site(cloned, callback), ipi(CallSite::CallFunction));
        let port = site("shootdown_os_ring+0x31", "flush_tlb_func+0x0/0x40");
        assert_eq!(port, ipi(CallSite::CallFunction));
        assert_eq!(site("ttwu_queue_wakelist+0x11d", callback), ipi(CallSite::Other));
        assert_eq!(site("0xffffffff81000000", "0x0"), ipi(CallSite::Other));
        assert_eq!(site("0xffffffff81000000", callback), Err(ParseError::Symbol));
    }

    #[test]
    fn arguments_are_parsed_by_order() {
        let call = |rest: &str| match event(rest) {
            RawKind::Enter(call) => call,
            other => panic!("{other:?}"),
        };
        let map = Call::Map { address: 0, length: 0x2000, protection: 3, flags: 0x22 };
        let arguments = "addr: 0x0, len: 0x2000, prot: 0x3, flags: 0x22, fd: 0xffffffff, off: 0x0";
        assert_eq!(call(&format!("sys_enter_mmap:  {arguments}")), map);
        assert_eq!(call(&format!("sys_mmap({arguments})")), map);
        let arguments = "addr: 1000, old_len: 0x1000, new_len: 0x2000, flags: 0x1, new_addr: 0x0";
        let remap = Call::Remap {
            address: 0x1000,
            old_length: 0x1000,
            new_length: 0x2000,
            flags: 1,
            new_address: 0,
        };
        assert_eq!(call(&format!("syscalls:sys_enter_mremap: {arguments}")), remap);
        let advice = Call::Advise { address: 4096, length: 4096, advice: u32::MAX };
        let arguments = "start: 0x1000, len_in: 0x1000, behavior: 0xffffffffffffffff";
        assert_eq!(call(&format!("sys_enter_madvise: {arguments}")), advice);
    }

    #[test]
    fn results_are_addresses_or_negative() {
        let value = |rest| match event(rest) {
            RawKind::Return { value } => value,
            other => panic!("{other:?}"),
        };
        assert_eq!(value("sys_exit_mmap:        0x7fce7b773000"), 0x7fce_7b77_3000);
        assert_eq!(value("sys_munmap -> 0xffffffffffffffea"), -22);
        assert_eq!(value("syscalls:sys_exit_brk: -12"), -12);
    }

    #[test]
    fn known_events_must_parse_and_unknown_are_skipped() {
        let malformed = [
            "sched_switch: prev_comm=a",
            "sched_switch: a:1 [120] S ==> b:x [120]",
            "sched_waking: comm=a pid=-1 prio=120",
            "sched_waking: comm=a pid=99999999999 prio=120",
            "task_newtask: pid=1 comm=a clone_flags=xyz oom_score_adj=0",
            "sched_process_fork: comm=a pid=1 child_comm=b",
            "sched_process_exec: pid=1",
            "page_fault_user: address=0x1 ip=0x1 error_code=0x100000000",
            "page_fault_user: address=0x10000000000000000 ip=0x1 error_code=0x1",
            "tlb_flush: pages:1 reason:something new (6)",
            "tlb_flush: pages:-2 reason:local MM shootdown (3)",
            "ipi_send_cpumask: [FAILED TO PARSE] cpumask=ARRAY[0e, 00]",
            "ipi_send_cpu: cpu=x callsite=a+0x1 callback=b+0x1",
            "sys_munmap(addr: 0x1000, len: 0x10",
            "sys_munmap(addr: 0x1000)",
            "sys_enter_brk:",
            "sys_exit_brk: +1",
            "sys_brk -> ",
            "PERF_RECORD_LOST lost many",
        ];
        for rest in malformed {
            assert_eq!(parse(rest), Err(ParseError::Format), "{rest}");
        }
        for rest in ["irq_handler_entry: irq=1", "sys_enter_read: fd: 0", "sys_read -> 0x1", "x:"] {
            assert_eq!(parse(rest), Ok(Parsed::Unknown), "{rest}");
        }
        assert_eq!(parse("PERF_RECORD_COMM: a:1/1"), Ok(Parsed::Ignored));
    }
}
