//! The result of `shootdown explain`. Its serialisation is the JSON output.

use std::collections::HashMap;

use serde::Serialize;
use shootdown_explain::{Advice, Analysis, Balance, Costs, Explanation, Site, Suffered, Sum};
use shootdown_recording::Source;
use shootdown_recording::record::Frame;

/// The causes and call sites of a program's shootdowns.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Findings {
    /// The version of this schema. Fields may be added without a new one.
    pub(super) schema: u32,
    pub(super) total: Total,
    /// By cost.
    pub(super) causes: Vec<CauseRow>,
    /// By cost.
    pub(super) sites: Vec<SiteRow>,
    /// The sums of the sites with the same cause and `caller`, by cost. The calls are those of the
    /// most expensive site.
    pub(super) callers: Vec<SiteRow>,
    /// The requests of other programs and of the kernel to CPUs that ran the program, by number.
    pub(super) suffered: Vec<SufferedRow>,
    /// Number of events that the kernel lost.
    pub(super) lost: u64,
    /// `true` if the program flushed, and the imported text names none of the CPUs that it asked.
    pub(super) is_blind: bool,
    /// Number of the program's flushes, also of those that asked no CPU.
    pub(super) announced: u64,
    /// `null` if the recording lacks the kernel's counters.
    pub(super) balance: Option<Balanced>,
    pub(super) overhead: Overhead,
    pub(super) recording: About,
    /// The runs of the command, by requests, if there are several.
    pub(super) runs: Vec<Run>,
}

/// The totals of a run of the command.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Run {
    pub(super) requests: u64,
    pub(super) cpu_share: f64,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Total {
    #[serde(flatten)]
    pub(super) sum: Sum,
    /// `cpu_ns`, divided by the CPU time of the program.
    pub(super) cpu_share: f64,
    /// CPU time of the program.
    pub(super) program_ns: u64,
    /// The part of the time in which the program ran and two of its threads with one space did.
    pub(super) parallel_share: f64,
    /// Number of requests whose cause is known.
    pub(super) attributed: u64,
    /// The part of the requests whose cause is known; 1 if there are none.
    pub(super) attributed_share: f64,
}

/// The flush requests of all programs while the recording was made.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Balanced {
    pub(super) recorded: u64,
    /// The kernel's own count.
    pub(super) counted: u64,
    /// The reason of a difference of more than 2 %.
    pub(super) difference: Option<&'static str>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct CauseRow {
    pub(super) cause: String,
    #[serde(flatten)]
    pub(super) sum: Sum,
    /// The part of the total's `cpu_ns`.
    pub(super) share: f64,
    /// The setting of the kernel that controls a cause without a call site.
    pub(super) setting: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct SiteRow {
    pub(super) cause: String,
    #[serde(flatten)]
    pub(super) sum: Sum,
    /// The part of the total's `cpu_ns`.
    pub(super) share: f64,
    /// The calls of the program, the innermost first.
    pub(super) frames: Vec<String>,
    pub(super) advice: Vec<AdviceRow>,
    /// The call that probably is the program's own: the first one outside libraries of the system
    /// and language runtimes.
    pub(super) caller: Option<String>,
    /// Number of flushes with a call stack of their own.
    pub(super) sampled: u64,
    /// Number of distinct call stacks.
    pub(super) stacks: u64,
    /// The reason why there are no calls.
    pub(super) without_calls: Option<&'static str>,
}

/// The requests of a thread that is not the program's.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SufferedRow {
    /// The name of the thread; `null` if it is not known.
    pub(super) sender: Option<String>,
    /// `true` for a thread of the kernel.
    pub(super) is_kernel: bool,
    pub(super) cause: String,
    /// Its CPU time is that of the interrupts, which they took from the program.
    #[serde(flatten)]
    pub(super) sum: Sum,
    /// The setting of the kernel that controls the cause.
    pub(super) setting: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct AdviceRow {
    pub(super) change: String,
    /// Number of these requests that the change removes.
    pub(super) saves: u64,
    /// Number of requests of the whole program that it removes, by replay.
    pub(super) saves_in_all: Option<u64>,
    /// `replay` if the changed recording was replayed, `count` if requests were counted; of a
    /// caller, those of the most expensive site.
    pub(super) by: &'static str,
    /// The reason why requests were counted although the effect can be replayed.
    pub(super) doubt: Option<&'static str>,
    pub(super) price: String,
    pub(super) source: String,
}

