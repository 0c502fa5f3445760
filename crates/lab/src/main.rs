//! The executable of the `shootdown` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    shootdown_lab::main()
}
