//! Parses the start of an event's line, as three tools print it:
//!
//! ```text
//!          python3-12541   [001] d.h2. 23974.164751: sched_waking: …          the kernel's `trace`
//!          python3-12541 [001] 23974.160010: sched_waking:         …          trace-cmd report
//!          python3 10879 [000] 23759.721652388:   syscalls:sys_enter_brk: …   perf script
//! ```
//!
//! Newer versions of trace-cmd print the kernel's flags as well. trace-cmd may print the name of a
//! buffer before the line. The kernel prints the process's number beside the thread's with
//! `record-tgid`, and perf with `-F +pid`. A name has up to 15 bytes of any kind, which may look
//! like the rest of the line: the parser uses the first position that it can parse.

use crate::format::Source;
use crate::raw::{During, Tid};

/// The start of an event's line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head<'a> {
    pub(super) source: Source,
    /// Name of the thread. trace-cmd and the kernel print the last name that the thread had.
    pub(super) name: &'a str,
    /// `None` if the thread has ended: perf no longer knows its number.
    pub(super) tid: Option<Tid>,
    /// Number of the process, if the line contains it.
    pub(super) process: Option<u32>,
    pub(super) cpu: u32,
    pub(super) during: During,
    /// `None` if the time is not in seconds.
    pub(super) time_ns: Option<u64>,
    /// Name and fields of the event.
    pub(super) rest: &'a str,
}

impl<'a> Head<'a> {
    /// Parses a line; `None` if it is not the line of an event.
    pub(super) fn parse(line: &'a str) -> Option<Self> {
        let mut brackets = line.match_indices(" [").map(|(at, _)| at);
        brackets.find_map(|at| Self::parse_at(line.get(..at)?, line.get(at + 2..)?))
    }

    /// Parses the text before the bracket of the CPU, and the text after the bracket.
    fn parse_at(before: &'a str, after: &'a str) -> Option<Self> {
        let (cpu, after) = after.split_once("] ")?;
        let cpu = decimal(cpu)?;
        let (word, after) = after.trim_start().split_once(' ')?;
        let (during, time, rest) = match word.strip_suffix(':') {
            // perf and older versions of trace-cmd print no flags.
            None => {
                let (time, rest) = after.trim_start().split_once(": ")?;
                (during(word)?, time, rest)
            }
            Some(time) => (During::Task, time, after),
        };
        let time_ns = nanoseconds(time)?;
        let (source, name, tid, process) = thread(before.trim_end())?;
        let name = name.trim_start();
        Some(Self { source, name, tid, process, cpu, during, time_ns, rest: rest.trim_start() })
    }
}

/// Parses the thread: `name-tid`, `name-tid (tgid)`, `name tid`, `name tgid/tid`, or `:-1 -1`.
fn thread(text: &str) -> Option<(Source, &str, Option<Tid>, Option<u32>)> {
    let (text, in_brackets) = match text.strip_suffix(')').and_then(|text| text.rsplit_once('(')) {
        Some((text, process)) => (text.trim_end(), decimal(process.trim())),
        None => (text, None),
    };
    if let Some(name) = text.strip_suffix(" -1").or_else(|| text.strip_suffix(" -1/-1")) {
        return Some((Source::PerfScript, name.trim_end(), None, None));
    }
    let start = text.rfind(|c: char| !c.is_ascii_digit())?;
    let (before, tid) = (&text[..start], Some(Tid(decimal(text[start..].get(1..)?)?)));
    match text.as_bytes()[start] {
        b'-' => Some((Source::TraceCmd, without_buffer(before), tid, in_brackets)),
        b' ' => Some((Source::PerfScript, before.trim_end(), tid, None)),
        b'/' => {
            let (name, process) = before.rsplit_once(' ')?;
            Some((Source::PerfScript, name.trim_end(), tid, Some(decimal(process)?)))
        }
        _ => None,
    }
}

/// Removes the name of the buffer. Names of threads stand in 16 columns, and never fill them.
fn without_buffer(name: &str) -> &str {
    match name.split_once(": ") {
        Some((buffer, name)) if !buffer.contains(' ') && name.chars().count() >= 16 => name,
        _ => name,
    }
}

/// Parses the kernel's flags, such as `d.h2.`. The third flag names the kind of interrupt, if the
/// event happened in one.
fn during(flags: &str) -> Option<During> {
    let known = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '#';
    if !(4..=8).contains(&flags.len()) || !flags.chars().all(known) {
        return None;
    }
    match flags.as_bytes()[2] {
        b'h' | b'H' | b's' | b'z' | b'Z' => Some(During::Interrupt),
        _ => Some(During::Task),
    }
}

/// Parses seconds with up to nine digits after the point; `Some(None)` for a number without a
/// point.
#[expect(clippy::option_option, reason = "not a time, or a time of an unknown unit")]
fn nanoseconds(text: &str) -> Option<Option<u64>> {
    let Some((seconds, fraction)) = text.split_once('.') else {
        return text.parse::<u64>().ok().map(|_| None);
    };
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(seconds) || !is_number(fraction) || !(1..=9).contains(&fraction.len()) {
        return None;
    }
    let seconds: u64 = seconds.parse().ok()?;
    let scale = 10u64.pow(9 - fraction.len() as u32);
    let nanoseconds = fraction.parse::<u64>().ok()? * scale;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds).map(Some)
}

