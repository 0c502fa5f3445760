//! The scenarios: a CPU has cached a translation, the page table is changed, and the CPU uses the
//! translation. The word that each page holds distinguishes the new page from the old one.

use core::sync::atomic::Ordering;

use shootdown::{Extent, Root, Space};
use shootdown_hw::Processor as _;
use shootdown_vm::{Access, EMPTY, Format, Frame, Leaf, Marks, PAGE_BYTES, Protection};

use crate::kernel::arch::{Arch, Architecture};
use crate::kernel::boot_memory::{BootMemory, entry, set_entry};
use crate::kernel::fault_injection::engine::{Machine, engine, has_tags, with_pinned};
use crate::kernel::fault_injection::fault::{
    self,
    Fault::{self, OtherPages, OtherTag, OthersKeepAll, TagIsReused},
};
use crate::kernel::fault_injection::user::{self, CODE, Command, Found, begin, execute};
use crate::kernel::memory::page;
use Visibility::{Absent, Detected, Masked};

/// The page that the other CPU accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The new page.
    Fresh,
    /// The old page. A real program would now use memory that belongs to another.
    Stale,
}

/// The visibility of a fault on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visibility {
    Detected,
    /// The emulator drops more than the processor was asked to drop, for this reason.
    Masked(&'static str),
    /// The machine does not have the mechanism in which the fault would be.
    Absent(&'static str),
}

/// The visibility of a fault on each machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visibilities {
    /// QEMU, without PCIDs.
    x86_64: Visibility,
    /// Bochs, with PCIDs.
    x86_64_pcid: Visibility,
    aarch64: Visibility,
    loongarch64: Visibility,
}

impl Visibilities {
    /// The visibility of the fault on the machine that runs this code.
    pub(crate) fn on_this_machine(&self) -> Visibility {
        match Arch::NAME {
            "x86_64" if has_tags() => self.x86_64_pcid,
            "x86_64" => self.x86_64,
            "aarch64" => self.aarch64,
            _ => self.loongarch64,
        }
    }
}

/// One way to cache a translation and to use it after a change.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) run: Run,
    /// `true` if the change needs neither an interrupt nor a broadcast.
    pub(crate) is_quiet: bool,
    /// The faults that the scenario is run with.
    pub(crate) faults: Faults,
}

type Run = fn(&mut BootMemory) -> Verdict;
type Faults = &'static [(Fault, Visibilities)];

/// A scenario in which the other CPU uses the space while the page table is changed.
const fn active(name: &'static str, run: Run, faults: Faults) -> Scenario {
    Scenario { name, run, is_quiet: false, faults }
}

/// A scenario in which the other CPU does not use the space during the change. It must not be
/// disturbed then.
const fn quiet(name: &'static str, run: Run, faults: Faults) -> Scenario {
    Scenario { name, run, is_quiet: true, faults }
}

const EVERYWHERE: Visibilities = Visibilities {
    x86_64: Detected,
    x86_64_pcid: Detected,
    aarch64: Detected,
    loongarch64: Detected,
};

/// Faults of tags. QEMU has no PCIDs, and drops everything when Arm's ASID changes. Bochs has
/// PCIDs, and keeps nothing under them.
const TAGGED: Visibilities = Visibilities {
    x86_64: Absent("there are no PCIDs"),
    x86_64_pcid: Masked("a load of CR3 drops all but global pages"),
    aarch64: Masked("all is dropped when the ASID changes"),
    loongarch64: Detected,
};

const OF_TAG: Visibilities = Visibilities {
    x86_64: Absent("there are no PCIDs"),
    x86_64_pcid: Absent("INVLPG names no tag: it is the loaded one"),
    aarch64: Masked("an invalidation by any ASID drops all"),
    loongarch64: Detected,
};

const OF_UPPER_LEVEL: Visibilities = Visibilities {
    x86_64: Masked("upper levels are not cached"),
    x86_64_pcid: Masked("upper levels are not cached"),
    aarch64: Masked("upper levels are not cached"),
    loongarch64: Masked("the refill handler walks from the root"),
};

const ALL_KEPT: Faults = &[(OthersKeepAll, EVERYWHERE)];

