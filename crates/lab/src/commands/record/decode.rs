//! The recorded events, and the decoding of their bytes.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use shootdown_recording::raw::{CallSite, During, Function, RawEvent, RawKind, Tid};
use shootdown_recording::record::{Call, FaultCode, FlushReason, Left};
use shootdown_stacks::KernelNames;

use super::Purpose;
use super::error::RecordError;
use super::layout::{Field, Layout};
use super::recorded::OtherCall;
use super::symbols::Symbols;
use super::tracefs::{Scope, Tracefs};

/// An event that is recorded.
#[derive(Debug)]
pub(super) struct Wanted {
    scope: Scope,
    /// The directory of the event below `events`.
    event: &'static str,
    /// The events that are recorded, as the kernel selects them; `None` for all.
    filter: Option<&'static str>,
    /// The fields that `read` reads by their indices.
    fields: &'static [&'static str],
    read: Read,
}

impl Wanted {
    const fn only(self, filter: &'static str) -> Self {
        Self { filter: Some(filter), ..self }
    }
}

type Read = fn(&Values<'_>) -> Option<RawKind>;

/// All recorded events. Linux 6.4 and later versions have each of them, and earlier ones all but
/// those of [`INTERRUPTS`]: requests are then inferred from the flushes of their targets.
pub(super) const WANTED: &[Wanted] = &[
    system("sched/sched_switch", &["prev_state", "next_pid", "next_comm"], |it| {
        let left = left(it.number(0)?);
        Some(RawKind::Switch { left, next: it.tid(1)?, next_name: it.text(2)? })
    }),
    system("task/task_newtask", &["pid", "comm", "clone_flags"], |it| {
        let clone_flags = Some(it.number(2)?);
        Some(RawKind::NewTask { tid: it.tid(0)?, name: it.text(1)?, clone_flags })
    }),
    system("tlb/tlb_flush", &["reason", "pages"], |it| {
        let pages = it.number(1)?;
        let pages = (pages != u64::MAX).then_some(pages);
        Some(RawKind::Flush { reason: reason(it.number(0)?)?, pages })
    })
    // Each switch of spaces traces the reason "flush on task switch", and nothing counts it.
    .only("reason != 0"),
    system(OPTIONAL, &["func", "cpu"], queued),
    system("ipi/ipi_send_cpu", &["cpu", "callsite"], |it| {
        let site = it.symbols.call_site(it.number(1)?);
        Some(RawKind::Ipi { targets: vec![it.narrow(0)?], site })
    }),
    system("ipi/ipi_send_cpumask", &["cpumask", "callsite"], |it| {
        let site = it.symbols.call_site(it.number(1)?);
        Some(RawKind::Ipi { targets: it.cpus(0)?, site })
    }),
    command(WAKING, &["pid"], |it| Some(RawKind::Waking { tid: it.tid(0)? })),
    command("sched/sched_wakeup", &["pid", "target_cpu"], |it| {
        Some(RawKind::Queued { tid: it.tid(0)?, target: it.narrow(1)? })
    })
    // Only what the idle loop is given predicts a switch that is not traced.
    .only("common_pid == 0"),
    command("sched/sched_process_exec", &["filename"], |it| {
        Some(RawKind::Exec { file: lossy(it.referred(0)?) })
    }),
    command("sched/sched_process_exit", &[], |_| Some(RawKind::Exit)),
    command("exceptions/page_fault_user", &["address", "error_code"], fault),
    command("exceptions/page_fault_kernel", &["address", "error_code"], fault),
    command("syscalls/sys_enter_mmap", &["addr", "len", "prot", "flags"], |it| {
        let (address, length) = (it.number(0)?, it.number(1)?);
        let (protection, flags) = (it.low(2)?, it.low(3)?);
        Some(RawKind::Enter(Call::Map { address, length, protection, flags }))
    }),
    command("syscalls/sys_enter_munmap", &["addr", "len"], |it| {
        let (address, length) = (it.number(0)?, it.number(1)?);
        Some(RawKind::Enter(Call::Unmap { address, length }))
    }),
    command("syscalls/sys_enter_mprotect", &["start", "len", "prot"], |it| {
        let (address, length) = (it.number(0)?, it.number(1)?);
        Some(RawKind::Enter(Call::Protect { address, length, protection: it.low(2)? }))
    }),
    command("syscalls/sys_enter_madvise", &["start", "len_in", "behavior"], |it| {
        let (address, length) = (it.number(0)?, it.number(1)?);
        Some(RawKind::Enter(Call::Advise { address, length, advice: it.low(2)? }))
    }),
    command("syscalls/sys_enter_mremap", REMAP_FIELDS, |it| {
        Some(RawKind::Enter(Call::Remap {
            address: it.number(0)?,
            old_length: it.number(1)?,
            new_length: it.number(2)?,
            flags: it.low(3)?,
            new_address: it.number(4)?,
        }))
    }),
    command("syscalls/sys_enter_brk", &["brk"], |it| {
        Some(RawKind::Enter(Call::Break { address: it.number(0)? }))
    }),
    command("syscalls/sys_enter_msync", &["start", "len", "flags"], |it| {
        let (address, length) = (it.number(0)?, it.number(1)?);
        Some(RawKind::Enter(Call::Sync { address, length, flags: it.low(2)? }))
    }),
    returned("syscalls/sys_exit_mmap"),
    returned("syscalls/sys_exit_munmap"),
    returned("syscalls/sys_exit_mprotect"),
    returned("syscalls/sys_exit_madvise"),
    returned("syscalls/sys_exit_mremap"),
    returned("syscalls/sys_exit_brk"),
    returned("syscalls/sys_exit_msync"),
];

/// The event that only the simulated schedule of a replay needs.
const WAKING: &str = "sched/sched_waking";

/// An event to enable, as a directory below `events`, with its filter.
pub(super) type Enabled = (&'static str, Option<String>);

/// The events of flushes alone, since Linux 6.5: a request, its end on its target, and interrupts
/// that call functions. No switch or wake-up has one, unlike `tlb_flush` and `ipi_send_cpu`.
pub(super) const FLUSHES: &[Wanted] = &[
    system(OPTIONAL, &["func", "cpu"], queued),
    system("csd/csd_function_exit", &["func"], |it| {
        let is_flush = it.symbols.function(it.number(0)?) == Function::FlushSpace;
        is_flush.then_some(RawKind::Flush { reason: FlushReason::Remote, pages: None })
    }),
    system("irq_vectors/call_function_entry", &[], |_| Some(CALLED)),
    system("irq_vectors/call_function_single_entry", &[], |_| Some(CALLED)),
];
/// This CPU is interrupted to call functions.
const CALLED: RawKind = RawKind::Ipi { targets: Vec::new(), site: CallSite::CallFunction };

/// The events of the interrupts that request flushes.
const INTERRUPTS: [&str; 2] = ["ipi/ipi_send_cpu", "ipi/ipi_send_cpumask"];

const REMAP_FIELDS: &[&str] = &["addr", "old_len", "new_len", "flags", "new_addr"];

/// The event that a kernel may lack. Without it, the call site of an interrupt is known, but not
/// the function that the interrupted CPU calls.
pub(super) const OPTIONAL: &str = "csd/csd_queue_cpu";

/// Returns `true` for events that a kernel may lack: those of interrupts before Linux 6.4, and
/// those of flushes and faults if flushes are broadcasts, as of Arm.
fn is_optional(event: &str) -> bool {
    let is_of_x86 = event.starts_with("tlb/") || event.starts_with("exceptions/");
    event == OPTIONAL
        || INTERRUPTS.contains(&event)
        || is_of_x86 && cfg!(not(target_arch = "x86_64"))
}

const fn system(event: &'static str, fields: &'static [&'static str], read: Read) -> Wanted {
    Wanted { scope: Scope::System, event, filter: None, fields, read }
}

const fn command(event: &'static str, fields: &'static [&'static str], read: Read) -> Wanted {
    Wanted { scope: Scope::Command, event, filter: None, fields, read }
}

const fn returned(event: &'static str) -> Wanted {
    command(event, &["ret"], |it| Some(RawKind::Return { value: it.signed(0)? }))
}

/// The decoder of the running kernel's events.
#[derive(Debug)]
pub(super) struct Decoder {
    symbols: Symbols,
    /// The wanted events, indexed by the kernel's number.
    known: Vec<Option<Known>>,
    id: Field,
    /// Number of times that a CPU was asked to call the function at an address, which flushes no
    /// pages of a program.
    calls: Mutex<BTreeMap<(u32, u64), u64>>,
}

/// A wanted event with the layout of the running kernel.
#[derive(Clone, Debug)]
struct Known {
    wanted: &'static Wanted,
    flags: Field,
    tid: Field,
    fields: Vec<Field>,
}

impl Decoder {
    /// Returns a decoder for these events, as `tracefs` describes them.
    ///
    /// # Errors
    ///
    /// If an event is missing, or its description cannot be parsed.
    pub(super) fn new(
        wanted: &'static [Wanted],
        tracefs: &Tracefs,
        symbols: Symbols,
    ) -> Result<Self, RecordError> {
        let mut known = Vec::new();
        let mut id = None;
        for wanted in wanted {
            let missing = || RecordError::NoEvent { event: wanted.event };
            let Some(format) = tracefs.format(wanted.event)? else {
                if is_optional(wanted.event) {
                    continue;
                }
                return Err(missing());
            };
            let layout = Layout::parse(&format).ok_or_else(missing)?;
            let index = usize::from(layout.id);
            id = layout.field("common_type");
            if known.len() <= index {
                known.resize(index + 1, None);
            }
            known[index] = Some(Known::new(wanted, &layout).ok_or_else(missing)?);
        }
        let id = id.ok_or(RecordError::NoEvent { event: OPTIONAL })?;
        Ok(Self { symbols, known, id, calls: Mutex::default() })
    }

    /// Returns the events to enable for `scope`, of a recording for `purpose`.
    pub(super) fn events(&self, scope: Scope, purpose: Purpose) -> Vec<Enabled> {
        let wanted = self.known.iter().flatten().map(|known| known.wanted);
        let wanted = wanted.filter(|it| it.scope == scope);
        let wanted = wanted.filter(|it| purpose == Purpose::Keep || it.event != WAKING);
        wanted.map(|it| (it.event, it.filter.map(str::to_owned))).collect()
    }

    /// Decodes an event of `cpu`. Returns `None` if the event does not belong in a recording.
    pub(super) fn event(&self, time_ns: u64, cpu: u32, bytes: &[u8]) -> Option<RawEvent> {
        let index = usize::try_from(self.id.number(bytes)?).ok()?;
        let known = self.known.get(index)?.as_ref()?;
        let values = Values { bytes, fields: &known.fields, symbols: &self.symbols };
        let during = during(known.flags.number(bytes)?);
        let tid = Tid(u32::try_from(known.tid.number(bytes)?).ok()?);
        let kind = (known.wanted.read)(&values)?;
        if let RawKind::QueueCall { function: Function::Other, target } = kind {
            *self.calls().entry((target, values.number(0)?)).or_default() += 1;
        }
        Some(RawEvent { time_ns, cpu, tid, during, kind })
    }

    /// Returns the functions that CPUs were asked to call in the decoded events.
    pub(super) fn other_calls(&self) -> Vec<OtherCall> {
        let text = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        let names = KernelNames::parse(&text);
        let calls = self.calls();
        let calls = calls.iter().map(|((cpu, address), count)| {
            let function = names.function(*address).unwrap_or("unknown").to_owned();
            OtherCall { cpu: *cpu, function, count: *count }
        });
        calls.collect()
    }

    fn calls(&self) -> MutexGuard<'_, BTreeMap<(u32, u64), u64>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Returns `None` if a field is missing.
    fn new(wanted: &'static Wanted, layout: &Layout) -> Option<Self> {
        Some(Self {
            wanted,
            flags: layout.field("common_flags")?,
            tid: layout.field("common_pid")?,
            fields: wanted.fields.iter().map(|name| layout.field(name)).collect::<Option<_>>()?,
        })
    }
}

/// The fields of one event, by their indices in [`Wanted::fields`].
struct Values<'a> {
    bytes: &'a [u8],
    fields: &'a [Field],
    symbols: &'a Symbols,
}

impl Values<'_> {
    fn field(&self, index: usize) -> Option<Field> {
        self.fields.get(index).copied()
    }

    fn number(&self, index: usize) -> Option<u64> {
        self.field(index)?.number(self.bytes)
    }

    fn signed(&self, index: usize) -> Option<i64> {
        self.field(index)?.signed(self.bytes)
    }

    fn narrow(&self, index: usize) -> Option<u32> {
        u32::try_from(self.number(index)?).ok()
    }

    /// Returns the lower half of a register that the kernel reads as an `int`.
    fn low(&self, index: usize) -> Option<u32> {
        Some(self.number(index)? as u32)
    }

    fn tid(&self, index: usize) -> Option<Tid> {
        self.narrow(index).map(Tid)
    }

    fn text(&self, index: usize) -> Option<String> {
        self.field(index)?.bytes(self.bytes).map(lossy)
    }

    fn referred(&self, index: usize) -> Option<&[u8]> {
        self.field(index)?.referred(self.bytes)
    }

    /// Returns the indices of the set bits of a mask.
    fn cpus(&self, index: usize) -> Option<Vec<u32>> {
        let mask = self.referred(index)?;
        let bits = mask.iter().flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1 != 0));
        Some((0..).zip(bits).filter_map(|(cpu, set)| set.then_some(cpu)).collect())
    }
}