/// Parses a number without a sign.
pub(super) fn decimal(text: &str) -> Option<u32> {
    if text.starts_with('+') { None } else { text.parse().ok() }
}

/// Parses a report of lost events: `CPU:1 [LOST 23 EVENTS]` (the kernel), `CPU:1 [23 EVENTS
/// DROPPED]` (trace-cmd), or either without the number. Returns the CPU and the number, 0 if it is
/// missing.
pub(super) fn lost(line: &str) -> Option<(u32, u64)> {
    let (cpu, loss) = line.strip_prefix("CPU:")?.trim_end().strip_suffix(']')?.split_once(" [")?;
    let count = loss
        .strip_prefix("LOST ")
        .and_then(|loss| loss.strip_suffix("EVENTS"))
        .or_else(|| loss.strip_suffix("EVENTS DROPPED"))?
        .trim_end();
    Some((decimal(cpu)?, if count.is_empty() { 0 } else { count.parse().ok()? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head<'a>(source: Source, name: &'a str, tid: u32, time_ns: u64, rest: &'a str) -> Head<'a> {
        let (tid, time_ns) = (Some(Tid(tid)), Some(time_ns));
        Head { source, name, tid, process: None, cpu: 1, during: During::Task, time_ns, rest }
    }

    #[test]
    fn three_tools_lines_parse_alike() {
        let trace = head(Source::TraceCmd, "python3", 541, 23_974_164_751_000, "x: y");
        let interrupted = Head { during: During::Interrupt, ..trace.clone() };
        let of_process = Head { process: Some(540), ..trace.clone() };
        let perf = head(Source::PerfScript, "python3", 541, 23_974_164_751_002, "x:y: z");
        let lines = [
            ("  python3-541   [001] ..... 23974.164751: x: y", &trace),
            ("  python3-541   [001] d.h2. 23974.164751: x: y", &interrupted),
            ("  python3-541   [001] d.s2. 23974.164751000: x: y", &interrupted),
            ("  python3-541   (    540) [001] ..... 23974.164751: x: y", &of_process),
            ("  python3-541   (-------) [001] ..... 23974.164751: x: y", &trace),
            ("  python3-541 [001] 23974.164751: x:         y", &trace),
            ("b:          python3-541 [001] 23974.164751: x: y", &trace),
            ("  python3   541 [001] 23974.164751002:   x:y: z", &perf),
        ];
        for (line, expected) in lines {
            let mut head = Head::parse(line).unwrap();
            // The width of the gap before the event's fields is not parsed here.
            assert_eq!(head.rest.split_whitespace().count(), 2, "{line}");
            head.rest = expected.rest;
            assert_eq!(&head, expected, "{line}");
        }
        let gone = Head { name: ":-1", tid: None, ..perf.clone() };
        for line in ["  :-1    -1 [001]", "   :-1  -1/-1    [001]"] {
            let line = format!("{line} 23974.164751002:   x:y: z");
            assert_eq!(Head::parse(&line), Some(gone.clone()), "{line}");
        }
        let line = "  python3 540/541 [001] 23974.164751002:   x:y: z";
        assert_eq!(Head::parse(line), Some(Head { process: Some(540), ..perf }));
    }

    #[test]
    fn name_may_contain_spaces_dashes_and_brackets() {
        for name in ["lto cgu.00", "a-1 [000] 1.2", "Web: x", "-", "é-[0]", "x] [1"] {
            for line in [
                format!("{name:>16}-541 [001] 1.000000: x: y"),
                format!("{name:>16} 541 [001] 1.000000: x: y"),
            ] {
                let head = Head::parse(&line).map(|head| (head.name, head.tid, head.rest));
                assert_eq!(head, Some((name, Some(Tid(541)), "x: y")), "{line}");
            }
        }
    }

    #[test]
    fn lines_without_an_event_are_rejected() {
        let lines = [
            "",
            "cpus=2",
            "# tracer: nop",
            "\tffffffff81000000 do_syscall_64+0x10 ([kernel.kallsyms])",
            "sh-541 [001] 1.5",
            "sh-541 [001] .. 1.5: x: y",
            "sh-541 [001] 1.1234567890: x: y",
            "sh-541 [001] 99999999999999999999.1: x: y",
            "sh-541 [001] 99999999999.1: x: y",
            "sh-4294967296 [001] 1.5: x: y",
            "sh541 [001] 1.5: x: y",
            "541 [001] 1.5: x: y",
            "sh-541 [+1] 1.5: x: y",
        ];
        for line in lines {
            assert_eq!(Head::parse(line), None, "{line}");
        }
    }

    #[test]
    fn time_without_a_point_has_unknown_clock() {
        let head = Head::parse("  sh-541 [001] 123456789: x: y").unwrap();
        assert_eq!(head.time_ns, None);
    }

    #[test]
    fn losses_are_counted_if_the_tool_counted_them() {
        assert_eq!(lost("CPU:1 [LOST 23 EVENTS]"), Some((1, 23)));
        assert_eq!(lost("CPU:1 [LOST EVENTS]"), Some((1, 0)));
        assert_eq!(lost("CPU:10 [EVENTS DROPPED]"), Some((10, 0)));
        assert_eq!(lost("CPU:10 [7 EVENTS DROPPED]"), Some((10, 7)));
        assert_eq!(lost("CPU:1 [x EVENTS DROPPED]"), None);
        assert_eq!(lost("CPU 1 is empty"), None);
    }
}
