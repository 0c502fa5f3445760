//! The two kernels: fetched as source, edited, configured and built in the user's cache.
//!
//! A build takes minutes, so its folder is named after everything that it depends on, and stock is
//! built once. Ours stays unpacked, for builds after a change and for CI.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hasher as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::configuration::Configuration;
use super::package::Packages;
use crate::command::{Command, Failure, read_tracked, unwritable};
use crate::port::edits::Edits;
use crate::port::source::{Variant, write_changed};
use crate::setup;

/// The files of the port.
pub(super) const FOLDER: &str = "ports/linux";

/// What a build of Linux needs beside a C compiler.
const PACKAGES: &str = "make flex bison bc xz-utils libelf-dev libssl-dev";

/// The files that are added on every architecture, and their places below its folder.
const OURS: [(&str, &str); 4] = [
    ("crates/capi/include/shootdown.h", "include/asm/shootdown_engine.h"),
    ("ports/linux/shootdown/shootdown.h", "include/asm/shootdown.h"),
    ("ports/linux/shootdown/shootdown_port.h", "mm/shootdown_port.h"),
    ("ports/linux/shootdown/shootdown_spaces.c", "mm/shootdown_spaces.c"),
];
const OURS_ON_X86: [(&str, &str); 4] = [
    ("ports/linux/shootdown/shootdown_user.h", "include/asm/shootdown_user.h"),
    ("ports/linux/shootdown/shootdown.c", "mm/shootdown.c"),
    ("ports/linux/shootdown/shootdown_kernel.c", "mm/shootdown_kernel.c"),
    ("ports/linux/shootdown/shootdown_kvm.c", "mm/shootdown_kvm.c"),
];
const OURS_ON_ARM64: [(&str, &str); 1] =
    [("ports/linux/shootdown/shootdown_arm64.c", "mm/shootdown.c")];

/// The files whose edits are for x86-64 alone: page tables that are kept, and NMIs.
const EDITED_ON_X86: [&str; 4] =
    ["arch/x86/", "include/asm-generic/tlb.h", "mm/mmu_gather.c", "kernel/entry/common.c"];

/// A line of progress for so many compiled files.
const FILES_PER_LINE: usize = 200;

/// A kernel that was built.
#[derive(Clone, Debug)]
pub(super) struct Kernel {
    pub(super) configuration: Configuration,
    pub(super) variant: Variant,
    /// The name of its files.
    pub(super) name: &'static str,
    /// The file that boots.
    pub(super) image: PathBuf,
    /// The program with symbols.
    pub(super) symbols: PathBuf,
    /// Linux's own test of `vmalloc`.
    pub(super) module: PathBuf,
}

impl Kernel {
    /// The address of a function.
    ///
    /// # Errors
    ///
    /// If the kernel has no such symbol.
    pub(super) fn address(&self, symbol: &str) -> Result<u64, Failure> {
        let symbols = Command::new("nm").arg(&self.symbols).output()?;
        let of = |line: &str| {
            let (address, rest) = line.split_once(' ')?;
            let is_it = rest.split_once(' ').is_some_and(|(_, name)| name == symbol);
            is_it.then(|| u64::from_str_radix(address, 16).ok())?
        };
        symbols.lines().find_map(of).ok_or_else(|| {
            Failure::new(format!("Linux has no function {symbol}"), "name its new one")
        })
    }
}

/// Builds a kernel of the long-term version's comparison, unless the cache has it.
pub(super) fn build(variant: Variant) -> Result<Kernel, Failure> {
    build_with(Configuration::Small, variant)
}

/// Builds a kernel, unless the cache has it.
pub(super) fn build_with(
    configuration: Configuration,
    variant: Variant,
) -> Result<Kernel, Failure> {
    let folder = folder(configuration)?;
    let name = configuration.name(variant);
    let kernel = |kind: &str| folder.join(format!("{name}.{kind}"));
    let kernel = Kernel {
        configuration,
        variant,
        name,
        image: kernel(image(configuration)),
        symbols: kernel("vmlinux"),
        module: kernel("test_vmalloc.ko"),
    };
    match variant {
        Variant::Stock => stock(&folder, &kernel)?,
        Variant::Shootdown => ours(&folder, &kernel)?,
    }
    Ok(kernel)
}

