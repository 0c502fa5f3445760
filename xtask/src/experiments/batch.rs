//! Several programs in one guest: a boot of 64 emulated CPUs takes minutes, and most programs of
//! the corpus take seconds.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use super::cell::{Cell, PORT, Place, Recorded, run};
use crate::command::{Failure, unwritable};

/// The longest time of one program, in seconds. One that hangs must not cost the recordings of the
/// others.
const PROGRAM_SECONDS_MAX: u32 = 1800;

/// The counters of the engine in the port.
const COUNTS: &str = "/sys/kernel/debug/shootdown/counts";

/// Boots one guest, and records all cells in it, one after the other, with kernel buffers of this
/// size. The cells have the same kernel and number of CPUs.
///
/// Returns each cell with its recording, or the reason why there is none.
pub(super) fn record(
    cells: &[Cell],
    place: &Place,
    options: &str,
    buffer_kib: u32,
) -> Result<Vec<(Cell, Recorded)>, Failure> {
    let (mut ready, mut recorded) = (Vec::new(), Vec::new());
    let script = place.work.join("record.sh");
    let mut files: Vec<PathBuf> = vec![script.clone()];
    for &cell in cells {
        let Some(needed) = cell.program.prepare(&place.work)? else {
            let why = format!("{} is not installed", cell.program.needs);
            recorded.push((cell, Err(why)));
            continue;
        };
        ready.push(cell);
        files.extend(needed);
    }
    let Some(first) = ready.first() else { return Ok(recorded) };
    fs::write(&script, text(&ready, place, buffer_kib)).map_err(unwritable(&script))?;
    let mut guest = first.guest(place, options);
    for file in &files {
        guest = guest.arg("--file").arg(file);
    }
    for cell in &ready {
        guest = guest.arg("--take").arg(cell.recording(place));
        if cell.kernel == PORT {
            guest = guest.arg("--take").arg(cell.counts(place));
        }
    }
    let missing = run(guest.args("-- sh").arg(&script).within(&place.work), &first.to_string())?;
    recorded.extend(ready.into_iter().map(|cell| {
        let path = cell.recording(place);
        let failed = || "the program failed in the guest".to_owned();
        let recorded = match &missing {
            None if path.is_file() => Ok(path),
            missing => Err(missing.clone().unwrap_or_else(failed)),
        };
        (cell, recorded)
    }));
    Ok(recorded)
}

/// Returns the script that runs in the guest.
fn text(cells: &[Cell], place: &Place, buffer_kib: u32) -> String {
    let recordings = quoted(&place.recordings.display().to_string());
    let mut text = format!(
        "mkdir -p {recordings}\n\
         mount -t debugfs debugfs /sys/kernel/debug 2> /dev/null\n\
         counts() {{ cat {COUNTS} >> \"$recording.counts\" 2> /dev/null; }}\n\
         record() {{\n\
         recording=$1; shift; counts\n\
         timeout {PROGRAM_SECONDS_MAX} shootdown record --quiet --buffer-kib {buffer_kib} \
         --output \"$recording\" -- \"$@\" < /dev/null > output 2>&1\n\
         status=$?; counts; [ $status = 0 ] && return\n\
         echo \"$recording: exit status $status\"; tail -n 5 output\n\
         }}\n"
    );
    for cell in cells {
        text += "record";
        let recording = cell.recording(place).display().to_string();
        for word in [recording].into_iter().chain(cell.program.command(cell.cpus)) {
            // A string never refuses text.
            let _ = write!(text, " {}", quoted(&word));
        }
        text += "\n";
    }
    text
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::corpus::CORPUS;

    #[test]
    fn words_are_quoted() {
        assert_eq!(quoted("a'b $c"), r"'a'\''b $c'");
    }

    #[test]
    fn script_records_each_cell() {
        let [lab, work, recordings] = ["", "/w", "/r"].map(PathBuf::from);
        let place = Place { lab, work, recordings };
        let cell =
            |index: usize| Cell { program: &CORPUS.everywhere[index], kernel: "6.12", cpus: 8 };
        let text = text(&[cell(0), cell(8)], &place, 4096);
        assert!(text.contains("record '/r/loop-madvise-6.12-8.shootdown' './loops' 'madvise' '8'"));
        assert!(text.contains("record '/r/xz-6.12-8.shootdown' 'xz' '-1' '-T8'"), "{text}");
    }
}
