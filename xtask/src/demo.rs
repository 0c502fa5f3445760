//! The demonstration, and the checks of the README's promises about it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{Command, Failure, cargo, read_tracked};
use crate::test::builds;
use crate::{output, root};

/// The page of a quick demonstration that is not about recordings.
const STUDIES: &str = "demo-studies.html";

/// Chapters of that page: a text in each, and the numbers of its plots and rows. The second has the
/// rates of five loops and the interrupts of four, each on four sizes and with a row of titles; the
/// last has a drawing of each known bug.
const CHAPTERS: [(&str, &str, usize, usize); 3] = [
    ("published", "Published measurements", 24, 147),
    ("sizes", "more and fewer CPUs", 5 + 4, 5 * 5),
    ("zoo", "found 76 of 76 known bugs", 76, 0),
];

/// How much of the studies the demonstration simulates.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Studies {
    /// Everything, by the command that ships.
    Full,
    /// A part in a tenth of the time, by the build for tests: CI has no other.
    Quick,
}

/// Replays the recordings, reproduces the studies, and writes a report.
pub(crate) fn run(studies: Studies) -> Result<(), Failure> {
    commands(studies)?.into_iter().try_for_each(Command::run)
}

/// Returns the commands: one for everything, or two, because a quick page about recordings has
/// nothing else.
fn commands(studies: Studies) -> Result<Vec<Command>, Failure> {
    let report = |name: &str| -> Result<Command, Failure> {
        let lab = match studies {
            Studies::Full => cargo("run --quiet --release -p shootdown-lab --"),
            Studies::Quick => Command::new(builds::lab()?),
        };
        let page = output().join(name);
        // The command runs in the root, and prints the path that it is given.
        Ok(lab.args("report --output").arg(page.strip_prefix(root()).unwrap_or(&page)))
    };
    let with_recordings =
        |command: Command| Ok(recordings()?.into_iter().fold(command, Command::arg));
    Ok(match studies {
        Studies::Full => vec![with_recordings(report("demo.html")?)?],
        Studies::Quick => vec![
            report(STUDIES)?.arg("--quick"),
            with_recordings(report("demo.html")?.arg("--quick"))?,
        ],
    })
}

/// Returns the recordings that ship in `traces/`.
fn recordings() -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(root().join("traces"))
        .map_err(|error| Failure::new(format!("traces: {error}"), "git checkout traces"))?;
    let mut files: Vec<_> = entries
        .filter_map(|entry| Some(Path::new("traces").join(entry.ok()?.file_name())))
        .filter(|path| path.extension().is_some_and(|extension| extension == "shootdown"))
        .collect();
    files.sort();
    Ok(files)
}

/// Runs each command that the README shows, and checks the lines that it shows of the output. Of
/// the demonstration, this is a part that is quick. `cargo xtask soak` runs it whole.
pub(crate) fn readme() -> Result<(), Failure> {
    let text = read_tracked("README.md")?;
    let mut commands = 0;
    for line in text.lines().filter_map(|line| line.strip_prefix("$ ")) {
        commands += 1;
        match line {
            // This step is a part of that command.
            "cargo xtask test" => {}
            "cargo xtask demo" => {
                prints(&text, line)?;
                has_chapters(&output().join(STUDIES))?;
            }
            _ => {
                return Err(Failure::new(
                    format!("README.md shows `{line}`, which no test runs"),
                    "add the command to `readme` in xtask/src/demo.rs",
                ));
            }
        }
    }
    println!("{commands} commands of the README work");
    Ok(())
}

/// Runs the demonstration. Checks that it prints each line that `readme` shows after the command.
fn prints(readme: &str, command_line: &str) -> Result<(), Failure> {
    let mut printed = Vec::new();
    for command in commands(Studies::Quick)? {
        let status = command.lines(|line| {
            println!("{line}");
            printed.push(words(line));
        })?;
        if !status.success() {
            return Err(Failure::new(format!("`{command_line}` fails"), "read its output above"));
        }
    }
    match shown(readme, command_line).find(|line| !printed.contains(&words(line))) {
        None => Ok(()),
        Some(line) => Err(Failure::new(
            format!("README.md shows a line that `{command_line}` does not print: {line}"),
            "edit README.md",
        )),
    }
}

/// Checks the chapters of the page that is not about recordings.
fn has_chapters(page: &Path) -> Result<(), Failure> {
    let page = fs::read_to_string(page).unwrap_or_default();
    for (id, text, plots, rows) in CHAPTERS {
        let chapter = page.split("<h2 ").find(|it| it.starts_with(&format!("id=\"{id}\"")));
        let chapter = chapter.unwrap_or_default();
        let found = (chapter.matches("<svg ").count(), chapter.matches("<tr>").count());
        if found != (plots, rows) || !chapter.contains(text) {
            return Err(Failure::new(
                format!("chapter `{id}` has (plots, rows) = {found:?}, or no `{text}`"),
                "compare `shootdown report --quick` with CHAPTERS in xtask/src/demo.rs",
            ));
        }
    }
    Ok(())
}

/// Returns the lines of output that a text shows after a command, except empty ones, and those that
/// stand for others.
fn shown<'t>(text: &'t str, command_line: &str) -> impl Iterator<Item = &'t str> {
    let after = text.split_once(&format!("$ {command_line}\n")).map_or("", |(_, after)| after);
    let block = after.split("```").next().unwrap_or_default();
    block.lines().map(str::trim_end).filter(|line| !["", "…"].contains(line))
}

/// Returns the words of a line. The width of a column depends on rows that only the whole
/// demonstration has.
fn words(line: &str) -> Vec<String> {
    let word =
        |word: &str| if word.starts_with('─') { "─".to_owned() } else { word.to_owned() };
    line.split_whitespace().map(word).collect()
}

/// Checks that a simulation depends on its seed, and on nothing else of the host or the build: the
/// build for tests and one without assertions, with another optimisation, give the same bytes.
pub(crate) fn same_bytes() -> Result<(), Failure> {
    const EXAMPLE: &str = "outcomes";
    let tested = builds::example(EXAMPLE)?.output()?;
    // Only what simulates: it takes a third of the build.
    let run = cargo("run --quiet --profile bytes -p shootdown-run --example").arg(EXAMPLE);
    if tested != run.output()? {
        return Err(Failure::new(
            "the same simulation gave different results",
            format!("compare the output of the example `{EXAMPLE}` of the profiles ci and bytes"),
        ));
    }
    println!("{} bytes, the same from both builds", tested.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_lines_are_those_of_the_block() {
        let text = "```console\n$ run\na  b\n…\n\nc\n```\nd\n```console\n$ other\n```\n";
        assert_eq!(shown(text, "run").collect::<Vec<_>>(), ["a  b", "c"]);
        assert_eq!(shown(text, "other").count(), 0);
        assert_eq!(words("a   bc 1"), words("a bc  1"));
        assert_eq!(words("──  ────"), words("────── ─"));
        assert_ne!(words("a 1"), words("a 2"));
    }
}
