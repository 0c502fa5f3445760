//! The scenarios: a CPU has cached a translation, the page table is changed, and the CPU uses the
//! translation. The word that each page holds distinguishes the new page from the old one.

#![expect(unsafe_code, reason = "retires a space")]

use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use shootdown::{CpuId, Extent, FlushCause, PinnedCpu, Root, Space};
use shootdown_hw::Processor as _;
use shootdown_vm::{Access, EMPTY, Format, Frame, Leaf, Marks, PAGE_BYTES, Protection};

use crate::kernel::arch::{Arch, Architecture};
use crate::kernel::boot_memory::{BootMemory, entry, set_entry};
use crate::kernel::fault_injection::engine::{Machine, engine, has_tags, reclaimed, with_pinned};
use crate::kernel::fault_injection::fault::{
    self,
    Fault::{self, OtherPages, OtherTag, OthersKeepAll, TagIsReused},
};
use crate::kernel::fault_injection::observed::{shootdown_freed, shootdown_settled};
use crate::kernel::fault_injection::user::{self, CODE, Command, Found, begin, execute};
use crate::kernel::fault_injection::{reuse, stop};
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

/// The visibility of a fault on each machine: x86-64 without PCIDs (QEMU), x86-64 with PCIDs
/// (Bochs), `AArch64`, `LoongArch64`, RISC-V.
type Visibilities = [Visibility; 5];