/// The cost of recording, and its losses.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Overhead {
    /// Number of recorded events.
    pub(super) events: u64,
    /// Number of sampled call stacks.
    pub(super) stacks: u64,
    /// The part of the program's flush requests for which these stacks stand.
    pub(super) stacks_coverage: f64,
    /// Number of stacks that were lost; `null` for a recording.
    pub(super) stacks_lost: Option<u64>,
    /// The largest number of stacks per second and CPU; `null` for a recording.
    pub(super) stack_rate_hz: Option<u64>,
    /// CPU time of the recorder; `null` for a recording.
    pub(super) recorder_cpu_ns: Option<u64>,
}

/// The recording.
#[derive(Clone, Debug, Serialize)]
pub(super) struct About {
    pub(super) command: Vec<String>,
    pub(super) kernel: String,
    pub(super) processor: String,
    pub(super) cpus: u32,
    pub(super) time_ns: u64,
}

impl Findings {
    pub(super) fn new(
        analysis: &Analysis,
        explanation: &Explanation,
        advice: Vec<Vec<Advice>>,
        overhead: Overhead,
    ) -> Self {
        let Explanation { total, causes, sites, .. } = explanation;
        let share = |sum: &Sum| sum.cpu_ns as f64 / total.cpu_ns.max(1) as f64;
        let stand_for = analysis.stacks_stand_for.min(analysis.announced) as f64;
        let rows = sites.iter().zip(advice);
        let sites: Vec<_> =
            rows.map(|(site, advice)| row(analysis, site, share(&site.sum), advice)).collect();
        Self {
            schema: SCHEMA,
            total: Total::of(analysis, explanation),
            causes: causes
                .iter()
                .map(|(cause, sum)| CauseRow {
                    cause: analysis.causes.name(*cause).to_owned(),
                    sum: *sum,
                    share: share(sum),
                    setting: analysis.causes.setting(*cause).map(str::to_owned),
                })
                .collect(),
            callers: by_caller(&sites),
            sites,
            suffered: explanation.suffered.iter().map(|it| SufferedRow::of(analysis, it)).collect(),
            lost: analysis.lost,
            is_blind: analysis.announced > 0
                && analysis.received.is_empty()
                && analysis.header.source != Source::Tracefs,
            announced: analysis.announced,
            balance: analysis.balance.map(|balance| Balanced {
                recorded: balance.recorded,
                counted: balance.counted,
                difference: balance.is_off().then(|| reason(balance, analysis.lost)),
            }),
            overhead: Overhead {
                events: analysis.records,
                stacks: analysis.stacks,
                stacks_coverage: stand_for / analysis.announced.max(1) as f64,
                ..overhead
            },
            recording: About {
                command: analysis.header.command.clone(),
                kernel: analysis.header.kernel.clone(),
                processor: analysis.header.processor.clone(),
                cpus: analysis.header.cpus,
                time_ns: analysis.time_ns,
            },
            runs: Vec::new(),
        }
    }
}

impl Total {
    pub(super) fn of(analysis: &Analysis, Explanation { total, causes, .. }: &Explanation) -> Self {
        let unknown = causes.iter().filter(|(cause, _)| analysis.causes.name(*cause) == "unknown");
        let unknown: u64 = unknown.map(|(_, sum)| sum.requests).sum();
        let attributed = total.requests - unknown;
        let attributed_share = match total.requests {
            0 => 1.0,
            requests => attributed as f64 / requests as f64,
        };
        Self {
            sum: *total,
            cpu_share: total.cpu_ns as f64 / analysis.program_ns.max(1) as f64,
            program_ns: analysis.program_ns,
            parallel_share: analysis.parallel_ns as f64 / analysis.busy_ns.max(1) as f64,
            attributed,
            attributed_share,
        }
    }
}

impl SufferedRow {
    fn of(analysis: &Analysis, suffered: &Suffered) -> Self {
        let Suffered { cause, sender, is_kernel, sum, .. } = suffered;
        Self {
            sender: sender.clone(),
            is_kernel: *is_kernel,
            cause: analysis.causes.name(*cause).to_owned(),
            sum: Sum { cpu_ns: sum.interrupts * Costs::MODEL.interrupt_ns, measured_ns: 0, ..*sum },
            setting: analysis.causes.setting(*cause).map(str::to_owned),
        }
    }
}

