use super::*;
use crate::base::ids::Root;
use crate::state::engine::Shootdown;
use crate::state::machine::tests::Plain;
use core::sync::atomic::Ordering::Relaxed;

/// The machine itself drops the translations under the kernel's tag when it loads the kernel's
/// root. The exception is a space under the kernel's tag for which no other tag was left
/// (`tests/tags/leaving`).
#[test]
fn leave_space_invalidates_nothing_by_itself() {
    let machines =
        [(Tagging::PerCpu, 0), (Tagging::PerCpu, 6), (Tagging::Global, 0), (Tagging::Global, 200)];
    for (tagging, tag_count) in machines {
        let mut machine = Plain::<8>::with_tags(tag_count);
        machine.tagging = tagging;
        let engine = Shootdown::new(machine);
        let spaces = [0, 1].map(|root| engine.space(Root(root)));
        // SAFETY: there is one CPU, one thread, and no interrupt.
        let pin = unsafe { engine.pin() };
        pin.online();
        for space in &spaces {
            // SAFETY: the spaces outlive their use, and do not move.
            unsafe { pin.switch(space) };
        }
        pin.leave_space();
        let invalidations = engine.machine().invalidations.load(Relaxed);
        assert_eq!(invalidations, 0, "{tagging:?}, {tag_count} tags");
    }
}
