//! The files that a step reads, and the state of them with which it last passed.

use std::fs;
use std::path::PathBuf;

use crate::command::{Command, Failure, unwritable};

/// Each step reads these beside its own files: this program, and how crates are built.
const EVERY_STEP: &str = ".cargo Cargo.lock Cargo.toml rust-toolchain.toml xtask";

/// The state of all files that git tracks or would add.
#[derive(Debug)]
pub(super) struct Inputs {
    /// Git's name of the tree that a commit of these files would have.
    tree: String,
    /// The compiler, which `rust-toolchain.toml` does not name by its version.
    compiler: String,
    folder: PathBuf,
}

impl Inputs {
    /// Reads the state as of now. Git's own index stays as it is: the one that is used has this
    /// name, and no other call uses it at the same time.
    ///
    /// # Errors
    ///
    /// Returns the failure of git or of the compiler, or to make the folder of the states.
    pub(super) fn of_now(name: &str) -> Result<Self, Failure> {
        let folder = crate::output().join("passed");
        fs::create_dir_all(&folder).map_err(unwritable(&folder))?;
        let index = folder.join(format!("{name}-{}", std::process::id()));
        let git = |words: &str| Command::new("git").args(words).env("GIT_INDEX_FILE", &index);
        let tree = git("add --all").output().and_then(|_| git("write-tree").output());
        // There is none if git failed.
        let _ = fs::remove_file(&index);
        let compiler = Command::new("rustc").args("--version").output()?;
        Ok(Self { tree: tree?.trim().to_owned(), compiler, folder })
    }

    /// Returns `true` if the step passed when these files were the same. None are all files.
    pub(super) fn have_passed(&self, step: &str, files: &[&str]) -> bool {
        let passed = fs::read_to_string(self.folder.join(step));
        passed.is_ok_and(|passed| self.state(files).is_ok_and(|now| now == passed))
    }

    /// Records that the step has passed, unless its files are others `now`: it may have read these.
    ///
    /// # Errors
    ///
    /// Returns the failure of git, or to write the state.
    pub(super) fn pass(&self, now: &Self, step: &str, files: &[&str]) -> Result<(), Failure> {
        let (path, state) = (self.folder.join(step), self.state(files)?);
        if now.state(files)? != state {
            return Ok(());
        }
        fs::write(&path, state).map_err(unwritable(&path))
    }

    /// Returns the compiler, and git's names of the files and of all files below the folders.
    fn state(&self, files: &[&str]) -> Result<String, Failure> {
        let list = Command::new("git").args("ls-tree").arg(&self.tree);
        let list = if files.is_empty() { list } else { list.args("--").args(EVERY_STEP) };
        Ok(self.compiler.clone() + &files.iter().fold(list, Command::arg).output()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Git's name of a tree without files.
    const EMPTY: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";

    #[test]
    fn step_has_passed_with_its_own_files_alone() {
        let folder = std::env::temp_dir().join(format!("xtask-passed-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let by = |compiler: &str, tree: &str| Inputs {
            tree: tree.to_owned(),
            compiler: compiler.to_owned(),
            folder: folder.clone(),
        };
        let inputs = |tree: &str| by("rustc 1", tree);
        inputs("HEAD").pass(&inputs(EMPTY), "one", &["docs"]).unwrap();
        assert!(!inputs("HEAD").have_passed("one", &["docs"]), "they changed during the step");
        inputs("HEAD").pass(&inputs("HEAD"), "one", &["docs"]).unwrap();
        assert!(inputs("HEAD").have_passed("one", &["docs"]));
        assert!(!inputs("HEAD").have_passed("one", &[]));
        assert!(!inputs("HEAD").have_passed("other", &["docs"]));
        assert!(!inputs(EMPTY).have_passed("one", &["docs"]));
        assert!(!by("rustc 2", "HEAD").have_passed("one", &["docs"]));
        fs::remove_dir_all(folder).unwrap();
    }
}
