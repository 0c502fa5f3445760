//! The files of the guest, and the archive (cpio, format "newc") that its kernel unpacks.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use cpio::newc;

use super::error::GuestError;

/// The bits of a mode that give the type of a file.
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// Number of links that are followed, after which they are taken for a cycle. Linux's own limit.
const LINKS_MAX: u32 = 40;

/// A file of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Directory { mode: u32 },
    Link { target: PathBuf },
    Copy { source: PathBuf, mode: u32, bytes: u64 },
    Text { text: Vec<u8>, mode: u32 },
}

/// The files of the guest by their absolute paths. A directory comes before its files.
#[derive(Clone, Debug, Default)]
pub(super) struct Files(BTreeMap<PathBuf, Entry>);

impl Files {
    /// Adds a directory and its parents.
    pub(super) fn directory(&mut self, path: &Path) {
        for parent in path.ancestors().filter(|parent| *parent != Path::new("/")) {
            let new = Entry::Directory { mode: 0o755 };
            self.0.entry(parent.to_owned()).or_insert(new);
        }
    }

    /// Adds a file with this content, unless the path exists.
    pub(super) fn text(&mut self, path: impl AsRef<Path>, text: impl Into<Vec<u8>>, mode: u32) {
        self.parents(path.as_ref());
        let new = Entry::Text { text: text.into(), mode };
        self.0.entry(path.as_ref().to_owned()).or_insert(new);
    }

    /// Adds a symbolic link, unless the path exists.
    pub(super) fn link(&mut self, path: impl AsRef<Path>, target: impl Into<PathBuf>) {
        self.parents(path.as_ref());
        let new = Entry::Link { target: target.into() };
        self.0.entry(path.as_ref().to_owned()).or_insert(new);
    }

    /// Adds a file of the host under another path.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub(super) fn renamed(&mut self, path: &Path, source: &Path) -> Result<(), GuestError> {
        let metadata = fs::metadata(source).map_err(file_error(source))?;
        self.parents(path);
        let (mode, bytes) = (metadata.permissions().mode() & 0o777, metadata.len());
        self.0.insert(path.to_owned(), Entry::Copy { source: source.to_owned(), mode, bytes });
        Ok(())
    }

    /// Adds a file or a directory of the host, with everything in it, under its own path. Symbolic
    /// links on the way stay links, and their targets are added.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub(super) fn host(&mut self, path: &Path) -> Result<(), GuestError> {
        let path = std::path::absolute(path).map_err(file_error(path))?;
        self.add(&path, LINKS_MAX)
    }

    fn add(&mut self, path: &Path, links: u32) -> Result<(), GuestError> {
        let mut done = PathBuf::from("/");
        // The first component is the root.
        let mut rest = path.components();
        rest.next();
        while let Some(part) = rest.next() {
            if part == Component::ParentDir {
                done.pop();
                continue;
            }
            done.push(part);
            let metadata = fs::symlink_metadata(&done).map_err(file_error(&done))?;
            if metadata.is_symlink() {
                let target = fs::read_link(&done).map_err(file_error(&done))?;
                let beside = done.parent().unwrap_or(Path::new("/")).to_owned();
                self.link(&done, target.clone());
                let left = links.checked_sub(1).ok_or_else(|| GuestError::File {
                    path: path.to_owned(),
                    error: io::Error::other("there are too many symbolic links"),
                })?;
                return self.add(&beside.join(target).join(rest.as_path()), left);
            }
            let mode = metadata.permissions().mode() & 0o7777;
            if metadata.is_dir() {
                self.0.entry(done.clone()).or_insert(Entry::Directory { mode });
            } else if metadata.is_file() {
                let new = Entry::Copy { source: done.clone(), mode, bytes: metadata.len() };
                self.0.entry(done.clone()).or_insert(new);
            }
        }
        if !done.is_dir() {
            return Ok(());
        }
        for entry in fs::read_dir(&done).map_err(file_error(&done))? {
            let entry = entry.map_err(file_error(&done))?.path();
            // A link whose target is missing is not an error on the host either.
            if !entry.is_symlink() || entry.exists() {
                self.add(&entry, links)?;
            }
        }
        Ok(())
    }

    fn parents(&mut self, path: &Path) {
        if let Some(parent) = path.parent() {
            self.directory(parent);
        }
    }

    /// Returns the files that are copied from the host.
    pub(super) fn sources(&self) -> impl Iterator<Item = &Path> {
        self.0.values().filter_map(|entry| match entry {
            Entry::Copy { source, .. } => Some(source.as_path()),
            _ => None,
        })
    }

    /// Returns the number of bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = |entry: &Entry| match entry {
            Entry::Copy { bytes, .. } => *bytes,
            Entry::Text { text, .. } => text.len() as u64,
            Entry::Directory { .. } | Entry::Link { .. } => 0,
        };
        self.0.values().map(bytes).sum()
    }

    /// Writes the archive.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, is 4 GiB long or longer, or the archive cannot be written.
    pub(super) fn write(&self, out: &mut impl Write) -> Result<(), GuestError> {
        let mut inode = 0;
        for (path, entry) in &self.0 {
            inode += 1;
            let name = path.strip_prefix("/").unwrap_or(path);
            let head = newc::Builder::new(&name.to_string_lossy()).ino(inode).nlink(1);
            match entry {
                Entry::Directory { mode } => member(out, head.mode(DIRECTORY | mode), &[]),
                Entry::Link { target } => {
                    member(out, head.mode(LINK | 0o777), target.as_os_str().as_bytes())
                }
                Entry::Text { text, mode } => member(out, head.mode(REGULAR | mode), text),
                Entry::Copy { source, mode, bytes } => {
                    copy(out, head.mode(REGULAR | mode), source, *bytes)?;
                    Ok(())
                }
            }
            .map_err(GuestError::Temporary)?;
        }
        newc::trailer(out).map(drop).map_err(GuestError::Temporary)
    }
}

