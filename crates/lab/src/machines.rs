//! Machine files: those that are compiled into the command, and those of the user.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use shootdown_sim::machine::{Machine, MachineError, Number};

use crate::error::{bad_input, shown, user_errors};

/// A machine whose file is compiled into the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Embedded {
    pub(crate) name: &'static str,
    toml: &'static str,
}

macro_rules! embedded {
    ($($constant:ident = $name:literal,)*) => {
        impl Embedded {
            $(pub(crate) const $constant: Self = Self {
                name: $name,
                toml: include_str!(concat!("../../../machines/", $name, ".toml")),
            };)*

            /// The files of `machines/`.
            pub(crate) const ALL: &[Self] = &[$(Self::$constant,)*];
        }
    };
}

embedded! {
    AMD_INVLPGB = "amd-invlpgb",
    AMPERE_EMAG_32 = "ampere-emag-32",
    ARC_80MHZ = "arc-80mhz",
    ARM64_2S = "arm64-2s",
    ARM64_TLBID = "arm64-tlbid",
    DESKTOP_1S = "desktop-1s",
    EMERALD_RAPIDS_KVM = "emerald-rapids-kvm",
    EPYC_ZEN5_KVM = "epyc-zen5-kvm",
    HASWELL_DESKTOP = "haswell-desktop",
    ICELAKE_2S_128 = "icelake-2s-128",
    POWER8_16S = "power8-16s",
    RISCV_64 = "riscv-64",
    SKYLAKE_LAPTOP_KVM = "skylake-laptop-kvm",
    XEON_2S = "xeon-2s",
    XEON_4S = "xeon-4s",
}

impl Embedded {
    /// Reads the machine's file.
    pub(crate) fn machine(self) -> Result<Machine, MachineFileError> {
        self.parse().map_err(|error| {
            MachineFileError::refused(&Path::new("machines").join(self.name), error)
        })
    }

    fn parse(self) -> Result<Machine, MachineError> {
        Machine::from_toml_extending(self.toml, |base| match Self::named(base.as_ref()) {
            Some(base) => base.parse(),
            None => Err(no_base(base)),
        })
    }

    pub(crate) fn named(name: &OsStr) -> Option<Self> {
        Self::ALL.iter().find(|machine| machine.name == name).copied()
    }
}

/// The largest number of files of which each extends the next one.
const BASES_MAX: u32 = 8;

/// Returns the machine that the file at `path` extends.
fn base_of(path: &Path, base: &str, bases_max: u32) -> Result<Machine, MachineError> {
    let file = path.with_file_name(base);
    if file.extension().is_none_or(|extension| extension != "toml") {
        return Embedded::named(base.as_ref()).ok_or_else(|| no_base(base))?.parse();
    }
    let impossible = |cause: String| MachineError::Impossible {
        cause,
        remedy: "correct that file, or extend a machine of `shootdown machines`".to_owned(),
    };
    let Some(bases_max) = bases_max.checked_sub(1) else {
        return Err(impossible(format!("it extends itself, or more than {BASES_MAX} files")));
    };
    let text = read_text(&file).map_err(|error| impossible(error.to_string()))?;
    Machine::from_toml_extending(&text, |base| base_of(&file, base, bases_max)).map_err(|error| {
        match error {
            // The position is one in that file.
            MachineError::Syntax(error) => {
                impossible(format!("it extends `{}`: {}", base.escape_debug(), one_line(&error)))
            }
            other => other,
        }
    })
}

fn no_base(name: &str) -> MachineError {
    MachineError::Impossible {
        cause: format!("it extends `{}`, which does not exist", name.escape_debug()),
        remedy: "extend a machine of `shootdown machines`, or a .toml file beside it".to_owned(),
    }
}

/// The largest machine file that is read, in bytes. The files in `machines/` have at most 20 KiB.
const BYTES_MAX: u64 = 1 << 20;

const CORRECT: &str = "correct the file; machines/*.toml in the repository are examples";