/// Returns the visibility of a fault on the machine that runs this code.
pub(crate) fn on_this_machine(visibilities: Visibilities) -> Visibility {
    if cfg!(feature = "kpti") && Arch::NAME != "loongarch64" {
        // Some scenarios stay in user mode, and show their faults nevertheless.
        return Masked("each way to user mode loads a tag or a root, which drops all");
    }
    match Arch::NAME {
        "x86_64" => visibilities[usize::from(has_tags())],
        "aarch64" => visibilities[2],
        "loongarch64" => visibilities[3],
        _ => visibilities[4],
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

const EVERYWHERE: Visibilities = [Detected; 5];

/// Faults of addresses.
const OF_PAGE: Visibilities =
    [Detected, Detected, Detected, Detected, Masked("a fence of any page drops all")];

/// Faults of tags. QEMU has no PCIDs, and drops everything when Arm's ASID changes. Bochs has
/// PCIDs, and keeps nothing under them.
const TAGGED: Visibilities = [
    Absent("there are no PCIDs"),
    Masked("a load of CR3 drops all but global pages"),
    Masked("all is dropped when the ASID changes"),
    Detected,
    Masked("a write of satp drops all"),
];

const OF_TAG: Visibilities = [
    Absent("there are no PCIDs"),
    Absent("INVLPG names no tag: it is the loaded one"),
    Masked("an invalidation by any ASID drops all"),
    Detected,
    Masked("a fence of any ASID drops all"),
];

const NOT_CACHED: Visibility = Masked("upper levels are not cached");
const OF_UPPER_LEVEL: Visibilities = [
    NOT_CACHED,
    NOT_CACHED,
    NOT_CACHED,
    Masked("the refill handler walks from the root"),
    NOT_CACHED,
];

const ALL_KEPT: Faults = &[(OthersKeepAll, EVERYWHERE)];

/// Faults of addresses of kernel pages.
const OF_KERNEL_PAGE: Visibilities = [
    Detected,
    Detected,
    Detected,
    Masked("the processor drops all for any kernel page"),
    Masked("a fence of any page drops all"),
];

pub(crate) const SCENARIOS: &[Scenario] = &[
    active(
        "reads-all-the-time",
        reads_all_the_time,
        &[(OthersKeepAll, EVERYWHERE), (OtherPages, OF_PAGE), (OtherTag, OF_TAG)],
    ),
    active("writes-what-is-protected", writes_what_is_protected, ALL_KEPT),
    active(
        "reads-what-is-unmapped",
        |memory| unmap_during(memory, Command::KeepReading(PAGE), Access::Read),
        ALL_KEPT,
    ),
    active(
        "writes-what-is-unmapped",
        |memory| unmap_during(memory, Command::KeepWriting(PAGE), Access::Write),
        ALL_KEPT,
    ),
    quiet(
        "comes-back-from-idle",
        |memory| replace_while_away(memory, Command::Idle),
        &[(OthersKeepAll, EVERYWHERE), (OtherPages, OF_PAGE)],
    ),
    quiet(
        "comes-back-to-the-space",
        |memory| {
            let other = Scene::new(memory);
            replace_while_away(memory, Command::Run(other.space))
        },
        &[(OthersKeepAll, TAGGED)],
    ),
    quiet(
        "comes-back-after-leaving",
        |memory| replace_while_away(memory, Command::Leave),
        &[(OthersKeepAll, TAGGED)],
    ),
    active(
        "reads-a-kernel-page",
        reads_a_kernel_page,
        &[(OthersKeepAll, EVERYWHERE), (OtherPages, OF_KERNEL_PAGE)],
    ),
    active("polls-in-user-mode", polls_in_user_mode, &[(OthersKeepAll, EVERYWHERE)]),
    active("reads-until-the-frame-is-reused", reuse::reads_until_reuse, ALL_KEPT),
    quiet("catches-up-before-the-frame-is-reused", reuse::catches_up_before_reuse, ALL_KEPT),
    // Most machines drop everything when the CPU loads a root after it has woken up.
    active("sleeps-deeply", sleeps_deeply, &[]),
    active("is-given-the-tag-of-another", is_given_the_tag_of_another, &[(TagIsReused, TAGGED)]),
    active(
        "walks-a-table-that-is-freed",
        |memory| read_below_freed_table(memory, SIBLING),
        &[(OthersKeepAll, OF_UPPER_LEVEL)],
    ),
    active(
        "reads-below-a-table-that-is-freed",
        |memory| read_below_freed_table(memory, PAGE),
        ALL_KEPT,
    ),
    // A CPU that comes back gets other tags than it had, so a TLB that keeps all shows nothing.
    active("stops-while-a-flush-waits", stop_while_a_flush_waits, &[]),
    active("stops-on-a-dead-space", stop_on_a_dead_space, &[]),
];

/// A page that each space maps, and another page in the same table. The two are not in one pair,
/// nor in the TLB entry of the code's page.
pub(super) const PAGE: usize = 0x81_6000;
const SIBLING: usize = PAGE + 2 * PAGE_BYTES as usize;

const OLD: u64 = 0x01d;
const NEW: u64 = 0x4e77;

const READ: Protection = Protection::READ;
const READ_WRITE: Protection = Protection::READ.union(Protection::WRITE);

type Tables = <Arch as Architecture>::Format;

/// A space with a page, and a frame that replaces the page's frame.
pub(super) struct Scene {
    root: Frame,
    pub(super) space: &'static Space<Machine>,
    pub(super) old: Frame,
    pub(super) new: Frame,
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
        Self::new(memory).use_it()
    }

    /// As [`in_use`](Self::in_use), with a page that no CPU can write.
    pub(super) fn in_read_only_use(memory: &mut BootMemory) -> Self {
        let scene = Self::new(memory);
        scene.map_read_only(memory, scene.old);
        scene.use_it()
    }

    pub(super) fn map_read_only(&self, memory: &mut BootMemory, frame: Frame) {
        self.map(memory, frame, READ);
        engine().machine().processor().publish();
    }

    fn use_it(self) -> Self {
        fault::remove();
        execute(Command::Run(self.space));
        assert_eq!(execute(Command::Read(PAGE)), Found::Word(OLD));
        fault::inject();
        self
    }

    fn map(&self, memory: &mut BootMemory, frame: Frame, protection: Protection) {
        memory.map(self.root, PAGE, frame, protection);
    }

    pub(super) fn unmap(&self, memory: &mut BootMemory) {
        set_entry(memory.last_table(self.root, PAGE), PAGE, 0, EMPTY);
    }

    /// Publishes the change and flushes, as every kernel does after it has changed a page table.
    fn flush(&self, extent: Extent) {
        engine().machine().processor().publish();
        let cause = FlushCause::Unmap;
        with_pinned(|pin| pin.because(cause).flush(self.space, extent)).wait();
        shootdown_settled();
    }

    /// A scene whose page is cached as the kernel's pages are: once, under every tag. The other CPU
    /// runs the space and has read the page, without a fault; then the fault is injected.
    fn with_kernel_page(memory: &mut BootMemory) -> Self {
        fault::remove();
        let scene = Self::new(memory);
        scene.map_as_kernel(memory, scene.old);
        execute(Command::Run(scene.space));
        assert_eq!(execute(Command::Read(PAGE)), Found::Word(OLD));
        fault::inject();
        scene
    }

    /// Maps the page as the kernel maps its own, except that user mode may read it.
    fn map_as_kernel(&self, memory: &mut BootMemory, frame: Frame) {
        self.map(memory, frame, READ);
        let table = memory.last_table(self.root, PAGE);
        set_entry(table, PAGE, 0, Arch::global(entry(table, PAGE, 0)));
        engine().machine().processor().publish();
    }

    /// As [`replace`](Self::replace), with the flush of a kernel page.
    fn replace_as_kernel(&self, memory: &mut BootMemory) {
        self.unmap(memory);
        flush_kernel_page();
        shootdown_freed(self.old.address());
        self.map_as_kernel(memory, self.new);
    }

    /// Replaces the page by the rules: unmaps the old page, flushes, and maps the new page.
    fn replace(&self, memory: &mut BootMemory) {
        self.unmap(memory);
        self.flush(changed_page());
        shootdown_freed(self.old.address());
        self.map(memory, self.new, READ_WRITE);
        engine().machine().processor().publish();
    }
}

/// Returns a new space, for a storm.
pub(crate) fn empty_space(memory: &mut BootMemory) -> &'static Space<Machine> {
    Scene::new(memory).space
}

