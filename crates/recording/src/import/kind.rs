//! Files that people have instead of the text of events, known by their first bytes or lines.

use std::io::{BufRead, Read as _, Seek, SeekFrom};

use super::ImportError;

/// Number of bytes that are looked at.
const LOOKED_AT: u64 = 8 << 10;

/// The first bytes of files, their kinds and remedies.
const BEGINNINGS: [(&[u8], &str, &str); 7] = [
    (b"\x1f\x8b", "compressed with gzip", "gunzip FILE.gz, and import FILE"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "unzstd FILE.zst, and import FILE"),
    (b"PERFILE2", "perf.data", "perf script --ns -i FILE > FILE.txt, and import FILE.txt"),
    (
        b"\x17\x08\x44tracing",
        "trace.dat",
        "trace-cmd report -t FILE > FILE.txt, and import FILE.txt",
    ),
    (b"\xff\xfe", UTF_16, FROM_UTF_16),
    (b"\xfe\xff", UTF_16, FROM_UTF_16),
    (b"\x89SHOOT", "a recording already", "shootdown explain FILE"),
];
const RECORD: &str = "shootdown record --all --duration 10s";
const UTF_16: &str = "text in UTF-16, as PowerShell redirects it";
const FROM_UTF_16: &str = "iconv -f utf-16 -t utf-8 FILE > FILE.txt, and import FILE.txt";

/// Refuses a file that is known by its first bytes. The text is left at its start.
pub(super) fn refuse_other(text: &mut (impl BufRead + Seek)) -> Result<(), ImportError> {
    let bytes = beginning(text)?;
    let known = BEGINNINGS.iter().find(|(beginning, ..)| bytes.starts_with(beginning));
    known.map_or(Ok(()), |(_, name, remedy)| Err(ImportError::OtherFile { name, remedy }))
}

/// Returns the reason why there is no event in a text.
pub(super) fn without_events(text: &mut (impl BufRead + Seek)) -> ImportError {
    let Ok(bytes) = beginning(text) else { return ImportError::NoEvents };
    let bytes = String::from_utf8_lossy(&bytes);
    let has = |is: fn(&str) -> bool| bytes.lines().any(is);
    let (name, remedy) = if bytes.trim_start().starts_with('{') {
        ("JSON", "perf script --ns -i perf.data > FILE.txt, and import FILE.txt")
    } else if has(|line| line.trim_start().starts_with("CPU0 ")) {
        ("/proc/interrupts, which has counters and no events", RECORD)
    } else if has(|line| line.starts_with('@')) {
        ("the output of bpftrace, which has sums and no events", RECORD)
    } else if has(has_decimal_comma) {
        ("text with decimal commas", "LC_ALL=C perf script --ns > FILE.txt, and import FILE.txt")
    } else if has(is_latency_format) {
        ("ftrace's latency format", "echo 0 > options/latency-format, and read `trace` again")
    } else if has(|line| line.contains("tlb_flush:") && !line.contains('[')) {
        ("text without CPU numbers", "perf script --ns -F +cpu > FILE.txt, and import FILE.txt")
    } else {
        return ImportError::NoEvents;
    };
    ImportError::OtherFile { name, remedy }
}

fn beginning(text: &mut (impl BufRead + Seek)) -> Result<Vec<u8>, ImportError> {
    let start = text.stream_position().map_err(ImportError::Read)?;
    let mut bytes = Vec::new();
    text.by_ref().take(LOOKED_AT).read_to_end(&mut bytes).map_err(ImportError::Read)?;
    text.seek(SeekFrom::Start(start)).map_err(ImportError::Read)?;
    Ok(bytes)
}

/// Returns `true` if a line has a time such as `6041,153192:`.
fn has_decimal_comma(line: &str) -> bool {
    line.contains('[')
        && line.split_whitespace().any(|word| {
            let time = word.strip_suffix(':').and_then(|word| word.split_once(','));
            let is_number =
                |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
            time.is_some_and(|(seconds, rest)| is_number(seconds) && is_number(rest))
        })
}

/// Returns `true` if a line has a time such as `73115us :`, or `73115us+:`.
fn is_latency_format(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let time =
        words.find_map(|word| word.trim_end_matches(['+', '!', '#', ':']).strip_suffix("us"));
    time.is_some_and(|time| !time.is_empty() && time.bytes().all(|it| it.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn other_files_are_named() {
        let named = |bytes: &[u8]| {
            let mut text = Cursor::new(bytes);
            let refused = refuse_other(&mut text).err();
            refused.unwrap_or_else(|| without_events(&mut text)).to_string()
        };
        for (bytes, name) in [
            (&b"\x1f\x8b\x08"[..], "gzip"),
            (b"PERFILE2\0", "perf.data"),
            (b"\x17\x08\x44tracing6\0", "trace.dat"),
            (b"\xff\xfep\0", "UTF-16"),
            (b"{\n \"linux-perf-json-version\": 1}", "JSON"),
            (b"           CPU0       CPU1\nTLB: 1 2\n", "/proc/interrupts"),
            (b"Attaching 1 probe...\n@[sh]: 5\n", "bpftrace"),
            (b"p 7 [000] 12,345: tlb:tlb_flush: pages:1 reason:x (0)\n", "decimal commas"),
            (b"  p-7  0d..1. 73115us : tlb_flush: pages:-1 reason:x (0)\n", "latency"),
            (b"p 7 12.345: tlb:tlb_flush: pages:1 reason:x (0)\n", "CPU numbers"),
            (b"hello\n", "no event"),
        ] {
            assert!(named(bytes).contains(name), "{name}: {}", named(bytes));
        }
    }
}
