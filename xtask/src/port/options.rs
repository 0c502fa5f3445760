//! The options of `cargo xtask port`.

use super::source::Arch;
use crate::command::Failure;

/// How a result is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
}

/// The work that is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Compare the framework as published and with the engine.
    Compare(Format),
    /// Run the framework's own tests.
    Tests,
    /// Boot again and again.
    Boots(usize),
    /// Boot on Bochs.
    Bochs,
}

const USAGE: &str = "cargo xtask port ostd, with --arch x86_64 or --arch riscv64, and one of \
                     --format text, --format json, --tests, --boots COUNT and --bochs";

/// Parses the arguments after the name of the port.
pub(super) fn parse(arguments: &[&str]) -> Result<(Arch, Action), Failure> {
    let usage = |cause: String| Err(Failure::usage(cause, USAGE));
    let (mut arch, mut action) = (None, None);
    let mut rest = arguments.iter();
    while let Some(&option) = rest.next() {
        let mut value = || rest.next().copied().unwrap_or_default();
        if option == "--arch" {
            let name = value();
            let found = Arch::ALL.into_iter().find(|arch| arch.name() == name);
            if found.is_none() || arch.is_some() {
                return usage(format!("`--arch {name}` is not possible here"));
            }
            arch = found;
            continue;
        }
        let parsed = match option {
            "--format" => match value() {
                "text" => Action::Compare(Format::Text),
                "json" => Action::Compare(Format::Json),
                other => return usage(format!("`{other}` is not a format")),
            },
            "--tests" => Action::Tests,
            "--bochs" => Action::Bochs,
            "--boots" => {
                let count = value();
                match count.parse() {
                    Ok(count @ 1..) => Action::Boots(count),
                    _ => return usage(format!("`{count}` is not a number of boots")),
                }
            }
            other => return usage(format!("the port has no option `{other}`")),
        };
        if action.replace(parsed).is_some() {
            return usage(format!("`{option}` does not go with the option before it"));
        }
    }
    let action = action.unwrap_or(Action::Compare(Format::Text));
    match (arch, action) {
        (Some(Arch::Riscv64), Action::Bochs) => usage("Bochs is an x86-64 machine".to_owned()),
        (Some(Arch::Riscv64), Action::Tests) => {
            usage("the framework's tests are built for x86-64 alone".to_owned())
        }
        _ => Ok((arch.unwrap_or(Arch::X86_64), action)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_select_architecture_and_action() {
        let json = Action::Compare(Format::Json);
        for (arguments, expected) in [
            (&[][..], (Arch::X86_64, Action::Compare(Format::Text))),
            (&["--format", "json"], (Arch::X86_64, json)),
            (&["--format", "json", "--arch", "riscv64"], (Arch::Riscv64, json)),
            (&["--arch", "riscv64", "--boots", "3"], (Arch::Riscv64, Action::Boots(3))),
            (&["--bochs"], (Arch::X86_64, Action::Bochs)),
        ] {
            assert_eq!(parse(arguments).ok(), Some(expected), "{arguments:?}");
        }
    }

    #[test]
    fn wrong_options_are_refused_with_status_2() {
        for arguments in [
            &["--boots"][..],
            &["--boots", "0"],
            &["--boots", "-1"],
            &["--format", "xml"],
            &["--arch", "arm"],
            &["--arch", "riscv64", "--bochs"],
            &["--arch", "riscv64", "--tests"],
            &["--tests", "--bochs"],
            &["--fast"],
        ] {
            let failure = parse(arguments).expect_err("the options are wrong");
            assert_eq!(failure.status(), 2, "{arguments:?}");
        }
    }
}
