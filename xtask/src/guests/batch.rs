//! Several programs in one guest: a boot of 64 emulated CPUs takes minutes, and most programs of
//! the corpus take seconds.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::cell::{Cell, Place, Recorded, run};
use crate::command::{Command, Failure};

/// The longest time of one program, in seconds. One that hangs must not cost the recordings of the
/// others.
const PROGRAM_SECONDS_MAX: u32 = 1800;

/// The size of each of the kernel's buffers, in KiB, as `shootdown guest` has it.
const BUFFER_KIB: u32 = 4096;

/// Boots one guest, and records all cells in it, one after the other. The cells have the same
/// kernel and number of CPUs. `files` are those that the programs need.
///
/// Returns, for each cell, its recording, or the reason why there is none.
pub(super) fn record(
    cells: &[Cell],
    place: &Place,
    files: &[PathBuf],
    options: &str,
) -> Result<Vec<Recorded>, Failure> {
    let Some(first) = cells.first() else { return Ok(Vec::new()) };
    let script = place.work.join("record.sh");
    fs::write(&script, text(cells, place)).map_err(|error| {
        Failure::new(format!("{}: {error}", script.display()), "free some disk space")
    })?;
    let mut guest = first.guest(place, options);
    for file in files.iter().chain([&script]) {
        guest = guest.arg("--file").arg(file);
    }
    for cell in cells {
        guest = guest.arg("--take").arg(cell.recording(place));
    }
    let guest = guest.args("-- sh").arg(&script).within(&place.work);
    if let Some(missing) = run(guest, &first.to_string())? {
        return Ok(vec![Recorded::Missing(missing); cells.len()]);
    }
    let recorded = |cell: &Cell| match cell.recording(place) {
        path if path.is_file() => Recorded::At(path),
        _ => Recorded::Missing("the program failed in the guest".to_owned()),
    };
    Ok(cells.iter().map(recorded).collect())
}

/// Returns the script that runs in the guest.
fn text(cells: &[Cell], place: &Place) -> String {
    let recordings = quoted(&place.recordings.display().to_string());
    let mut text = format!(
        "mkdir -p {recordings}\n\
         record() {{\n\
         recording=$1; shift\n\
         timeout {PROGRAM_SECONDS_MAX} shootdown record --quiet --buffer-kib {BUFFER_KIB} \
         --output \"$recording\" -- \"$@\" < /dev/null > output 2>&1 && return\n\
         echo \"$recording: exit status $?\"; tail -n 5 output\n\
         }}\n"
    );
    for cell in cells {
        text += "record";
        let recording = cell.recording(place).display().to_string();
        for word in [recording].into_iter().chain((cell.program.command)(cell.cpus)) {
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

/// Cells, by whether this host has their programs.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    pub(super) ready: Vec<Cell>,
    /// The files that the programs of the cells need.
    pub(super) files: Vec<PathBuf>,
    /// The cells whose programs are not installed.
    pub(super) absent: Vec<Cell>,
}

impl Prepared {
    /// Makes the inputs of the programs.
    pub(super) fn new(cells: &[Cell], work: &Path) -> Result<Self, Failure> {
        let mut prepared = Self::default();
        for cell in cells {
            let Some(files) = cell.program.prepare(work)? else {
                prepared.absent.push(*cell);
                continue;
            };
            prepared.ready.push(*cell);
            prepared.files.extend(files);
            // `shootdown guest` finds the program that it starts, which is a shell here.
            prepared.files.extend(program(&(cell.program.command)(cell.cpus)[0], work)?);
        }
        Ok(prepared)
    }
}

/// Returns the path of the first word of a command, unless the guest has it.
fn program(word: &str, work: &Path) -> Result<Option<PathBuf>, Failure> {
    if word == "sh" {
        return Ok(None);
    }
    let find = Command::new("sh").args("-c").arg(format!("command -v {}", quoted(word)));
    let path = find.within(work).output()?;
    Ok(Some(work.join(path.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guests::corpus::PROGRAMS;

    #[test]
    fn words_are_quoted() {
        assert_eq!(quoted("a'b $c"), r"'a'\''b $c'");
    }

    #[test]
    fn script_records_each_cell() {
        let place = Place {
            lab: PathBuf::new(),
            work: PathBuf::from("/w"),
            recordings: PathBuf::from("/r"),
        };
        let cell = |program| Cell { program, kernel: "6.12", cpus: 8 };
        let text = text(&[cell(&PROGRAMS[0]), cell(&PROGRAMS[8])], &place);
        assert!(text.contains("record '/r/loop-madvise-6.12-8.shootdown' './loops' 'madvise' '8'"));
        assert!(text.contains("record '/r/xz-6.12-8.shootdown' 'xz' '-1' '-T8'"), "{text}");
    }
}