fn queued(values: &Values<'_>) -> Option<RawKind> {
    let function = values.symbols.function(values.number(0)?);
    Some(RawKind::QueueCall { function, target: values.narrow(1)? })
}

fn fault(values: &Values<'_>) -> Option<RawKind> {
    let address = values.number(0)?;
    // Addresses in the upper half belong to the kernel.
    let is_user = address.cast_signed() >= 0;
    is_user.then_some(RawKind::Fault { address, code: FaultCode(values.low(1)?) })
}

/// Decodes Linux's `TASK_*` and `EXIT_*`, as `sched_switch` reports them since 4.14.
fn left(state: u64) -> Left {
    const REPORTED: u64 = 0xff;
    const ENDED: u64 = 0x30;
    match state {
        state if state & ENDED != 0 => Left::Dead,
        state if state & REPORTED != 0 => Left::Blocked,
        _ => Left::Runnable,
    }
}

/// Decodes Linux's `enum tlb_flush_reason`.
fn reason(reason: u64) -> Option<FlushReason> {
    Some(match reason {
        0 => FlushReason::TaskSwitch,
        1 => FlushReason::Remote,
        2 => FlushReason::Local,
        3 => FlushReason::LocalSpace,
        4 => FlushReason::Request,
        5 => FlushReason::WrongCpu,
        _ => return None,
    })
}

