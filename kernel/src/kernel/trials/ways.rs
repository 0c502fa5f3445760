//! The ways in which a CPU can be missed.
//!
//! Each is a way to have a translation cached, and to come to use it. What it should find is told
//! from what it must not by what the pages hold.

#![expect(unsafe_code, reason = "fills pages")]

use shootdown::{Extent, Root, Space};
use shootdown_hw::Processor as _;
use shootdown_vm::{Access, Format, Frame, PAGE_BYTES, Protection};

use crate::kernel::arch::{Arch, Architecture};
use crate::kernel::by_hand::{Memory, entry, seen, set_entry, words_of};
use crate::kernel::trials::Visibility::{Absent, Masked, Seen};
use crate::kernel::trials::engine::{Machine, engine, here};
use crate::kernel::trials::fault::{
    self,
    Fault::{self, OtherPages, OtherTag, OthersKeepAll, TagIsReused},
};
use crate::kernel::trials::user::{self, CODE, Found, Order, begin, tell};
use crate::kernel::trials::{Verdict, Visible};

/// A way to be missed.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) is_tried: fn(&mut Memory) -> Verdict,
    /// Whether nobody needs to be told of it, by an interrupt or a broadcast.
    pub(crate) is_quiet: bool,
    /// What it finds out, and where that can be seen.
    pub(crate) faults: &'static [(Fault, Visible)],
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

pub(crate) const WAYS: &[Way] = &[
    Way {
        name: "reads-all-the-time",
        is_tried: reads_all_the_time,
        is_quiet: false,
        faults: &[
            (OthersKeepAll, EVERYWHERE),
            (OtherPages, EVERYWHERE),
            (
                OtherTag,
                Visible {
                    x86_64: Absent("there are no PCIDs"),
                    x86_64_pcid: Absent("INVLPG names no tag: it is the loaded one"),
                    aarch64: Masked("an invalidation by any ASID drops all"),
                    loongarch64: Seen,
                },
            ),
        ],
    },
    Way {
        name: "writes-what-is-protected",
        is_tried: writes_what_is_protected,
        is_quiet: false,
        faults: &[(OthersKeepAll, EVERYWHERE)],
    },
    Way {
        name: "reads-what-is-unmapped",
        is_tried: reads_what_is_unmapped,
        is_quiet: false,
        faults: &[(OthersKeepAll, EVERYWHERE)],
    },
    Way {
        name: "writes-what-is-unmapped",
        is_tried: writes_what_is_unmapped,
        is_quiet: false,
        faults: &[(OthersKeepAll, EVERYWHERE)],
    },
    Way {
        name: "comes-back-from-idle",
        is_tried: comes_back_from_idle,
        is_quiet: true,
        faults: &[(OthersKeepAll, EVERYWHERE), (OtherPages, EVERYWHERE)],
    },
    Way {
        name: "comes-back-to-the-space",
        is_tried: comes_back_to_the_space,
        is_quiet: true,
        faults: &[(OthersKeepAll, TAGGED)],
    },
    Way {
        name: "comes-back-after-leaving",
        is_tried: comes_back_after_leaving,
        is_quiet: true,
        faults: &[(OthersKeepAll, TAGGED)],
    },
    Way {
        name: "is-given-the-tag-of-another",
        is_tried: is_given_the_tag_of_another,
        is_quiet: false,
        faults: &[(TagIsReused, TAGGED)],
    },
    Way {
        name: "walks-a-table-that-is-freed",
        is_tried: walks_a_table_that_is_freed,
        is_quiet: false,
        faults: &[(
            OthersKeepAll,
            Visible {
                x86_64: Masked("upper levels are not cached"),
                x86_64_pcid: Masked("upper levels are not cached"),
                aarch64: Masked("upper levels are not cached"),
                loongarch64: Masked("the refill handler walks from the root"),
            },
        )],
    },
    Way {
        name: "reads-below-a-table-that-is-freed",
        is_tried: reads_below_a_table_that_is_freed,
        is_quiet: false,
        faults: &[(OthersKeepAll, EVERYWHERE)],
    },
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

fn filled(memory: &mut Memory, word: u64) -> Frame {
    let frame = memory.frame();
    // SAFETY: it is ours.
    unsafe { words_of(frame).write_volatile(word) };
    frame
}

impl Scene {
    /// With the old page mapped.
    fn new(memory: &mut Memory) -> Self {
        let (root, old, new) = (memory.frame(), filled(memory, OLD), filled(memory, NEW));
        Arch::prepare_root(Root(root.address()));
        let code = memory.frame();
        let source = Arch::user_code();
        // SAFETY: the frame is ours, and the code less than a page.
        unsafe { seen(code).copy_from_nonoverlapping(source.as_ptr(), source.len()) };
        memory.map(root, CODE, code, READ | Protection::EXECUTE);
        memory.map(root, PAGE, old, READ_WRITE);
        let space = &memory.keep(1, |_| engine().space(Root(root.address())))[0];
        engine().machine().processor().publish();
        Self { root, space, old, new }
    }

    /// The other CPU runs it, and has used the page. So far all was well; what comes is tried.
    fn in_use(memory: &mut Memory) -> Self {
        fault::take_out();
        let scene = Self::new(memory);
        user::run_space(scene.space);
        assert_eq!(tell(Order::Read, PAGE), Found::Word(OLD));
        fault::put_in();
        scene
    }

    fn map(&self, memory: &mut Memory, frame: Frame, protection: Protection) {
        memory.map(self.root, PAGE, frame, protection);
    }

    fn unmap(&self, memory: &mut Memory) {
        set_entry(memory.last_table(self.root, PAGE), PAGE, 0, shootdown_vm::EMPTY);
    }

    /// As every kernel does after it has changed a page table.
    fn flush(&self, extent: Extent) {
        engine().machine().processor().publish();
        here(|here| here.flush(self.space, extent)).wait();
    }

    /// The page is another one from now on, by the rules: nothing is mapped in between.
    fn replace(&self, memory: &mut Memory) {
        self.unmap(memory);
        self.flush(page());
        self.map(memory, self.new, READ_WRITE);
        engine().machine().processor().publish();
    }
}

/// A space with nothing of interest in it.
pub(crate) fn empty_space(memory: &mut Memory) -> &'static Space<Machine> {
    Scene::new(memory).space
}