/// Builds stock, and then ours.
pub(super) fn build_both(configuration: Configuration) -> Result<[Kernel; 2], Failure> {
    let build = |variant| build_with(configuration, variant);
    Ok([build(Variant::Stock)?, build(Variant::Shootdown)?])
}

fn stock(folder: &Path, kernel: &Kernel) -> Result<(), Failure> {
    if kernel.image.exists() {
        return Ok(());
    }
    let tree = folder.join("stock");
    unpack(&tree, kernel.configuration)?;
    configure(&tree, kernel.configuration)?;
    make(&tree, kernel)?;
    fs::remove_dir_all(&tree).map_err(unwritable(&tree))
}

fn ours(folder: &Path, kernel: &Kernel) -> Result<(), Failure> {
    let tree = folder.join("shootdown");
    let configuration = kernel.configuration;
    unpack(&tree, configuration)?;
    let object = configuration.object()?;
    let contents = prepare(&tree, configuration)?;
    configure(&tree, configuration)?;
    let stamp = (contents, fs::read(&object).map_err(unwritable(&object))?);
    let (stamp, place) = (format!("{:x}", hash(&stamp)), tree.join(stamp_of(kernel.name)));
    if kernel.image.exists() && fs::read_to_string(&place).is_ok_and(|built| built == stamp) {
        return Ok(());
    }
    Command::new(configuration.tool("objcopy"))
        .args("--redefine-sym shootdown_os_percpu_base=__per_cpu_offset")
        .args("--redefine-sym shootdown_os_percpu_offset=this_cpu_off")
        .arg(&object)
        .arg(tree.join(format!("arch/{}/mm/shootdown_engine.o_shipped", configuration.arch())))
        .run()?;
    make(&tree, kernel)?;
    fs::write(&place, stamp).map_err(unwritable(&place))
}

/// The file that has the hash of what a kernel was built from.
fn stamp_of(name: &str) -> String {
    if name == Variant::Shootdown.name() { "stamp".to_owned() } else { format!("stamp.{name}") }
}

/// The tree of ours, with Linux's selftests.
pub(super) fn tree(configuration: Configuration) -> Result<PathBuf, Failure> {
    Ok(folder(configuration)?.join("shootdown"))
}

/// Compiles the port's files and those that it replaces most of, in the prepared tree.
///
/// # Errors
///
/// If the cache has no tree, or the compiler fails.
pub(super) fn compile_port(configuration: Configuration) -> Result<(), Failure> {
    let tree = folder(configuration)?.join("shootdown");
    if !tree.join("stamp").exists() {
        let option = match configuration {
            Configuration::Arm64 => "--arm64".to_owned(),
            _ => format!("--linux {}", configuration.linux()),
        };
        return Err(Failure::missing(
            format!("the cache has no tree of Linux for {option}"),
            format!("cargo xtask port linux {option}"),
        ));
    }
    prepare(&tree, configuration)?;
    let files = match configuration {
        Configuration::Arm64 => {
            "olddefconfig arch/arm64/mm/shootdown.o arch/arm64/mm/shootdown_spaces.o \
             arch/arm64/mm/context.o arch/arm64/mm/contpte.o arch/arm64/kernel/smp.o \
             arch/arm64/mm/proc.o mm/mmu_gather.o"
        }
        _ => {
            "olddefconfig arch/x86/mm/shootdown.o arch/x86/mm/shootdown_kernel.o \
             arch/x86/mm/shootdown_spaces.o arch/x86/mm/tlb.o arch/x86/mm/pat/set_memory.o \
             kernel/entry/common.o mm/mmu_gather.o"
        }
    };
    configuration.make(files).args("-s -C").arg(&tree).output_or_show()
}

