//! The effects that each function of the C interface declares in its comment, compared with the
//! machine code of the library.
//!
//! The compiler writes the assembly of the library and of the crates below it, for each
//! architecture and for both kinds of processors. From that come the frame of each function and
//! the calls in it, and from these: whether a call can reach the interrupt of other CPUs, the loop
//! that waits for them, or `shootdown_os_reclaim`; and how deep the stack becomes. Panics are left
//! out, because they stop the machine. Functions of the kernel and of `core` count no stack.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::command::{Failure, cargo, read_tracked};
use crate::setup;

/// Largest frame of a function that C calls.
const FRAME_MAX: u64 = 512;

/// Declared stacks are multiples of this number.
const STACK_UNIT: u64 = 128;

/// The most that a declared stack may exceed the one in the code, which changes with each version
/// of the compiler.
const STACK_SPARE: u64 = 512;

/// The features of the library, with a processor of ours and with the kernel's own.
const FEATURES: [&str; 2] =
    ["panic-handler,processor", "panic-handler,away,broadcast,devices,isolation,reuse,trace"];

/// A function in assembly.
#[derive(Debug, Default)]
struct Function {
    frame: u64,
    calls: BTreeSet<String>,
}

/// The effects of a function with all that it calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Effects {
    interrupts: bool,
    waits: bool,
    reclaims: bool,
    stack: u64,
}

/// Compares the comments with the code. Prints the deepest stack.
pub(super) fn check() -> Result<(), Failure> {
    let mut measured = BTreeMap::<String, Effects>::new();
    for target in setup::BARE_TARGETS {
        for features in FEATURES {
            let functions = compile(target, features)?;
            for (name, function) in functions.iter().filter(|(name, _)| is_exported(name)) {
                if function.frame > FRAME_MAX {
                    return Err(Failure::new(
                        format!("{name} has a frame of {} bytes on {target}", function.frame),
                        format!("build in place what it copies: the limit is {FRAME_MAX} bytes"),
                    ));
                }
                let sum = measured.entry(name.clone()).or_default();
                *sum = sum.with(effects(&functions, name));
            }
        }
    }
    let declared = declared()?;
    let differs = |(name, effects): &(&String, &Effects)| {
        declared.get(*name).is_none_or(|line| !effects.are_declared_by(line))
    };
    let wrong: Vec<_> = measured.iter().filter(differs).collect();
    for (name, effects) in &wrong {
        let (begin, end) = effects.line();
        println!("{name}: {begin} Callable: … {end}");
    }
    if !wrong.is_empty() {
        return Err(Failure::new(
            format!("the comments of {} functions do not declare their effects", wrong.len()),
            "copy the lines above, and then UPDATE_HEADER=1 cargo test -p shootdown-capi",
        ));
    }
    let deepest = measured.iter().max_by_key(|(_, effects)| effects.stack);
    let (name, Effects { stack, .. }) = deepest.expect("the library has functions");
    println!("C, {} functions: the deepest stack is that of {name}, {stack} bytes", measured.len());
    Ok(())
}

/// Compiles the library to assembly.
fn compile(target: &str, features: &str) -> Result<BTreeMap<String, Function>, Failure> {
    // A folder for each: without a stale file of another build.
    let folder = crate::output().join("effects").join(features);
    cargo("rustc --quiet --release -p shootdown-capi --crate-type staticlib --features")
        .arg(features)
        .args("--target")
        .arg(target)
        .arg("--target-dir")
        .arg(&folder)
        .env("RUSTFLAGS", "--emit asm")
        .env("CARGO_INCREMENTAL", "0")
        .run()?;
    let files = folder.join(target).join("release/deps");
    let mut functions = BTreeMap::new();
    for stem in ["shootdown-", "shootdown_hw-", "shootdown_capi-"] {
        parse(&newest(&files, stem)?, &mut functions);
    }
    Ok(functions)
}

