//! The call stacks that `perf script` prints below events, a line for each call:
//!
//! ```text
//!         ffffffff81342e3b native_flush_tlb_multi+0x1b ([kernel.kallsyms])
//!             7f2c8d11f47b __madvise+0xb (/usr/lib/x86_64-linux-gnu/libc.so.6)
//! ```

use crate::record::{Frame, Layer};

/// Start of the kernel's half of the address space.
const KERNEL_HALF: u64 = 1 << 63;

/// A function or a file that perf does not know.
const UNKNOWN: &str = "[unknown]";

/// Parses the line of a call; `None` if it is another line.
pub(super) fn frame(line: &str) -> Option<Frame> {
    let call = line.trim_start();
    if call.len() == line.len() {
        return None;
    }
    let (address, call) = call.split_once(' ')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let (function, file) = call.strip_suffix(')')?.rsplit_once(" (")?;
    if (function, file) == (UNKNOWN, UNKNOWN) {
        // perf followed a register that is no frame pointer.
        return None;
    }
    let function = match function.rsplit_once("+0x") {
        Some((function, _)) => function.to_owned(),
        None if function == UNKNOWN => {
            format!("[{}+{address:#x}]", file.rsplit('/').next().unwrap_or_default())
        }
        None => function.to_owned(),
    };
    if address < KERNEL_HALF {
        return Some(Frame { layer: Layer::User, function, file: file.to_owned(), line: 0 });
    }
    // The compiler's clones have a suffix.
    let function = function.split('.').next().unwrap_or_default().to_owned();
    Some(Frame { layer: Layer::Kernel, function, file: String::new(), line: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_calls_are_parsed() {
        let shown = |line| frame(line).map(|it| (it.layer, it.function, it.file));
        let kernel = "\tffffffff81342e3b do_madvise.part.0+0x1b ([kernel.kallsyms])";
        assert_eq!(shown(kernel), Some((Layer::Kernel, "do_madvise".into(), String::new())));
        let user = "\t    55d0c0a011a9 release(int, long)+0x9 (/srv/a b)";
        assert_eq!(
            shown(user),
            Some((Layer::User, "release(int, long)".into(), "/srv/a b".into()))
        );
        let unknown = "\t          6b0bc [unknown] (/usr/bin/rg)";
        assert_eq!(shown(unknown).map(|it| it.1).as_deref(), Some("[rg+0x6b0bc]"));
        for other in [
            "",
            "ffff f+0x1 (x)",
            "\t# comment",
            "\tzz f+0x1 (x)",
            "\t12 f",
            "\t 0 [unknown] ([unknown])",
        ] {
            assert_eq!(shown(other), None, "{other}");
        }
    }
}