/// The version of the schema of `--format json`.
pub(super) const SCHEMA: u32 = 1;

/// Returns the reason why no flush of a site has calls.
fn why_without_calls(analysis: &Analysis, cause: &str) -> &'static str {
    match cause {
        _ if analysis.stacks == 0 => "no call stacks were sampled",
        "exit" => "a process that ends has left all its calls",
        _ => "none of these flushes was sampled",
    }
}

/// Returns the sums of the sites with the same cause and caller, by cost.
fn by_caller(sites: &[SiteRow]) -> Vec<SiteRow> {
    let mut callers: Vec<SiteRow> = Vec::new();
    let mut known: HashMap<(&str, Option<&str>), usize> = HashMap::new();
    for site in sites {
        let key = (&*site.cause, site.caller.as_deref());
        let Some(index) = known.get(&key) else {
            known.insert(key, callers.len());
            callers.push(site.clone());
            continue;
        };
        let caller = &mut callers[*index];
        caller.sum = caller.sum.combined(&site.sum, u64::saturating_add);
        caller.share += site.share;
        caller.sampled += site.sampled;
        caller.stacks += site.stacks;
        for advice in &mut caller.advice {
            let same = site.advice.iter().find(|it| it.change == advice.change);
            let Some(same) = same else { continue };
            advice.saves += same.saves;
            advice.saves_in_all = advice.saves_in_all.max(same.saves_in_all);
        }
    }
    callers.sort_by_key(|caller| std::cmp::Reverse(caller.sum.cpu_ns));
    callers
}

/// Returns the reason why the recording and the kernel's counters differ.
fn reason(balance: Balance, lost: u64) -> &'static str {
    match balance {
        _ if lost > 0 => "events were lost",
        Balance { is_of_interrupts: true, .. } => {
            "this kernel traces interrupts, of which one serves several requests"
        }
        Balance { recorded, counted, .. } if recorded > counted => {
            "the kernel does not count all flushes"
        }
        _ => "the kernel did not trace all flushes",
    }
}

fn row(analysis: &Analysis, site: &Site, share: f64, advice: Vec<Advice>) -> SiteRow {
    let cause = analysis.causes.name(site.cause).to_owned();
    let has_calls = !site.frames.is_empty();
    let advice = advice.into_iter().map(|advice| AdviceRow {
        change: advice.remedy.change,
        saves: advice.saves,
        by: if advice.is_replayed { "replay" } else { "count" },
        saves_in_all: advice.saves_in_all,
        doubt: advice.doubt,
        price: advice.remedy.price,
        source: advice.remedy.source,
    });
    SiteRow {
        without_calls: (!has_calls).then(|| why_without_calls(analysis, &cause)),
        cause,
        sum: site.sum,
        share,
        frames: site.frames.iter().map(shown_frame).collect(),
        advice: advice.collect(),
        caller: caller(&site.frames).map(shown_frame),
        sampled: site.sampled,
        stacks: 1,
    }
}

/// Returns a call as `function (file:line)`.
pub(crate) fn shown_frame(frame: &Frame) -> String {
    let file = frame.file.rsplit('/').next().unwrap_or_default();
    match (file, frame.line) {
        ("", _) => frame.function.clone(),
        (file, 0) => format!("{} ({file})", frame.function),
        (file, line) => format!("{} ({file}:{line})", frame.function),
    }
}

/// Files and functions that call the kernel for a program, by the beginning of their names.
const SYSTEM_FILES: [&str; 5] = ["libc.so", "libc-", "ld-linux", "libpthread", "libjvm.so"];
const SYSTEM_FUNCTIONS: &str = "runtime.,syscall.,internal/,__,[0x,madvise,munmap,mprotect,mmap,\
    mremap,ftruncate,je_,_rjem_,duckdb_je_,tcmalloc::,tc_,mi_,_mi_,operator new,operator delete,\
    alloc::,core::,std::,_PyEval_,_PyFunction_,_PyObject_,PyObject_";
/// Functions of allocators, which programs link or preload.
const ALLOCATORS: [&str; 8] =
    ["free", "cfree", "malloc", "calloc", "realloc", "sbrk", "brk", "ruby_sized_xfree"];