/// The newest assembly of a crate.
fn newest(folder: &Path, stem: &str) -> Result<String, Failure> {
    let failed =
        || Failure::new(format!("no assembly of {stem} in {}", folder.display()), "cargo clean");
    let files = std::fs::read_dir(folder).map_err(|_| failed())?.flatten();
    let is_assembly = |name: &str| name.starts_with(stem) && name.ends_with(".s");
    let ours = files.filter(|file| file.file_name().to_str().is_some_and(is_assembly));
    let newest = ours.max_by_key(|file| file.metadata().and_then(|data| data.modified()).ok());
    std::fs::read_to_string(newest.ok_or_else(failed)?.path()).map_err(|_| failed())
}

/// Adds the functions of an assembly file.
fn parse(text: &str, functions: &mut BTreeMap<String, Function>) {
    let mut current: Option<&mut Function> = None;
    for line in text.lines() {
        if let Some(label) = line.strip_suffix(':').filter(|label| !label.starts_with(['.', '\t']))
        {
            // A small function of one crate is compiled in each crate that calls it.
            let function = functions.entry(label.to_owned()).or_default();
            *function = Function::default();
            current = Some(function);
        } else if let Some(function) = current.as_mut() {
            function.frame += pushed(line.trim());
            function.calls.extend(called(line.trim()));
        }
    }
}

/// Number of bytes by which an instruction extends the stack.
fn pushed(line: &str) -> u64 {
    let (name, operands) = line.split_once('\t').unwrap_or((line, ""));
    let after = |prefix| operands.strip_prefix(prefix).map(|number: &str| number.to_owned());
    let number = match name {
        "pushq" => return 8,
        // RISC-V.
        "addi" => after("sp, sp, -"),
        // AArch64.
        "sub" => after("sp, sp, #"),
        "stp" | "str" => operands
            .split_once("[sp, #-")
            .and_then(|(_, rest)| rest.strip_suffix("]!"))
            .map(str::to_owned),
        "subq" => {
            operands.strip_suffix(", %rsp").and_then(|of| of.strip_prefix('$')).map(Into::into)
        }
        _ => None,
    };
    let number = number.as_deref().unwrap_or("0");
    let (number, shift) = match number.strip_suffix(", lsl #12") {
        Some(number) => (number, 12),
        None => (number, 0),
    };
    number.parse::<u64>().map_or(0, |bytes| bytes << shift)
}

/// The symbol that an instruction calls or jumps to.
fn called(line: &str) -> Option<String> {
    let (name, operands) = line.split_once('\t')?;
    let is_call = ["call", "callq", "tail", "bl", "b", "jmp"].contains(&name);
    let symbol = operands.trim_start_matches('*').split(['@', '(', ' ']).next()?;
    (is_call && !symbol.starts_with(['.', '%'])).then(|| symbol.to_owned())
}

fn is_exported(name: &str) -> bool {
    name.starts_with("shootdown_") && !is_kernels(name)
}

fn is_kernels(name: &str) -> bool {
    name.starts_with("shootdown_os_") || name.starts_with("shootdown_mmu_")
}

/// Returns `true` for functions on the way to the end of the machine.
fn is_fatal(name: &str) -> bool {
    ["panic", "core3fmt", "unwrap_failed", "expect_failed", "4core", "fmt"]
        .iter()
        .any(|part| name.contains(part))
}

/// The effects of a function with all that it calls.
fn effects(functions: &BTreeMap<String, Function>, name: &str) -> Effects {
    fn visit<'f>(
        functions: &'f BTreeMap<String, Function>,
        name: &'f str,
        path: &mut Vec<&'f str>,
    ) -> Effects {
        let mut effects = Effects {
            interrupts: name == "shootdown_os_ring" || name == "shootdown_send_ipi",
            waits: name.contains("9wait_slow"),
            reclaims: name == "shootdown_os_reclaim",
            stack: 0,
        };
        let Some(function) = functions.get(name) else { return effects };
        path.push(name);
        for call in function.calls.iter().filter(|call| !is_fatal(call)) {
            if !path.contains(&call.as_str()) {
                effects = effects.with(visit(functions, call, path));
            }
        }
        path.pop();
        effects.stack += function.frame;
        effects
    }
    visit(functions, name, &mut Vec::new())
}