pub(super) fn changed_page() -> Extent {
    Extent::page(PAGE as u64)
}

/// Publishes the change and flushes the page as one of the kernel's.
fn flush_kernel_page() {
    engine().machine().processor().publish();
    with_pinned(|pin| pin.flush_kernel(changed_page())).wait();
}

/// The verdict of an access to the page when the new page is mapped.
pub(super) fn new_or_old(found: Found) -> Verdict {
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

/// Replaces a kernel page while the other CPU reads it.
fn reads_a_kernel_page(memory: &mut BootMemory) -> Verdict {
    let scene = Scene::with_kernel_page(memory);
    begin(Command::KeepReading(PAGE));
    scene.replace_as_kernel(memory);
    let verdict = new_or_old(user::end());
    remove_kernel_page(memory, &scene);
    verdict
}

/// Number of flushes while the other CPU polls: more than the log of the kernel's flushes has.
const STORM: u64 = 200;

/// Replaces a kernel page and flushes it again and again, while the other CPU polls in user mode.
/// It must not be interrupted, and finds the new page when it has entered the kernel.
fn polls_in_user_mode(memory: &mut BootMemory) -> Verdict {
    let scene = Scene::with_kernel_page(memory);
    let flag = memory.frame();
    memory.map(scene.root, SIBLING, flag, READ_WRITE);
    engine().machine().processor().publish();
    let skipped = || engine().cpu(CpuId(0)).stats().skipped_in_user;
    let (interrupts, before) = (user::flush_interrupts(), skipped());
    begin(Command::Poll(SIBLING));
    scene.unmap(memory);
    (0..STORM).for_each(|_| flush_kernel_page());
    assert_eq!(user::flush_interrupts(), interrupts, "a flush has interrupted a CPU in user mode");
    // A flush that is broadcast interrupts no CPU, and skips none.
    let has_broadcasts = engine().machine().processor().broadcaster().is_some();
    assert!(has_broadcasts || skipped() == before + STORM);
    scene.map_as_kernel(memory, scene.new);
    page::word_at(flag, 0).store(NEW, Ordering::Release);
    user::end();
    // The sanitizer does not know that a CPU in user mode uses no kernel page. The frame was free
    // when the first flush was done.
    shootdown_freed(scene.old.address());
    let verdict = new_or_old(execute(Command::Read(PAGE)));
    remove_kernel_page(memory, &scene);
    verdict
}

/// Replaces a kernel page while the other CPU sleeps. Its flush must not wake that CPU, although it
/// interrupts every CPU that is online. When the other CPU wakes up, it returns to the space.
fn sleeps_deeply(memory: &mut BootMemory) -> Verdict {
    let scene = Scene::with_kernel_page(memory);
    execute(Command::Sleep);
    let before = user::flush_interrupts();
    scene.replace_as_kernel(memory);
    scene.flush(changed_page());
    assert_eq!(user::flush_interrupts(), before, "a flush has woken a CPU that sleeps");
    execute(Command::WakeUp);
    execute(Command::Run(scene.space));
    let verdict = new_or_old(execute(Command::Read(PAGE)));
    remove_kernel_page(memory, &scene);
    verdict
}

/// Drops the kernel page on all CPUs without a fault, because it is cached under every tag, and
/// later scenarios have a page at the same address.
fn remove_kernel_page(memory: &mut BootMemory, scene: &Scene) {
    fault::remove();
    scene.unmap(memory);
    flush_kernel_page();
}

/// Unmaps the page while the other CPU repeats `accesses`.
fn unmap_during(memory: &mut BootMemory, accesses: Command, access: Access) -> Verdict {
    let scene = Scene::in_use(memory);
    begin(accesses);
    scene.unmap(memory);
    scene.flush(changed_page());
    shootdown_freed(scene.old.address());
    refused(user::end(), access)
}

/// Replaces the page after the other CPU has executed `away`. Then the other CPU returns to the
/// space.
fn replace_while_away(memory: &mut BootMemory, away: Command) -> Verdict {
    let scene = Scene::in_use(memory);
    execute(away);
    scene.replace(memory);
    execute(Command::Run(scene.space));
    new_or_old(execute(Command::Read(PAGE)))
}

/// Replaces the page after the other CPU has stopped as in a crash, with the page cached. Then the
/// other CPU comes back from a reset, with its TLB as it was.
fn stop_while_a_flush_waits(memory: &mut BootMemory) -> Verdict {
    let scene = Scene::in_use(memory);
    begin(Command::Stop);
    stop::wait_until_stopped();
    scene.replace(memory);
    stop::come_back();
    assert_eq!(user::end(), Found::Word(0));
    execute(Command::Run(scene.space));
    new_or_old(execute(Command::Read(PAGE)))
}

/// The other CPU stops while it idles on a space, which is then retired. Reaping interrupts the CPU
/// and waits for it, on every machine. The verdict is `Fresh` if the space is reclaimed once.
fn stop_on_a_dead_space(memory: &mut BootMemory) -> Verdict {
    let scene = Scene::in_use(memory);
    execute(Command::Idle);
    begin(Command::Stop);
    stop::wait_until_stopped();
    let before = reclaimed();
    // SAFETY: no CPU runs the space, and its memory stays allocated.
    with_pinned(|pin| unsafe { pin.retire(NonNull::from(scene.space)) }).wait();
    assert_eq!(reclaimed(), before, "the other CPU may walk the page tables");
    with_pinned(PinnedCpu::reap).wait();
    let is_reclaimed = reclaimed() == before + 1;
    stop::come_back();
    assert_eq!(user::end(), Found::Word(0));
    if is_reclaimed { Verdict::Fresh } else { Verdict::Stale }
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
        shootdown_freed(scene.old.address());
    }
    verdict
}

/// Unlinks and frees the table of the page, and fills it as a new owner could: with entries that
/// map the new page. Then the other CPU reads `address`, which the table mapped.
fn read_below_freed_table(memory: &mut BootMemory, address: usize) -> Verdict {
    let scene = Scene::in_use(memory);
    let table = memory.last_table(scene.root, PAGE);
    set_entry(upper_table(scene.root), PAGE, 1, EMPTY);
    scene.flush(changed_page().freeing_tables());
    shootdown_freed(table.address());
    let leaf = Leaf { frame: scene.new, protection: READ_WRITE, marks: Marks::empty() };
    for address in [PAGE, SIBLING] {
        set_entry(table, address, 0, Tables::leaf(leaf));
    }
    engine().machine().processor().publish();
    refused(execute(Command::Read(address)), Access::Read)
}

/// Returns the table of level 1 for the page.
fn upper_table(root: Frame) -> Frame {
    (2..Tables::LEVELS).rev().fold(root, |table, level| {
        Tables::as_table(entry(table, PAGE, level)).expect("the page is mapped")
    })
}