user_errors! {
    /// A machine is unknown, or its file cannot be used.
    #[derive(Debug, thiserror::Error)]
    pub(crate) enum MachineFileError {
        #[error("there is no machine `{}`", shown(.name))]
        Unknown { name: OsString } => {
            let known: Vec<_> = Embedded::ALL.iter().map(|machine| machine.name).collect();
            bad_input(format!("use {}, or the path of a .toml file", known.join(", ")))
        },
        #[error("{}: {error}", shown(.path))]
        Unreadable { path: PathBuf, error: io::Error } =>
            bad_input("use a machine that needs no file; `shootdown machines` lists them"),
        #[error("{}: {}", shown(.path), shown(one_line(&.error.to_string())))]
        Refused { path: PathBuf, error: MachineError } => bad_input(CORRECT),
        #[error("{} has more than {} KiB", shown(.path), BYTES_MAX >> 10)]
        TooLong { path: PathBuf } => bad_input(CORRECT),
        #[error("{}: the name of the machine is empty", shown(.path))]
        NoName { path: PathBuf } => bad_input(CORRECT),
    }
}

impl MachineFileError {
    pub(crate) fn refused(path: &Path, error: MachineError) -> Self {
        Self::Refused { path: path.to_owned(), error }
    }
}

/// Returns the position and the cause from the TOML parser's message, which has several lines.
pub(crate) fn one_line(error: &str) -> String {
    match error.split_once('\n') {
        Some((position, rest)) => {
            format!("{position}: {}", rest.lines().last().unwrap_or_default().trim())
        }
        None => error.to_owned(),
    }
}

/// Finds a machine by its name, or reads the file at a path that ends in `.toml`.
pub(crate) fn find(wanted: &OsStr) -> Result<Machine, MachineFileError> {
    let path = Path::new(wanted);
    if path.extension().is_some_and(|extension| extension == "toml") {
        return read(path);
    }
    match Embedded::named(wanted) {
        Some(machine) => machine.machine(),
        None => Err(MachineFileError::Unknown { name: wanted.to_owned() }),
    }
}

fn read_text(path: &Path) -> Result<String, MachineFileError> {
    let mut text = String::new();
    let file = File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text));
    file.map_err(|error| MachineFileError::Unreadable { path: path.to_owned(), error })?;
    if text.len() as u64 > BYTES_MAX {
        return Err(MachineFileError::TooLong { path: path.to_owned() });
    }
    Ok(text)
}

fn read(path: &Path) -> Result<Machine, MachineFileError> {
    parse(&read_text(path)?, path)
}

/// Reads the machine file `text`, which is or will be at `path`.
pub(crate) fn parse(text: &str, path: &Path) -> Result<Machine, MachineFileError> {
    let machine = Machine::from_toml_extending(text, |base| base_of(path, base, BASES_MAX))
        .map_err(|error| MachineFileError::refused(path, error))?;
    if machine.name.trim().is_empty() {
        return Err(MachineFileError::NoName { path: path.to_owned() });
    }
    Ok(machine)
}

/// Returns the names of the embedded machines that have at least `cpus` CPUs.
pub(crate) fn with_cpus(cpus: usize) -> Vec<&'static str> {
    let has_cpus =
        |machine: &&Embedded| machine.machine().is_ok_and(|machine| machine.cpu_count() >= cpus);
    Embedded::ALL.iter().filter(has_cpus).map(|machine| machine.name).collect()
}

/// Returns the numbers of a machine that were fitted to a published measurement, each with that
/// measurement.
pub(crate) fn calibrated(machine: &Machine) -> impl Iterator<Item = (&Number, &str)> {
    machine.numbers().iter().filter_map(|number| Some((number, number.calibrated_on.as_deref()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Failure;

    #[test]
    fn embedded_file_describes_machine_of_its_name() {
        for embedded in Embedded::ALL {
            let machine = embedded.machine();
            let machine = machine.unwrap_or_else(|error| panic!("{}: {error}", embedded.name));
            assert_eq!(machine.name, embedded.name);
        }
    }

    #[test]
    fn unknown_name_is_refused_with_known_names() {
        let text = Failure::from(find("pdp-11".as_ref()).unwrap_err()).to_string();
        assert!(text.contains("pdp-11") && text.contains("xeon-2s"), "{text}");
    }

    #[test]
    fn error_in_file_has_position_and_one_line() {
        let error = Machine::from_toml("name = \"x\"\nabout = 3\n").unwrap_err();
        let error = MachineFileError::refused(Path::new("my.toml"), error);
        let text = Failure::from(error).to_string();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.starts_with("error: my.toml: "), "{text}");
        assert!(text.contains("line 2, column 9"), "{text}");
        assert!(text.contains("\ntry:   "), "{text}");
    }
}