impl Effects {
    /// The effects that either has.
    fn with(self, other: Self) -> Self {
        Self {
            interrupts: self.interrupts || other.interrupts,
            waits: self.waits || other.waits,
            reclaims: self.reclaims || other.reclaims,
            stack: self.stack.max(other.stack),
        }
    }

    /// Returns `true` if the line declares these effects, and enough stack, but not far too much.
    fn are_declared_by(self, line: &str) -> bool {
        let stack = line.trim_end_matches('.').rsplit(' ').next().and_then(|it| it.parse().ok());
        line.starts_with(&self.line().0)
            && stack.is_some_and(|it: u64| (self.stack..=self.stack + STACK_SPARE).contains(&it))
    }

    /// The begin and the end of the line that declares these effects.
    fn line(self) -> (String, String) {
        let word = |has| if has { "yes" } else { "no" };
        let (interrupts, waits) = (word(self.interrupts), word(self.waits));
        let reclaims = word(self.reclaims);
        let stack = self.stack.next_multiple_of(STACK_UNIT);
        (
            format!("Interrupts: {interrupts}. Waits: {waits}. Reclaims: {reclaims}."),
            format!("Stack: {stack}."),
        )
    }
}

/// The line of each function in the header.
fn declared() -> Result<BTreeMap<String, String>, Failure> {
    let header = read_tracked("crates/capi/include/shootdown.h")?;
    let mut declared = BTreeMap::new();
    let mut line = None;
    for text in header.lines() {
        if let Some(effects) = text.strip_prefix(" * Interrupts: ") {
            line = Some(format!("Interrupts: {effects}"));
        } else if let Some((before, _)) = text.split_once('(').filter(|_| !text.starts_with(" *")) {
            let name = before.rsplit([' ', '*']).next().unwrap_or_default();
            declared.extend(line.take().map(|line| (name.to_owned(), line)));
        }
    }
    Ok(declared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_three_architectures_are_summed() {
        for (line, bytes) in [
            ("pushq\t%rbx", 8),
            ("subq\t$40, %rsp", 40),
            ("addi\tsp, sp, -2032", 2032),
            ("addi\tsp, sp, 2032", 0),
            ("sub\tsp, sp, #1, lsl #12", 4096),
            ("sub\tsp, sp, #48", 48),
            ("stp\tx29, x30, [sp, #-96]!", 96),
            ("stp\tx29, x30, [sp, #96]", 0),
        ] {
            assert_eq!(pushed(line), bytes, "{line}");
        }
    }

    #[test]
    fn effects_are_those_of_the_calls() {
        let text = "a:\n\tsubq\t$8, %rsp\n\tcallq\tb\n\tcallq\tc@PLT\n\
                    b:\n\tpushq\t%rbx\n\tjmp\tshootdown_os_ring\n\
                    c:\n\tsubq\t$100, %rsp\n\tcallq\tx9wait_slowx\n\tcallq\ta\n\tcallq\td_panic\n\
                    d_panic:\n\tsubq\t$999, %rsp\n\tcallq\tshootdown_os_reclaim\n";
        let mut functions = BTreeMap::new();
        parse(text, &mut functions);
        let expected = Effects { interrupts: true, waits: true, reclaims: false, stack: 108 };
        assert_eq!(effects(&functions, "a"), expected);
        assert_eq!(effects(&functions, "b").stack, 8);
    }

    #[test]
    fn declared_stack_is_enough_and_not_far_too_much() {
        let effects = |stack| Effects { stack, ..Effects::default() };
        let line = "Interrupts: no. Waits: no. Reclaims: no. Callable: before x. Stack: 1024.";
        let enough = [511, 512, 1024, 1025].map(|stack| effects(stack).are_declared_by(line));
        assert_eq!(enough, [false, true, true, false]);
        assert!(!Effects { waits: true, ..effects(1024) }.are_declared_by(line));
    }
}
