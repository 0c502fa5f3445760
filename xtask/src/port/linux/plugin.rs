//! Boots with a plugin of QEMU that counts, and writes a line at each mark of the guest's program.

use std::fs;
use std::path::{Path, PathBuf};

use super::guest::Boot;
use crate::command::{Command, Failure, unwritable};
use crate::port::row::Row;

/// Compiles a plugin of `ports/linux/guest`.
pub(super) fn compile(name: &str) -> Result<PathBuf, Failure> {
    let folder = crate::output().join("ports/linux");
    fs::create_dir_all(&folder).map_err(unwritable(&folder))?;
    let plugin = folder.join(format!("lib{name}.so"));
    crate::setup::c_compiler()?;
    let command = Command::new("gcc").args("-shared -fPIC -O2 -Wall -Wextra -Werror -o");
    command.arg(&plugin).arg(format!("ports/linux/guest/{name}.c")).run()?;
    Ok(plugin)
}

/// The lines that a plugin wrote at the marks before and after each program.
pub(super) type Marks = Vec<[String; 2]>;

/// Boots with a plugin and its arguments. Returns all output of the guest, and the plugin's lines.
pub(super) fn output(
    boot: &Boot<'_>,
    plugin: &Path,
    arguments: &str,
) -> Result<(String, Marks), Failure> {
    let place = plugin.with_extension(format!("{}.{}", boot.kernel.name, boot.cpus));
    let option = format!("{},out={}{arguments}", plugin.display(), place.display());
    let output = boot.output_with(&["-plugin", &option])?;
    let text = fs::read_to_string(&place).map_err(unwritable(&place))?;
    let lines: Vec<_> = text.lines().map(str::to_owned).collect();
    Ok((output, lines.as_chunks().0.to_vec()))
}

/// A row that the guest printed, and the plugin's lines before and after its program.
pub(super) type Marked = (Row, [String; 2]);

/// Returns each row that the guest prints, with the plugin's lines before and after its program;
/// and all output of the guest.
pub(super) fn counted(
    boot: &Boot<'_>,
    plugin: &Path,
    arguments: &str,
) -> Result<(Vec<Marked>, String), Failure> {
    let (text, marks) = output(boot, plugin, arguments)?;
    let (runs, text) = boot.parsed(text)?;
    if marks.len() != runs.len() {
        let cause = format!("{} programs, and {} pairs of marks", runs.len(), marks.len());
        return Err(Failure::new(cause, "find the cause in the plugin, in ports/linux/guest"));
    }
    Ok((runs.into_iter().zip(marks).collect(), text))
}