pub(crate) const SCENARIOS: &[Scenario] = &[
    active(
        "reads-all-the-time",
        reads_all_the_time,
        &[(OthersKeepAll, EVERYWHERE), (OtherPages, EVERYWHERE), (OtherTag, OF_TAG)],
    ),
    active("writes-what-is-protected", writes_what_is_protected, ALL_KEPT),
    active("reads-what-is-unmapped", reads_what_is_unmapped, ALL_KEPT),
    active("writes-what-is-unmapped", writes_what_is_unmapped, ALL_KEPT),
    quiet(
        "comes-back-from-idle",
        comes_back_from_idle,
        &[(OthersKeepAll, EVERYWHERE), (OtherPages, EVERYWHERE)],
    ),
    quiet("comes-back-to-the-space", comes_back_to_the_space, &[(OthersKeepAll, TAGGED)]),
    quiet("comes-back-after-leaving", comes_back_after_leaving, &[(OthersKeepAll, TAGGED)]),
    active("is-given-the-tag-of-another", is_given_the_tag_of_another, &[(TagIsReused, TAGGED)]),
    active(
        "walks-a-table-that-is-freed",
        walks_a_table_that_is_freed,
        &[(OthersKeepAll, OF_UPPER_LEVEL)],
    ),
    active("reads-below-a-table-that-is-freed", reads_below_a_table_that_is_freed, ALL_KEPT),
];

/// A page that each space maps, and another page in the same table. The two are not in one pair,
/// nor in the TLB entry of the code's page.
const PAGE: usize = 0x81_6000;
const SIBLING: usize = PAGE + 2 * PAGE_BYTES as usize;

const OLD: u64 = 0x01d;
const NEW: u64 = 0x4e77;

const READ: Protection = Protection::READ;
const READ_WRITE: Protection = Protection::READ.union(Protection::WRITE);

type Tables = <Arch as Architecture>::Format;

/// A space with a page, and a frame that replaces the page's frame.
struct Scene {
    root: Frame,
    space: &'static Space<Machine>,
    old: Frame,
    new: Frame,
}

impl Scene {
    /// Creates a scene in which the old page is mapped.
    fn new(memory: &mut BootMemory) -> Self {
        let (old, new) = (memory.frame(), memory.frame());
        for (frame, word) in [(old, OLD), (new, NEW)] {
            page::word_at(frame, 0).store(word, Ordering::Relaxed);
        }
        let root = memory.root_with_code(CODE);
        memory.map(root, PAGE, old, READ_WRITE);
        let space = &memory.keep(1, |_| engine().space(Root(root.address())))[0];
        engine().machine().processor().publish();
        Self { root, space, old, new }
    }

    /// Creates a scene whose space the other CPU runs and whose page it has read, without a fault;
    /// then injects the fault.
    fn in_use(memory: &mut BootMemory) -> Self {
        fault::remove();
        let scene = Self::new(memory);
        execute(Command::Run(scene.space));
        assert_eq!(execute(Command::Read(PAGE)), Found::Word(OLD));
        fault::inject();
        scene
    }

    fn map(&self, memory: &mut BootMemory, frame: Frame, protection: Protection) {
        memory.map(self.root, PAGE, frame, protection);
    }

    fn unmap(&self, memory: &mut BootMemory) {
        set_entry(memory.last_table(self.root, PAGE), PAGE, 0, EMPTY);
    }

    /// Publishes the change and flushes, as every kernel does after it has changed a page table.
    fn flush(&self, extent: Extent) {
        engine().machine().processor().publish();
        with_pinned(|pin| pin.flush(self.space, extent)).wait();
    }

    /// Replaces the page by the rules: unmaps the old page, flushes, and maps the new page.
    fn replace(&self, memory: &mut BootMemory) {
        self.unmap(memory);
        self.flush(changed_page());
        self.map(memory, self.new, READ_WRITE);
        engine().machine().processor().publish();
    }
}

/// Returns a new space, for a storm.
pub(crate) fn empty_space(memory: &mut BootMemory) -> &'static Space<Machine> {
    Scene::new(memory).space
}

fn changed_page() -> Extent {
    Extent::page(PAGE as u64)
}

/// The verdict of an access to the page when the new page is mapped.
fn new_or_old(found: Found) -> Verdict {
    match found {
        Found::Word(NEW) => Verdict::Fresh,
        Found::Word(OLD) => Verdict::Stale,
        other => panic!("neither the old page nor the new page: {other:x?}"),
    }
}

/// The verdict of an access that must fault.
fn refused(found: Found, expected: Access) -> Verdict {
    match found {
        Found::Refused(access) if access == expected => Verdict::Fresh,
        Found::Word(_) => Verdict::Stale,
        other @ Found::Refused(_) => panic!("refused as another kind of access: {other:?}"),
    }
}

