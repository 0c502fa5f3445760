//! The C interface as one object, for kernels that link no archive and have no global offset table.

mod thunks;

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{Command, Failure, unwritable};
use crate::setup::{self, emulators};

/// The library's features, if no others are named.
pub(crate) const FEATURES: &str = "panic-handler,processor,checks,statistics";

/// Returns and indirect branches of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Branches {
    /// The processor's.
    Plain,
    /// Those of a Linux that has mitigations: thunks, padding before each function, no tables of
    /// jumps, and `ENDBR` where an indirect branch may arrive.
    Thunks,
}

/// As the kernel is linked.
const RUSTFLAGS: &str = "-Crelocation-model=static -Ccode-model=kernel -Cno-redzone=yes \
                         -Cforce-frame-pointers=yes";

/// LLVM's own options: a stable compiler has no others for the same.
const NO_JUMP_TABLES_AND_ENDBR: &str = "-Cllvm-args=-min-jump-table-entries=1000000 \
                                        -Cllvm-args=-x86-indirect-branch-tracking";

/// Builds the object, and copies it to `output`.
pub(crate) fn build_to(output: &str, features: &str) -> Result<(), Failure> {
    let object = build(features, Branches::Plain)?;
    fs::copy(object, output).map_err(unwritable(output))?;
    Command::new("nm").args("-u").arg(fs::canonicalize(output).map_err(unwritable(output))?).run()
}

/// Builds the object for x86-64. Its undefined symbols are the kernel's functions, `memcpy` and
/// `memset`.
///
/// A compiler's own `core` is made for other kernels: it calls these two through a global offset
/// table, and a stable compiler has no option against it. So the whole library, optimised as one,
/// is assembled here, with direct calls.
pub(crate) fn build(features: &str, branches: Branches) -> Result<PathBuf, Failure> {
    const TARGET: &str = "x86_64-unknown-none";
    setup::c_compiler()?;
    let (name, options) = match branches {
        Branches::Plain => (String::new(), ""),
        Branches::Thunks => ("+thunks".to_owned(), NO_JUMP_TABLES_AND_ENDBR),
    };
    // One folder for each of them: cargo writes the assembly only when it compiles.
    let folder = crate::output().join("capi-object").join(features.replace(',', "+") + &name);
    let (assembly, direct) = (folder.join("shootdown.s"), folder.join("direct.s"));
    compilation(TARGET, features, &folder)?
        .arg(format!("--emit=link,asm={}", assembly.display()))
        .env("RUSTFLAGS", format!("{RUSTFLAGS} {options}"))
        .run()?;
    let text = fs::read_to_string(&assembly).map_err(unwritable(&assembly))?;
    let text = with_direct_calls(&text);
    let text = match branches {
        Branches::Plain => text,
        Branches::Thunks => thunks::through_thunks(&text),
    };
    fs::write(&direct, text).map_err(unwritable(&direct))?;
    let (parts, object) = (folder.join("parts.o"), folder.join("shootdown.o"));
    Command::new("gcc").args("-c").arg(direct).arg("-o").arg(&parts).run()?;
    let script = Path::new("crates/capi/object.lds");
    Command::new("ld").args("-r -T").arg(script).arg(parts).arg("-o").arg(&object).run()?;
    Ok(object)
}

/// Returns the command that compiles the library, optimised as one, into `folder`. Options of the
/// compiler may follow.
fn compilation(target: &str, features: &str, folder: &Path) -> Result<Command, Failure> {
    let words =
        "rustc --quiet --release -p shootdown-capi --crate-type staticlib --no-default-features";
    let command = emulators::cargo_for_target(words, target)?
        .arg("--features")
        .arg(features)
        .arg("--target-dir")
        .arg(folder)
        .args("--");
    Ok(command.env("CARGO_PROFILE_RELEASE_LTO", "fat").env("CARGO_PROFILE_RELEASE_PANIC", "abort"))
}

/// Builds the object for AArch64, whose `core` is compiled without a global offset table. It uses
/// no register of floating point; it uses X18, in which a kernel may have a stack of calls.
pub(crate) fn build_for_aarch64(features: &str) -> Result<PathBuf, Failure> {
    const TARGET: &str = "aarch64-unknown-none-softfloat";
    let name = format!("{TARGET}+{}", features.replace(',', "+"));
    let folder = crate::output().join("capi-object").join(name);
    let (parts, object) = (folder.join("parts.o"), folder.join("shootdown.o"));
    compilation(TARGET, features, &folder)?
        .arg(format!("--emit=link,obj={}", parts.display()))
        .env("RUSTFLAGS", "-Crelocation-model=static -Cforce-frame-pointers=yes")
        .run()?;
    let script = Path::new("crates/capi/object.lds");
    Command::new("aarch64-linux-gnu-ld")
        .args("-r -T")
        .arg(script)
        .arg(parts)
        .arg("-o")
        .arg(&object)
        .run()?;
    Ok(object)
}

/// Replaces calls and loads through the global offset table by direct ones, and drops the lines of
/// `core`'s source.
fn with_direct_calls(assembly: &str) -> String {
    const IN_TABLE: &str = "@GOTPCREL(%rip)";
    let mut direct = String::with_capacity(assembly.len());
    for line in assembly.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some(".loc"), _) => continue,
            (Some(".file"), Some(number)) if !number.starts_with('"') => continue,
            (Some(call @ ("callq" | "jmpq")), Some(name)) if name.ends_with(IN_TABLE) => {
                let name = name.trim_start_matches('*').trim_end_matches(IN_TABLE);
                direct.push_str(&format!("\t{}\t{name}\n", call.trim_end_matches('q')));
            }
            (Some("movq"), Some(name)) if name.trim_end_matches(',').ends_with(IN_TABLE) => {
                let name = name.trim_end_matches(',').trim_end_matches(IN_TABLE);
                let register = words.next().unwrap_or_default();
                direct.push_str(&format!("\tmovq\t${name}, {register}\n"));
            }
            _ => {
                direct.push_str(line);
                direct.push('\n');
            }
        }
    }
    direct
}

/// Links the object into a kernel whose script refuses a global offset table and sections that it
/// does not name, and compiles the header without a C library.
pub(crate) fn check() -> Result<(), Failure> {
    let object = build(FEATURES, Branches::Plain)?;
    Command::new("gcc")
        .args("-std=c11 -Wall -Wextra -Werror -O1 -ffreestanding -nostdinc -nostdlib -fno-pie")
        .args("-mcmodel=kernel -mno-red-zone -I crates/capi/include -I crates/capi/tests -e start")
        .args("-no-pie -static -Wl,--orphan-handling=error,--fatal-warnings,--build-id=none")
        .args("-z noexecstack -T crates/capi/tests/object.lds crates/capi/tests/object.c")
        .arg(&object)
        .arg("-o")
        .arg(object.with_file_name("kernel"))
        .run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_of_the_table_become_direct() {
        let before = "\t.file\t\"a\"\n\t.file\t1 \"b\" \"c\"\n\t.loc\t1 2\n\
                      \tcallq\t*memcpy@GOTPCREL(%rip)\n\
                      \tmovq\tmemset@GOTPCREL(%rip), %r14\n\tret\n";
        let after = "\t.file\t\"a\"\n\tcall\tmemcpy\n\tmovq\t$memset, %r14\n\tret\n";
        assert_eq!(with_direct_calls(before), after);
    }
}
