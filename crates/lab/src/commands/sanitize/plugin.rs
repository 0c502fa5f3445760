//! The plugin of QEMU, and the file into which it writes.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use shootdown_sanitizer::report::{Deed, Line, Mode};
use tempfile::NamedTempFile;

use super::error::SanitizeError;
use super::hooks::Hook;
use super::symbols::Symbols;

const NAME: &str = "libshootdown_sanitizer.so";
/// The place in a package, from the folder of the command.
const INSTALLED: &str = "../lib/shootdown/libshootdown_sanitizer.so";

/// The plugin with its arguments.
#[derive(Debug)]
pub(crate) struct Plugin {
    path: PathBuf,
    out: NamedTempFile,
    arguments: String,
    /// The symbols of the hooks, in the order of the plugin's arguments.
    hooks: Vec<String>,
}

impl Plugin {
    /// Finds the plugin: at the path that the user gave, beside this command, or where a package
    /// installs it.
    ///
    /// # Errors
    ///
    /// If it is not there, or there can be no temporary file.
    pub(crate) fn find(path: Option<&Path>) -> Result<Self, SanitizeError> {
        let out = NamedTempFile::new().map_err(SanitizeError::Temporary)?;
        let directory = std::env::current_exe().ok();
        let directory = directory.as_deref().and_then(Path::parent).unwrap_or(Path::new("."));
        let places = [NAME.into(), Path::new("deps").join(NAME), INSTALLED.into()];
        let candidates = path.map_or_else(
            || places.map(|place: PathBuf| directory.join(place)).to_vec(),
            |path| vec![path.to_owned()],
        );
        // Cargo leaves the plugin at the first or the second place. The newer is that of the last
        // build.
        let built = |path: &&PathBuf| path.metadata().and_then(|file| file.modified()).ok();
        let found = candidates.iter().filter(|path| path.is_file()).max_by_key(built);
        let path = found.cloned().ok_or_else(|| SanitizeError::NoPlugin(candidates[0].clone()))?;
        // QEMU takes a name without a directory for that of a library.
        let path = std::path::absolute(&path).unwrap_or(path);
        Ok(Self { path, out, arguments: String::new(), hooks: Vec::new() })
    }

    /// Adds hooks.
    ///
    /// # Errors
    ///
    /// If a hook's symbol is not among `symbols`.
    pub(crate) fn with_hooks(
        mut self,
        hooks: &[Hook],
        symbols: &Symbols,
    ) -> Result<Self, SanitizeError> {
        for hook in hooks {
            let before = self.hooks.len();
            for address in symbols.addresses(hook.symbol()) {
                self.arguments += &format!(",{}", hook.argument(address));
                self.hooks.push(hook.symbol().to_owned());
            }
            if self.hooks.len() == before {
                return Err(SanitizeError::NoSymbol(hook.symbol().to_owned()));
            }
        }
        Ok(self)
    }

    /// Adds the modes, all but speculation if there is none, and the largest number of faults.
    pub(crate) fn with(mut self, modes: &[Mode], limit: u64) -> Self {
        for mode in modes {
            self.arguments += &format!(",mode={}", mode.name());
        }
        self.arguments += &format!(",limit={limit}");
        self
    }

    /// QEMU's arguments for the plugin. QEMU writes a comma in a value as two.
    pub(crate) fn arguments(&self) -> [String; 2] {
        let quoted = |path: &Path| path.display().to_string().replace(',', ",,");
        let (path, out) = (quoted(&self.path), quoted(self.out.path()));
        ["-plugin".to_owned(), format!("{path},out={out}{}", self.arguments)]
    }

    /// The event that made an entry a fault.
    pub(super) fn deed(&self, deed: Deed) -> String {
        let hook = |index| format!("in {}", self.hooks.get(index).map_or("?", String::as_str));
        match deed {
            Deed::Reused(index) | Deed::Settled(index) => hook(index),
            Deed::Overwritten => "which has overwritten it by another mapping".to_owned(),
            Deed::Mapped => "which uses it by another page".to_owned(),
            Deed::Walked => "which walks it as a page table".to_owned(),
        }
    }

    /// The lines that the plugin writes.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened.
    pub(crate) fn lines(&self) -> Result<Lines, SanitizeError> {
        let file = File::open(self.out.path()).map_err(SanitizeError::Temporary)?;
        Ok(Lines { file: BufReader::new(file), rest: String::new() })
    }
}

/// The lines of a file that grows.
#[derive(Debug)]
pub(crate) struct Lines {
    file: BufReader<File>,
    /// The beginning of a line whose end is not written yet.
    rest: String,
}

impl Lines {
    /// Returns the lines that were written since the last call.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or has a line of another version of the plugin.
    pub(crate) fn read(&mut self) -> Result<Vec<Line>, SanitizeError> {
        let mut lines = Vec::new();
        loop {
            self.file.read_line(&mut self.rest).map_err(SanitizeError::Temporary)?;
            if !self.rest.ends_with('\n') {
                return Ok(lines);
            }
            let line = Line::parse(&self.rest).map_err(|error| SanitizeError::Refused {
                cause: format!("it is not the one of this command ({error})"),
            })?;
            lines.push(line);
            self.rest.clear();
        }
    }
}
