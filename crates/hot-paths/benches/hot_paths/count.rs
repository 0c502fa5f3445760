//! Counting: the program runs itself under callgrind, which collects instructions between two
//! requests and writes the total of each path.
//!
//! Each path and an empty function are called by their addresses from one place. The difference
//! between the two totals is the path without its return instruction, which both functions have. So
//! one instruction is added.

use std::arch::asm;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::hint::black_box;
use std::path::Path as FilePath;
use std::process::Command;
use std::{env, fs, ptr};

use shootdown_hot_paths::{Limits, Path, Plain, Roots, Stage, System, WIDTHS};

use crate::table::Row;

/// Environment variable that is set for the run under callgrind.
const MARK: &str = "SHOOTDOWN_HOT_PATHS";
/// The name of the empty function.
const NOTHING: &str = "nothing";
/// The text before a request's label in callgrind's output.
const TRIGGER: &str = "desc: Trigger: Client Request: ";

/// Requests to callgrind (`callgrind.h`).
const TOGGLE_COLLECT: u64 = 0x4354_0002;
const DUMP_STATS_AT: u64 = 0x4354_0003;

pub(crate) fn is_under_callgrind() -> bool {
    env::var_os(MARK).is_some()
}

/// A new stage of `cpus` CPUs in the state in which `path` begins.
pub(crate) fn prepare<const T: usize, const W: usize, const R: bool>(
    path: &Path<Plain<T>, W, R>,
    cpus: usize,
) -> &'static mut Stage<Plain<T>, W, R> {
    // SAFETY: there are no interrupts, and loading a root does nothing.
    (path.prepare)(&unsafe { System::with_cpus(Plain, &Roots::NONE, cpus) })
}

/// Runs an empty path, and these paths, on systems of `cpus` CPUs.
pub(crate) fn run<const T: usize, const W: usize, const R: bool>(
    paths: &[Path<Plain<T>, W, R>],
    cpus: usize,
) {
    let nothing = Path { name: NOTHING, run: |_| {}, ..paths[0] };
    for path in [nothing].iter().chain(paths) {
        let stage = prepare(path, cpus);
        collect(black_box(path.run), stage);
        let label = CString::new(label(path.name, W)).expect("a name has no zero byte");
        request(DUMP_STATS_AT, Some(&label));
    }
}

fn label(name: &str, width: usize) -> String {
    format!("{name}/{width}")
}

/// Collects a call. It is one piece of code for all paths of a width, so that the instructions
/// around the call are the same.
#[inline(never)]
fn collect<T>(run: fn(&mut T), stage: &mut T) {
    request(TOGGLE_COLLECT, None);
    run(stage);
    request(TOGGLE_COLLECT, None);
}

/// Sends a request to callgrind. Does nothing on a real processor.
#[inline(always)]
fn request(code: u64, text: Option<&CStr>) {
    let text = text.map_or(ptr::null(), CStr::as_ptr);
    let words = [code, text.expose_provenance() as u64, 0, 0, 0, 0];
    // SAFETY: the rotations add up to 128 bits and change nothing. Callgrind recognises them, and
    // reads the words and the text.
    unsafe {
        asm!(
            "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            inout("rdx") 0_u64 => _, in("rax") &raw const words, options(nostack)
        );
    }
}

/// The instruction counts of paths with these names, which this program runs at all widths.
pub(crate) fn rows(paths: &[(&'static str, Limits)]) -> Result<Vec<Row>, String> {
    let output = concat!(env!("CARGO_CRATE_NAME"), ".callgrind");
    let output = FilePath::new(env!("CARGO_TARGET_TMPDIR")).join(output);
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let run = Command::new("valgrind")
        .args(["--quiet", "--tool=callgrind", "--collect-atstart=no", "--combine-dumps=yes"])
        .arg(format!("--callgrind-out-file={}", output.display()))
        .arg(program)
        .env(MARK, "1")
        .output()
        .map_err(|error| format!("valgrind did not start: {error}"))?;
    if !run.status.success() {
        return Err(format!("valgrind: {}", String::from_utf8_lossy(&run.stderr)));
    }
    let text = fs::read_to_string(&output).map_err(|error| error.to_string())?;
    let totals = totals(&text);
    let count = |name: &str, width| {
        let total = |name| totals.get(label(name, width).as_str());
        let difference = total(name)?.checked_sub(*total(NOTHING)?)?;
        Some(difference + 1)
    };
    paths
        .iter()
        .map(|&(name, limits)| {
            let mut cost = [0; 3];
            for (cost, width) in cost.iter_mut().zip(WIDTHS) {
                *cost = count(name, width)
                    .ok_or_else(|| format!("callgrind counted no {name} of {width} words"))?;
            }
            Ok(Row { name, unit: "", cost, limits })
        })
        .collect()
}

/// The total of each dump, by the label of its request.
fn totals(output: &str) -> BTreeMap<&str, u64> {
    let mut totals = BTreeMap::new();
    let mut label = None;
    for line in output.lines() {
        if let Some(text) = line.strip_prefix(TRIGGER) {
            label = Some(text);
        } else if let Some(total) = line.strip_prefix("totals: ")
            && let (Some(label), Ok(total)) = (label.take(), total.trim().parse())
        {
            totals.insert(label, total);
        }
    }
    totals
}