fn page() -> Extent {
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

fn reads_all_the_time(memory: &mut Memory) -> Verdict {
    let scene = Scene::in_use(memory);
    begin(Order::KeepReading, PAGE);
    scene.replace(memory);
    new_or_old(user::end())
}

fn writes_what_is_protected(memory: &mut Memory) -> Verdict {
    let scene = Scene::in_use(memory);
    assert_eq!(tell(Order::Write, PAGE), Found::Word(user::WRITTEN));
    begin(Order::KeepWriting, PAGE);
    scene.map(memory, scene.old, READ);
    scene.flush(page());
    refused(user::end(), Access::Write)
}

fn reads_what_is_unmapped(memory: &mut Memory) -> Verdict {
    let scene = Scene::in_use(memory);
    begin(Order::KeepReading, PAGE);
    scene.unmap(memory);
    scene.flush(page());
    refused(user::end(), Access::Read)
}

fn writes_what_is_unmapped(memory: &mut Memory) -> Verdict {
    let scene = Scene::in_use(memory);
    begin(Order::KeepWriting, PAGE);
    scene.unmap(memory);
    scene.flush(page());
    refused(user::end(), Access::Write)
}

fn comes_back_from_idle(memory: &mut Memory) -> Verdict {
    let scene = Scene::in_use(memory);
    tell(Order::Idle, 0);
    scene.replace(memory);
    user::run_space(scene.space);
    new_or_old(tell(Order::Read, PAGE))
}

fn comes_back_to_the_space(memory: &mut Memory) -> Verdict {
    let (other, scene) = (Scene::new(memory), Scene::in_use(memory));
    user::run_space(other.space);
    scene.replace(memory);
    user::run_space(scene.space);
    new_or_old(tell(Order::Read, PAGE))
}

fn comes_back_after_leaving(memory: &mut Memory) -> Verdict {
    let scene = Scene::in_use(memory);
    tell(Order::Leave, 0);
    scene.replace(memory);
    user::run_space(scene.space);
    new_or_old(tell(Order::Read, PAGE))
}

/// Its page has what is new; the others, all of which have it at the same address, what is old.
fn is_given_the_tag_of_another(memory: &mut Memory) -> Verdict {
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
        user::run_space(scene.space);
        if new_or_old(tell(Order::Read, PAGE)) == Verdict::Stale {
            verdict = Verdict::Stale;
        }
        // For the next one to find.
        scene.map(memory, scene.old, READ_WRITE);
        scene.flush(page());
        tell(Order::Read, PAGE);
    }
    verdict
}

/// Takes the table out that is above the page, and frees it: it is filled with what a new owner
/// may have there, which maps the new page.
fn free_table(memory: &mut Memory, scene: &Scene) {
    let table = memory.last_table(scene.root, PAGE);
    set_entry(upper_table(scene.root), PAGE, 1, shootdown_vm::EMPTY);
    scene.flush(page().freeing_tables());
    for address in [PAGE, SIBLING] {
        let leaf = shootdown_vm::Leaf {
            frame: scene.new,
            protection: READ_WRITE,
            marks: shootdown_vm::Marks::empty(),
        };
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

fn walks_a_table_that_is_freed(memory: &mut Memory) -> Verdict {
    let scene = Scene::in_use(memory);
    free_table(memory, &scene);
    refused(tell(Order::Read, SIBLING), Access::Read)
}

fn reads_below_a_table_that_is_freed(memory: &mut Memory) -> Verdict {
    let scene = Scene::in_use(memory);
    free_table(memory, &scene);
    refused(tell(Order::Read, PAGE), Access::Read)
}
