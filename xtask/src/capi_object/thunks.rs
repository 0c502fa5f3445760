//! Branches as Linux's mitigations need them. Options of a stable compiler do not reach `core`,
//! which was compiled before, so the assembly of the whole library is rewritten.

use std::fmt::Write as _;

/// The instructions that Linux replaces by code that counts the depth of calls.
const PADDING_BYTES: u32 = 16;

/// Replaces returns and indirect branches by branches to Linux's thunks, and pads each function.
///
/// Linux rewrites these branches when it boots, for the processor. A branch by memory loads R11
/// first, which no function expects and each may change.
pub(super) fn through_thunks(assembly: &str) -> String {
    let mut text = String::with_capacity(2 * assembly.len());
    for line in assembly.lines() {
        let mut words = line.split_whitespace();
        // A write to a string does not fail.
        let _ = match (words.next(), words.next()) {
            (Some("ret" | "retq"), None) => writeln!(text, "\tjmp\t__x86_return_thunk"),
            (Some(branch @ ("callq" | "jmpq")), Some(to)) if to.starts_with('*') => {
                let (branch, to) = (branch.trim_end_matches('q'), &to[1..]);
                let register = to.strip_prefix('%').unwrap_or_else(|| {
                    let _ = writeln!(text, "\tmovq\t{to}, %r11");
                    "r11"
                });
                writeln!(text, "\t{branch}\t__x86_indirect_thunk_{register}")
            }
            (Some(".type"), Some(name)) if name.ends_with(",@function") => {
                writeln!(text, "{line}\n\t.skip\t{PADDING_BYTES}, 0x90")
            }
            _ => writeln!(text, "{line}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn branches_of_each_kind_take_thunks() {
        let before = "\t.type\tf,@function\nf:\n\tcallq\t*%rax\n\tjmpq\t*8(%rbx,%rcx)\n\
                      \tcallq\tg\n\tretq\n";
        let after = "\t.type\tf,@function\n\t.skip\t16, 0x90\nf:\n\
                     \tcall\t__x86_indirect_thunk_rax\n\
                     \tmovq\t8(%rbx,%rcx), %r11\n\tjmp\t__x86_indirect_thunk_r11\n\
                     \tcallq\tg\n\tjmp\t__x86_return_thunk\n";
        assert_eq!(super::through_thunks(before), after);
    }
}