/// Returns the port's edits for a configuration, if they are well-formed.
pub(super) fn edits(configuration: Configuration) -> Result<Edits, Failure> {
    let read = |name: &str| -> Result<Edits, Failure> {
        let name = format!("{FOLDER}/shootdown/{name}");
        Edits::parse(&name, &read_tracked(&name)?)
    };
    let edits = read("edits.toml")?.of_version(configuration.linux());
    if !configuration.is_arm64() {
        return Ok(edits);
    }
    let is_of_x86 = |file: &str| EDITED_ON_X86.iter().any(|start| file.starts_with(start));
    Ok(edits.replaced(is_of_x86, read("edits-arm64.toml")?))
}

/// The kind of a kernel's file that boots.
const fn image(configuration: Configuration) -> &'static str {
    if configuration.is_arm64() { "Image" } else { "bzImage" }
}

/// The folder of everything that is built from this source, with this configuration and compiler.
fn folder(configuration: Configuration) -> Result<PathBuf, Failure> {
    let name = configuration.tool("gcc");
    let compiler = Command::new(&name).args("-dumpfullversion -dumpmachine").output();
    let compiler = compiler.map_err(|_| {
        Failure::missing(format!("{name} is not installed"), format!("install {name}"))
    })?;
    let ours = configuration.ours()?;
    let chosen: Vec<_> = ours.lines().filter(|line| !line.starts_with('#')).collect();
    let packages = Packages::read()?;
    let source = packages.source(configuration.linux())?.key();
    let key = match configuration {
        Configuration::Cloud => hash(&(source, packages.configurations.key(), chosen, compiler)),
        _ => hash(&(source, chosen, compiler)),
    };
    let folder = cache().join(format!("{key:016x}"));
    fs::create_dir_all(&folder).map_err(unwritable(&folder))?;
    Ok(folder)
}

pub(super) fn cache() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from);
    cache.join("shootdown/linux")
}

