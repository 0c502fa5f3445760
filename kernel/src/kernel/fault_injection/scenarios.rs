//! The scenarios: a CPU has a translation cached, the page table is changed, and the CPU comes to
//! use the translation. The words that pages hold distinguish the new page from the old one.

use core::sync::atomic::Ordering;

use shootdown::{Extent, Root, Space};
use shootdown_hw::Processor as _;
use shootdown_vm::{Access, EMPTY, Format, Frame, Leaf, Marks, PAGE_BYTES, Protection};

use crate::kernel::arch::{Arch, Architecture};
use crate::kernel::boot_memory::{BootMemory, entry, set_entry};
use crate::kernel::fault_injection::engine::{Machine, engine, has_tags, pin};
use crate::kernel::fault_injection::fault::{
    self,
    Fault::{self, OtherPages, OtherTag, OthersKeepAll, TagIsReused},
};
use crate::kernel::fault_injection::user::{self, CODE, Found, Order, begin, tell};
use crate::kernel::memory::page;
use Visibility::{Absent, Masked, Seen};

/// The page that the other CPU found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The new one.
    Fresh,
    /// The old one: a real program would now use memory that is another's.
    Stale,
}

/// Whether a machine shows a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visibility {
    Seen,
    /// The emulator drops more than it is told to.
    Masked(&'static str),
    /// The machine has nothing that the fault could be in.
    Absent(&'static str),
}

/// Where a fault is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visible {
    /// Without PCIDs: QEMU.
    x86_64: Visibility,
    /// With PCIDs: Bochs.
    x86_64_pcid: Visibility,
    aarch64: Visibility,
    loongarch64: Visibility,
}

impl Visible {
    /// On the machine that runs this.
    pub(crate) fn pin(&self) -> Visibility {
        match Arch::NAME {
            "x86_64" if has_tags() => self.x86_64_pcid,
            "x86_64" => self.x86_64,
            "aarch64" => self.aarch64,
            _ => self.loongarch64,
        }
    }
}

/// A way to have a translation cached, and to come to use it.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) run: Run,
    /// Whether the change needs no interrupt, and no broadcast.
    pub(crate) is_quiet: bool,
    /// The faults that it detects, and where they are shown.
    pub(crate) faults: Faults,
}

type Run = fn(&mut BootMemory) -> Verdict;
type Faults = &'static [(Fault, Visible)];

/// A scenario in which the other CPU uses the space while the page table is changed.
const fn active(name: &'static str, run: Run, faults: Faults) -> Scenario {
    Scenario { name, run, is_quiet: false, faults }
}

/// A scenario in which the other CPU does not use the space then, and must not be disturbed.
const fn quiet(name: &'static str, run: Run, faults: Faults) -> Scenario {
    Scenario { name, run, is_quiet: true, faults }
}

const EVERYWHERE: Visible =
    Visible { x86_64: Seen, x86_64_pcid: Seen, aarch64: Seen, loongarch64: Seen };

/// QEMU has no PCIDs, and drops everything when an ASID of Arm's changes; Bochs has them, and
/// keeps nothing for them.
const TAGGED: Visible = Visible {
    x86_64: Absent("there are no PCIDs"),
    x86_64_pcid: Masked("a load of CR3 drops all but global pages"),
    aarch64: Masked("all is dropped when the ASID changes"),
    loongarch64: Seen,
};

const OF_TAG: Visible = Visible {
    x86_64: Absent("there are no PCIDs"),
    x86_64_pcid: Absent("INVLPG names no tag: it is the loaded one"),
    aarch64: Masked("an invalidation by any ASID drops all"),
    loongarch64: Seen,
};

const OF_UPPER_LEVEL: Visible = Visible {
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

/// A page that each space has, and one near it: below the same table, not in the same pair, and not
/// where a TLB keeps what it knows of the page of code.
const PAGE: usize = 0x81_6000;
const SIBLING: usize = PAGE + 2 * PAGE_BYTES as usize;

const OLD: u64 = 0x01d;
const NEW: u64 = 0x4e77;

const READ: Protection = Protection::READ;
const READ_WRITE: Protection = Protection::READ.union(Protection::WRITE);

type Tables = <Arch as Architecture>::Format;

/// A space with a page, and a frame to put in its place.
struct Scene {
    root: Frame,
    space: &'static Space<Machine>,
    old: Frame,
    new: Frame,
}

impl Scene {
    /// With the old page mapped.
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

    /// The other CPU runs it, and has used the page. So far all was well; what comes is tried.
    fn in_use(memory: &mut BootMemory) -> Self {
        fault::remove();
        let scene = Self::new(memory);
        tell(Order::Run(scene.space));
        assert_eq!(tell(Order::Read(PAGE)), Found::Word(OLD));
        fault::inject();
        scene
    }

    fn map(&self, memory: &mut BootMemory, frame: Frame, protection: Protection) {
        memory.map(self.root, PAGE, frame, protection);
    }

    fn unmap(&self, memory: &mut BootMemory) {
        set_entry(memory.last_table(self.root, PAGE), PAGE, 0, EMPTY);
    }

    /// As every kernel does after it has changed a page table.
    fn flush(&self, extent: Extent) {
        engine().machine().processor().publish();
        pin(|pin| pin.flush(self.space, extent)).wait();
    }

    /// The page is another one from now on, by the rules: nothing is mapped in between.
    fn replace(&self, memory: &mut BootMemory) {
        self.unmap(memory);
        self.flush(changed_page());
        self.map(memory, self.new, READ_WRITE);
        engine().machine().processor().publish();
    }
}

/// A space with nothing of interest in it.
pub(crate) fn empty_space(memory: &mut BootMemory) -> &'static Space<Machine> {
    Scene::new(memory).space
}