fn reads_all_the_time(memory: &mut BootMemory) -> Verdict {
    let scene = Scene::in_use(memory);
    begin(Command::KeepReading(PAGE));
    scene.replace(memory);
    new_or_old(user::end())
}

fn writes_what_is_protected(memory: &mut BootMemory) -> Verdict {
    let scene = Scene::in_use(memory);
    assert_eq!(execute(Command::Write(PAGE)), Found::Word(user::WRITTEN));
    begin(Command::KeepWriting(PAGE));
    scene.map(memory, scene.old, READ);
    scene.flush(changed_page());
    refused(user::end(), Access::Write)
}

fn reads_what_is_unmapped(memory: &mut BootMemory) -> Verdict {
    let scene = Scene::in_use(memory);
    begin(Command::KeepReading(PAGE));
    scene.unmap(memory);
    scene.flush(changed_page());
    refused(user::end(), Access::Read)
}

fn writes_what_is_unmapped(memory: &mut BootMemory) -> Verdict {
    let scene = Scene::in_use(memory);
    begin(Command::KeepWriting(PAGE));
    scene.unmap(memory);
    scene.flush(changed_page());
    refused(user::end(), Access::Write)
}

fn comes_back_from_idle(memory: &mut BootMemory) -> Verdict {
    let scene = Scene::in_use(memory);
    execute(Command::Idle);
    scene.replace(memory);
    execute(Command::Run(scene.space));
    new_or_old(execute(Command::Read(PAGE)))
}

fn comes_back_to_the_space(memory: &mut BootMemory) -> Verdict {
    let (other, scene) = (Scene::new(memory), Scene::in_use(memory));
    execute(Command::Run(other.space));
    scene.replace(memory);
    execute(Command::Run(scene.space));
    new_or_old(execute(Command::Read(PAGE)))
}

fn comes_back_after_leaving(memory: &mut BootMemory) -> Verdict {
    let scene = Scene::in_use(memory);
    execute(Command::Leave);
    scene.replace(memory);
    execute(Command::Run(scene.space));
    new_or_old(execute(Command::Read(PAGE)))
}

/// Runs many spaces. The page of each holds the new word when it is run, and the old word
/// afterwards. All pages have the same address.
fn is_given_the_tag_of_another(memory: &mut BootMemory) -> Verdict {
    let mut verdict = Verdict::Fresh;
    // More spaces than there are tags.
    for _ in 0..12 {
        Scene::in_use(memory);
    }
    // Where the hardware replaces a random entry (LoongArch), the old entry is gone by chance every
    // other time.
    for _ in 0..32 {
        let scene = Scene::new(memory);
        scene.map(memory, scene.new, READ_WRITE);
        engine().machine().processor().publish();
        execute(Command::Run(scene.space));
        if new_or_old(execute(Command::Read(PAGE))) == Verdict::Stale {
            verdict = Verdict::Stale;
        }
        // Cache the old word, for the next space with this tag to find.
        scene.map(memory, scene.old, READ_WRITE);
        scene.flush(changed_page());
        execute(Command::Read(PAGE));
    }
    verdict
}

/// Unlinks and frees the table of the page. Fills it as a new owner could: with entries that map
/// the new page.
fn free_table(memory: &mut BootMemory, scene: &Scene) {
    let table = memory.last_table(scene.root, PAGE);
    set_entry(upper_table(scene.root), PAGE, 1, EMPTY);
    scene.flush(changed_page().freeing_tables());
    let leaf = Leaf { frame: scene.new, protection: READ_WRITE, marks: Marks::empty() };
    for address in [PAGE, SIBLING] {
        set_entry(table, address, 0, Tables::leaf(leaf));
    }
    engine().machine().processor().publish();
}

/// Returns the table of level 1 for the page.
fn upper_table(root: Frame) -> Frame {
    (2..Tables::LEVELS).rev().fold(root, |table, level| {
        Tables::as_table(entry(table, PAGE, level)).expect("the page is mapped")
    })
}

fn walks_a_table_that_is_freed(memory: &mut BootMemory) -> Verdict {
    let scene = Scene::in_use(memory);
    free_table(memory, &scene);
    refused(execute(Command::Read(SIBLING)), Access::Read)
}

fn reads_below_a_table_that_is_freed(memory: &mut BootMemory) -> Verdict {
    let scene = Scene::in_use(memory);
    free_table(memory, &scene);
    refused(execute(Command::Read(PAGE)), Access::Read)
}
