//! Trials: is every way in which a CPU can be missed noticed here, where the MMU is not ours?
//!
//! In each, one CPU changes a page table while another has used it, and then the other looks. With
//! the engine as it is, it must find what is new. With a [fault](fault::Fault) put in, it must find
//! what is old, or the trial shows nothing: emulators drop more than they are told to, in some
//! cases. Which those are is known, and written here, with the reason; what is masked on one
//! machine is seen on another.

pub(crate) mod engine;
pub(crate) mod fault;
mod off;
pub(crate) mod storms;
pub(crate) mod user;
mod ways;

use shootdown::Here;

use crate::kernel::arch::{Arch, Architecture, Interrupt, Status};
use crate::kernel::by_hand::Memory;
use crate::kernel::console::println;
use crate::kernel::entry::end;
use crate::kernel::load::Load;
use fault::Fault;
use ways::{WAYS, Way};

/// What came of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// What is new was found.
    Fresh,
    /// What is old was found: a real program would now use memory that is another's.
    Stale,
}

/// Whether a fault can be seen on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visibility {
    Seen,
    /// The emulator drops what it was not told to.
    Masked(&'static str),
    /// There is nothing that the fault could be in.
    Absent(&'static str),
}

/// On each architecture that the kernel boots on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visible {
    /// Without PCIDs: QEMU.
    pub(crate) x86_64: Visibility,
    /// With PCIDs: Bochs.
    pub(crate) x86_64_pcid: Visibility,
    pub(crate) aarch64: Visibility,
    pub(crate) loongarch64: Visibility,
}

impl Visible {
    fn here(&self) -> Visibility {
        match Arch::NAME {
            "x86_64" if engine::has_tags() => self.x86_64_pcid,
            "x86_64" => self.x86_64,
            "aarch64" => self.aarch64,
            _ => self.loongarch64,
        }
    }
}

/// How often each is tried: the first time may be luck.
const TIMES: usize = 3;

pub(crate) fn run(memory: &mut Memory, load: &Load) -> ! {
    let cpus = load.cpus;
    if cpus < 2 {
        println!("trials skipped: they take two CPUs");
        end(Status::Passed);
    }
    engine::here(Here::online);
    user::wait_until(|| user::online() == u64::from(cpus) - 1);
    let mut wrong = 0;
    for way in WAYS {
        wrong += usize::from(!is_right(memory, way, Fault::None, Visibility::Absent("")));
        for &(fault, visible) in way.faults {
            wrong += usize::from(!is_right(memory, way, fault, visible.here()));
        }
    }
    storms::run(memory, cpus, load.rounds);
    end(if wrong == 0 { Status::Passed } else { Status::Failed });
}

/// In the handlers of interrupts.
pub(crate) fn interrupt(interrupt: Interrupt) {
    if interrupt == Interrupt::Flush {
        engine::here(Here::answer);
    }
}

/// Tries a way with a fault, and says what came of it.
fn is_right(memory: &mut Memory, way: &Way, fault: Fault, visibility: Visibility) -> bool {
    let (name, fault_name) = (way.name, fault.name());
    if let (Visibility::Absent(why), true) = (visibility, fault != Fault::None) {
        println!("trial way={name} fault={fault_name} verdict=absent why={why}");
        return true;
    }
    let mut stale = 0;
    for _ in 0..TIMES {
        let before = engine::disturbances();
        fault::choose(fault);
        let verdict = (way.is_tried)(memory);
        fault::take_out();
        user::leave();
        stale += usize::from(verdict == Verdict::Stale);
        let times = engine::disturbances() - before;
        if way.is_quiet && times != 0 {
            println!("trial way={name} fault={fault_name} verdict=disturbed times={times}");
            return false;
        }
    }
    let is_right = match (fault, visibility) {
        (Fault::None, _) => stale == 0,
        (_, Visibility::Seen) => stale == TIMES,
        _ => true,
    };
    let verdict = match (stale, visibility) {
        (0, Visibility::Masked(_)) => "masked",
        (0, _) => "fresh",
        (TIMES, _) => "stale",
        _ => "mixed",
    };
    let why = if let Visibility::Masked(why) = visibility { why } else { "" };
    let right = if is_right { "yes" } else { "NO" };
    println!("trial way={name} fault={fault_name} verdict={verdict} right={right} why={why}");
    is_right
}