fn changed_page() -> Extent {
    Extent::page(PAGE as u64)
}

/// What was found, where the new page is mapped.
fn new_or_old(found: Found) -> Verdict {
    match found {
        Found::Word(NEW) => Verdict::Fresh,
        Found::Word(OLD) => Verdict::Stale,
        other => panic!("neither the old page nor the new one: {other:x?}"),
    }
}

/// What was found, where an access is to be refused.
fn refused(found: Found, expected: Access) -> Verdict {
    match found {
        Found::Refused(access) if access == expected => Verdict::Fresh,
        Found::Word(_) => Verdict::Stale,
        other @ Found::Refused(_) => panic!("refused as what it was not: {other:?}"),
    }
}

fn reads_all_the_time(memory: &mut BootMemory) -> Verdict {
    let scene = Scene::in_use(memory);
    begin(Order::KeepReading(PAGE));
    scene.replace(memory);
    new_or_old(user::end())
}

fn writes_what_is_protected(memory: &mut BootMemory) -> Verdict {
    let scene = Scene::in_use(memory);
    assert_eq!(tell(Order::Write(PAGE)), Found::Word(user::WRITTEN));
    begin(Order::KeepWriting(PAGE));
    scene.map(memory, scene.old, READ);
    scene.flush(changed_page());
    refused(user::end(), Access::Write)
}

fn reads_what_is_unmapped(memory: &mut BootMemory) -> Verdict {
    let scene = Scene::in_use(memory);
    begin(Order::KeepReading(PAGE));
    scene.unmap(memory);
    scene.flush(changed_page());
    refused(user::end(), Access::Read)
}

fn writes_what_is_unmapped(memory: &mut BootMemory) -> Verdict {
    let scene = Scene::in_use(memory);
    begin(Order::KeepWriting(PAGE));
    scene.unmap(memory);
    scene.flush(changed_page());
    refused(user::end(), Access::Write)
}

fn comes_back_from_idle(memory: &mut BootMemory) -> Verdict {
    let scene = Scene::in_use(memory);
    tell(Order::Idle);
    scene.replace(memory);
    tell(Order::Run(scene.space));
    new_or_old(tell(Order::Read(PAGE)))
}

fn comes_back_to_the_space(memory: &mut BootMemory) -> Verdict {
    let (other, scene) = (Scene::new(memory), Scene::in_use(memory));
    tell(Order::Run(other.space));
    scene.replace(memory);
    tell(Order::Run(scene.space));
    new_or_old(tell(Order::Read(PAGE)))
}

fn comes_back_after_leaving(memory: &mut BootMemory) -> Verdict {
    let scene = Scene::in_use(memory);
    tell(Order::Leave);
    scene.replace(memory);
    tell(Order::Run(scene.space));
    new_or_old(tell(Order::Read(PAGE)))
}

/// Its page has what is new; the others, all of which have it at the same address, what is old.
fn is_given_the_tag_of_another(memory: &mut BootMemory) -> Verdict {
    let mut verdict = Verdict::Fresh;
    // More than there are tags.
    for _ in 0..12 {
        Scene::in_use(memory);
    }
    // Where an entry is replaced by chance (LoongArch), the old one is gone by itself every other
    // time.
    for _ in 0..32 {
        let scene = Scene::new(memory);
        scene.map(memory, scene.new, READ_WRITE);
        engine().machine().processor().publish();
        tell(Order::Run(scene.space));
        if new_or_old(tell(Order::Read(PAGE))) == Verdict::Stale {
            verdict = Verdict::Stale;
        }
        // For the next one to find.
        scene.map(memory, scene.old, READ_WRITE);
        scene.flush(changed_page());
        tell(Order::Read(PAGE));
    }
    verdict
}

/// Takes the table out that is above the page, and frees it: it is filled with what a new owner
/// may have there, which maps the new page.
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

/// The table of level 1 for the page.
fn upper_table(root: Frame) -> Frame {
    (2..Tables::LEVELS).rev().fold(root, |table, level| {
        Tables::as_table(entry(table, PAGE, level)).expect("there is one, for the page is mapped")
    })
}

fn walks_a_table_that_is_freed(memory: &mut BootMemory) -> Verdict {
    let scene = Scene::in_use(memory);
    free_table(memory, &scene);
    refused(tell(Order::Read(SIBLING)), Access::Read)
}

fn reads_below_a_table_that_is_freed(memory: &mut BootMemory) -> Verdict {
    let scene = Scene::in_use(memory);
    free_table(memory, &scene);
    refused(tell(Order::Read(PAGE)), Access::Read)
}