fn hash(value: &impl std::hash::Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Configures a tree, unless it is. An option may be one of the port's, in a file that it edits.
fn configure(tree: &Path, configuration: Configuration) -> Result<(), Failure> {
    let is_configured = tree.join(".config").exists();
    if is_configured { Ok(()) } else { configuration.write(tree) }
}

/// Unpacks the source into `tree`, unless it is there.
fn unpack(tree: &Path, configuration: Configuration) -> Result<(), Failure> {
    const UNPACK: &str = "dpkg-deb --fsys-tarfile \"$0\" | tar -xO --wildcards '*.tar.xz' | \
                          tar -xJ --strip-components=1";
    if tree.exists() {
        return Ok(());
    }
    let tools = ["flex", "bison", "bc", "xz"];
    if tools.iter().any(|tool| Command::new(tool).args("--version").output().is_err()) {
        setup::install_from_distribution(PACKAGES)?;
    }
    let archive = Packages::read()?.source(configuration.linux())?.fetch()?;
    eprintln!("unpacking the source: 1.7 GB");
    let partial = tree.with_extension("partial");
    let _ = fs::remove_dir_all(&partial);
    fs::create_dir_all(&partial).map_err(unwritable(&partial))?;
    Command::new("sh").arg("-c").arg(UNPACK).arg(archive).within(&partial).run()?;
    fs::rename(&partial, tree).map_err(unwritable(tree))
}

/// Edits the tree, and adds the port's files. A file whose contents stay the same keeps its time.
/// Returns the contents.
fn prepare(tree: &Path, configuration: Configuration) -> Result<BTreeMap<String, String>, Failure> {
    // The published form of each edited file is beside it.
    let original = |file: &str| tree.join(format!("{file}.stock"));
    let edits = edits(configuration)?;
    let read = |file: &str| {
        fs::read_to_string(original(file)).or_else(|_| fs::read_to_string(tree.join(file)))
    };
    let mut contents: BTreeMap<String, String> = BTreeMap::new();
    for (file, text) in edits.applied(read, "")? {
        if !original(file).exists() {
            fs::copy(tree.join(file), original(file)).map_err(unwritable(file))?;
        }
        contents.insert(file.to_owned(), text);
    }
    // A file that is not edited any more.
    let list = tree.join("edited");
    for file in fs::read_to_string(&list).unwrap_or_default().lines() {
        let published = || fs::read_to_string(original(file)).map_err(unwritable(file));
        if !contents.contains_key(file) {
            write_changed(&tree.join(file), published()?.as_bytes())?;
        }
    }
    let names: String = contents.keys().map(|file| format!("{file}\n")).collect();
    fs::write(&list, names).map_err(unwritable(&list))?;
    let of_arch: &[_] = if configuration.is_arm64() { &OURS_ON_ARM64 } else { &OURS_ON_X86 };
    for (from, to) in OURS.iter().chain(of_arch) {
        contents.insert(format!("arch/{}/{to}", configuration.arch()), read_tracked(from)?);
    }
    for (file, text) in &contents {
        write_changed(&tree.join(file), text.as_bytes())?;
    }
    Ok(contents)
}

/// Returns whether Linux's `objtool` refuses code of the port or the engine: a branch that a
/// mitigation or the unwinder cannot follow. It refuses nothing in stock.
fn is_refused(line: &str) -> bool {
    line.contains("warning: objtool:")
}

/// Builds a kernel in its tree, and copies it out of there.
fn make(tree: &Path, kernel: &Kernel) -> Result<(), Failure> {
    let (name, start) = (kernel.name, Instant::now());
    eprintln!("building Linux ({name}): minutes, if it is the first time");
    let configuration = kernel.configuration;
    configuration.make("-s olddefconfig").within(tree).output_or_show()?;
    let arch = configuration.arch();
    let image = image(configuration);
    let targets = if configuration.is_arm64() { image } else { "bzImage modules" };
    let mut files = 0;
    let mut refused = None;
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let status = configuration
        .make(targets)
        .arg(format!("-j{jobs}"))
        .args("KBUILD_BUILD_TIMESTAMP=2026-01-01 KBUILD_BUILD_USER=port")
        .args("KBUILD_BUILD_HOST=port KBUILD_BUILD_VERSION=1")
        .arg(configuration.flags())
        .within(tree)
        .run_with(|line| {
            if !line.starts_with("  ") {
                eprintln!("{line}");
            }
            if is_refused(line) {
                refused.get_or_insert_with(|| line.to_owned());
            }
            files += usize::from(line.starts_with("  CC"));
            if line.starts_with("  CC") && files.is_multiple_of(FILES_PER_LINE) {
                let (all, seconds) = (configuration.files(), start.elapsed().as_secs());
                eprintln!("  {name}: {files} of about {all} files, {seconds} s");
            }
        });
    if status.is_err() {
        return Err(Failure::new(
            format!("the build of {} fails", tree.display()),
            format!("install {PACKAGES}, or run `make {targets}` there"),
        ));
    }
    if let Some(line) = refused {
        return Err(Failure::new(line, "find the branch in xtask/src/capi_object/thunks.rs"));
    }
    let image = format!("arch/{arch}/boot/{image}");
    let module = ("lib/test_vmalloc.ko", &kernel.module);
    let built = [("vmlinux", &kernel.symbols), (image.as_str(), &kernel.image)];
    let has_modules = !configuration.is_arm64();
    for (from, to) in built.into_iter().chain(has_modules.then_some(module)) {
        fs::copy(tree.join(from), to).map_err(unwritable(to))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn warning_of_objtool_is_a_refusal() {
        let of = |line| super::is_refused(line);
        assert!(of("vmlinux.o: warning: objtool: f+0x1: 'naked' return found in RETHUNK build"));
        assert!(!of("  CC      tools/objtool/check.o") && !of("mm/x.c:1: warning: unused"));
    }
}