fn member(out: &mut impl Write, head: newc::Builder, bytes: &[u8]) -> io::Result<()> {
    let mut writer = head.write(out, bytes.len() as u32);
    writer.write_all(bytes)?;
    writer.finish().map(drop)
}

/// Copies a file of the host, which must not have changed its size.
fn copy(
    out: &mut impl Write,
    head: newc::Builder,
    source: &Path,
    bytes: u64,
) -> Result<(), GuestError> {
    let error = file_error(source);
    let Ok(size) = u32::try_from(bytes) else {
        return Err(error(io::Error::other("the file has 4 GiB or more")));
    };
    let mut file = match File::open(source) {
        Ok(file) => io::Read::take(file, bytes),
        Err(cause) => return Err(error(cause)),
    };
    let mut writer = head.write(out, size);
    match io::copy(&mut file, &mut writer) {
        Ok(copied) if copied == bytes => writer.finish().map(drop).map_err(GuestError::Temporary),
        Ok(_) => Err(error(io::Error::other("the file became shorter"))),
        Err(cause) => Err(error(cause)),
    }
}

/// Returns a function that makes the error of a file.
pub(super) fn file_error(path: &Path) -> impl Fn(io::Error) -> GuestError {
    let path = path.to_owned();
    move |error| GuestError::File { path: path.clone(), error }
}

/// Returns text as a word of a shell, in quotes.
pub(super) fn quoted(text: &OsStr) -> Vec<u8> {
    let mut word = vec![b'\''];
    for &byte in text.as_bytes() {
        match byte {
            b'\'' => word.extend(b"'\\''"),
            byte => word.push(byte),
        }
    }
    word.push(b'\'');
    word
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Returns the names in an archive, with the sizes of the files.
    fn listed(archive: &[u8]) -> Vec<(String, u32, u32)> {
        let mut rest = archive;
        let mut names = Vec::new();
        loop {
            let reader = newc::Reader::new(rest).expect("a member");
            let entry = reader.entry().clone();
            if entry.is_trailer() {
                return names;
            }
            names.push((entry.name().to_owned(), entry.mode(), entry.file_size()));
            rest = reader.finish().expect("the next member");
        }
    }

    #[test]
    fn archive_has_parents_links_and_contents() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = fs::canonicalize(directory.path()).expect("a path");
        fs::create_dir(root.join("real")).expect("a directory");
        fs::write(root.join("real/data"), "seven b").expect("a file");
        symlink("real", root.join("alias")).expect("a link");
        symlink("nowhere", root.join("real/dangling")).expect("a link");
        let mut files = Files::default();
        files.host(&root.join("alias")).expect("readable files");
        files.text("/init", "#!", 0o755);
        assert_eq!(files.bytes(), 9);
        let mut archive = Vec::new();
        files.write(&mut archive).expect("an archive");
        let names = listed(&archive);
        let of = |name: &Path| {
            let name = name.strip_prefix("/").expect("absolute").to_string_lossy().into_owned();
            names.iter().position(|(found, ..)| *found == name)
        };
        let parent = of(&root).expect("the parent");
        let alias = of(&root.join("alias")).expect("the link");
        let data = of(&root.join("real/data")).expect("the file");
        assert!(parent < alias && parent < data);
        assert_eq!((names[alias].1, names[alias].2), (LINK | 0o777, 4));
        assert_eq!(names[data].2, 7);
        assert!(of(&root.join("real/dangling")).is_none());
        assert!(names.contains(&("init".to_owned(), REGULAR | 0o755, 2)));
    }

    #[test]
    fn cycle_of_links_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        symlink("b", directory.path().join("a")).expect("a link");
        symlink("a", directory.path().join("b")).expect("a link");
        let error = Files::default().host(&directory.path().join("a")).unwrap_err();
        assert!(error.to_string().contains("symbolic links"), "{error}");
    }

    #[test]
    fn quotes_survive_quoting() {
        assert_eq!(quoted(OsStr::new("it's $HOME")), b"'it'\\''s $HOME'");
    }
}
