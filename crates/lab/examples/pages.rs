//! Writes the completions of shells and the man pages of the `shootdown` command into a folder, as
//! `cargo xtask dist` packs them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap_complete::Shell;

fn main() -> io::Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    write(&folder.ok_or(io::Error::other("name a folder"))?)
}

/// Writes the files where a Debian package has them below `/usr/share`.
fn write(share: &Path) -> io::Result<()> {
    let places = [
        (Shell::Bash, "bash-completion/completions", "shootdown"),
        (Shell::Zsh, "zsh/vendor-completions", "_shootdown"),
        (Shell::Fish, "fish/vendor_completions.d", "shootdown.fish"),
    ];
    for (shell, folder, name) in places {
        let folder = share.join(folder);
        fs::create_dir_all(&folder)?;
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut shootdown_lab::command(), "shootdown", &mut text);
        fs::write(folder.join(name), text)?;
    }
    let manual = share.join("man/man1");
    fs::create_dir_all(&manual)?;
    clap_mangen::generate_to(shootdown_lab::command(), manual)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_page_and_completions() {
        let share = tempfile::tempdir().expect("a folder");
        write(share.path()).expect("files");
        let read = |file: &str| fs::read_to_string(share.path().join(file)).expect("a text");
        let [bash, zsh, fish] = [
            "bash-completion/completions/shootdown",
            "zsh/vendor-completions/_shootdown",
            "fish/vendor_completions.d/shootdown.fish",
        ]
        .map(read);
        let command = shootdown_lab::command();
        for name in command.get_subcommands().filter(|one| !one.is_hide_set()) {
            let name = name.get_name();
            let page = read(&format!("man/man1/shootdown-{name}.1"));
            assert!(page.contains("Examples"), "{name}");
            assert!([&bash, &zsh, &fish].iter().all(|text| text.contains(name)), "{name}");
        }
    }
}