/// The file of functions that a JIT compiler made, and the end of those of Python's.
const JIT_FILE: &str = "[jit]";
const PYTHON_FILE: &str = ".py";
/// Functions of a language's own library, by the beginning of their names, and by a part of the
/// place where they are defined.
const LIBRARY_FUNCTIONS: [&str; 5] = ["java.", "javax.", "jdk.", "sun.", "com.sun."];
const LIBRARY_PLACES: [&str; 2] = ["/lib/python3", " node:"];
/// Code that a JIT compiler makes for itself.
const JIT_OWN: [&str; 7] =
    ["Interpreter", "StubRoutines", "RuntimeStub", "vtable", "Builtin", "Stub:", "BytecodeHandler"];

/// Returns the call that probably is the program's own. If the stack has functions of Java,
/// JavaScript or Python, that is the first one outside the library of the language. Otherwise it is
/// the first one outside libraries of the system and language runtimes, or else the innermost one.
pub(crate) fn caller(frames: &[Frame]) -> Option<&Frame> {
    let own = frames.iter().find(|frame| is_generated(frame) && !is_of_library(frame));
    own.or_else(|| frames.iter().find(|frame| !is_of_system(frame))).or(frames.first())
}

fn is_of_system(frame: &Frame) -> bool {
    let file = frame.file.rsplit('/').next().unwrap_or_default();
    SYSTEM_FILES.iter().any(|start| file.starts_with(start))
        || SYSTEM_FUNCTIONS.split(',').any(|start| frame.function.starts_with(start))
        || ALLOCATORS.contains(&&*frame.function)
}

fn is_generated(frame: &Frame) -> bool {
    frame.file == JIT_FILE || frame.file.ends_with(PYTHON_FILE)
}

fn is_of_library(frame: &Frame) -> bool {
    // Java's functions have their type before the name, and their parameters after it.
    let declared = frame.function.split('(').next().unwrap_or_default();
    let name = declared.rsplit(' ').next().unwrap_or_default();
    LIBRARY_FUNCTIONS.iter().any(|start| name.starts_with(start))
        || LIBRARY_PLACES.iter().any(|it| frame.file.contains(it) || frame.function.contains(it))
        || JIT_OWN.iter().any(|start| frame.function.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use shootdown_recording::record::Layer;

    fn frame(function: &str, file: &str, line: u32) -> Frame {
        Frame { layer: Layer::User, function: function.into(), file: file.into(), line }
    }

    #[test]
    fn caller_is_outside_the_system() {
        let frames = [
            frame("madvise", "/usr/lib/libc.so.6", 0),
            frame("runtime.sysUnused", "/go/src/runtime/mem.go", 7),
            frame("release_pages", "/src/pool.c", 9),
        ];
        assert_eq!(caller(&frames).map(shown_frame).as_deref(), Some("release_pages (pool.c:9)"));
        assert_eq!(caller(&frames[..1]).map(shown_frame).as_deref(), Some("madvise (libc.so.6)"));
        assert!(caller(&[]).is_none());
    }

    #[test]
    fn caller_is_a_function_of_the_language() {
        let shown = |frames: &[Frame]| caller(frames).map(|frame| frame.function.clone());
        let java = [
            frame("munmap", "/usr/lib/libc.so.6", 0),
            frame("Java_sun_nio_ch_FileChannelImpl_unmap0", "/usr/lib/jvm/lib/libnio.so", 0),
            frame("int sun.nio.ch.FileChannelImpl.unmap0(long, long)", "[jit]", 0),
            frame("Interpreter", "[jit]", 0),
            frame("void Pool.close(java.nio.MappedByteBuffer)", "[jit]", 0),
        ];
        assert_eq!(shown(&java).as_deref(), Some("void Pool.close(java.nio.MappedByteBuffer)"));
        let python = [
            frame("_PyBytes_Dealloc", "bytesobject.c", 7),
            frame("Thread.run", "/usr/lib/python3.13/threading.py", 0),
            frame("serve", "/srv/app.py", 0),
        ];
        assert_eq!(shown(&python).as_deref(), Some("serve"));
        assert_eq!(shown(&python[..2]).as_deref(), Some("_PyBytes_Dealloc"));
    }
}