/// Decodes Linux's `enum trace_flag_type`.
fn during(flags: u64) -> During {
    const HARD: u64 = 0x08;
    const SOFT: u64 = 0x10;
    const NMI: u64 = 0x40;
    match flags & (HARD | SOFT | NMI) {
        0 => During::Task,
        _ => During::Interrupt,
    }
}

/// Returns text up to its first zero byte. Programs choose their names, so the bytes are arbitrary.
fn lossy(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_states_are_decoded() {
        assert_eq!([0, 0x100].map(left), [Left::Runnable; 2]);
        assert_eq!([1, 2, 0x80, 0x102].map(left), [Left::Blocked; 4]);
        assert_eq!([0x10, 0x20].map(left), [Left::Dead; 2]);
    }

    #[test]
    fn interrupt_flags_are_decoded() {
        assert_eq!([0, 0x01, 0x04, 0x20, 0x80].map(during), [During::Task; 5]);
        assert_eq!([0x08, 0x10, 0x40, 0x0d].map(during), [During::Interrupt; 4]);
    }

    #[test]
    fn name_ends_at_first_zero_byte() {
        assert_eq!(lossy(b"sort\0rest"), "sort");
        assert_eq!(lossy(b"\xff\x1b[2J"), "\u{fffd}\u{1b}[2J");
        assert_eq!(lossy(b""), "");
    }

    impl Decoder {
        /// Returns a decoder for a kernel that numbers the events like [`WANTED`] and uses four
        /// bytes for each field.
        pub(in crate::commands::record) fn for_tests() -> Self {
            let symbols = Symbols::parse("1 t flush_tlb_func\n2 t on_each_cpu_cond_mask\n");
            let common = [("common_type", 0, 2), ("common_flags", 2, 1), ("common_pid", 4, 4)];
            let known = (0_u16..).zip(WANTED).map(|(id, wanted)| {
                let mut format = format!("ID: {id}\n");
                let own = wanted.fields.iter().enumerate().map(|(n, name)| (*name, 8 + 4 * n, 4));
                for (name, offset, size) in common.into_iter().chain(own) {
                    format += &format!("\tfield:int {name};\toffset:{offset};\tsize:{size};\n");
                }
                Known::new(wanted, &Layout::parse(&format).expect("a layout"))
            });
            let id = Field { offset: 0, size: 2 };
            let symbols = symbols.expect("symbols");
            Self { symbols, known: known.collect(), id, calls: Mutex::default() }
        }

        /// Returns the number of `event` in that kernel.
        pub(in crate::commands::record) fn id_for_tests(event: &str) -> u8 {
            let index = WANTED.iter().position(|wanted| wanted.event == event);
            index.expect("an event") as u8
        }
    }

    #[test]
    fn kernel_may_lack_events_of_interrupts_only() {
        let directory = tempfile::tempdir().expect("a directory");
        let events = directory.path().join("events");
        for (id, wanted) in WANTED.iter().enumerate() {
            let common = ["common_type", "common_flags", "common_pid"].iter();
            let fields = common
                .chain(wanted.fields)
                .map(|name| format!("\tfield:int {name};\toffset:0;\tsize:4;\n"));
            fs::create_dir_all(events.join(wanted.event)).expect("a directory");
            let format = format!("ID: {id}\n{}", fields.collect::<String>());
            fs::write(events.join(wanted.event).join("format"), format).expect("a file");
        }
        let decoder = || {
            let symbols = Symbols::parse("1 t flush_tlb_func\n2 t on_each_cpu_cond_mask\n");
            Decoder::new(WANTED, &Tracefs::at(directory.path()), symbols.expect("symbols"))
        };
        let number = || decoder().map(|it| it.known.iter().flatten().count()).ok();
        assert_eq!(number(), Some(WANTED.len()));
        for event in INTERRUPTS.iter().chain([&OPTIONAL]) {
            fs::remove_file(events.join(event).join("format")).expect("a file");
        }
        // As Linux 6.1.
        assert_eq!(number(), Some(WANTED.len() - 3));
        fs::remove_file(events.join("sched/sched_switch/format")).expect("a file");
        assert_eq!(number(), None);
    }

    #[test]
    fn decoding_arbitrary_bytes_never_panics() {
        let decoder = Decoder::for_tests();
        for id in 0..WANTED.len() as u8 + 2 {
            let event = |length| decoder.event(7, 1, &[&[id], &[0; 63][..length]].concat());
            assert_eq!(event(63).is_some(), usize::from(id) < WANTED.len(), "{id}");
            // Every event needs at least its flags and its task.
            assert!((0..7).all(|length| event(length).is_none()), "{id}");
        }
    }
}
