//! A page that CPU 1 uses, and that CPU 2 discards while CPU 0 changes the page. When the discard
//! has returned, CPU 1 does not use the page any more, whichever call has cleared the entry.

use super::machine::PAGE;
use super::system::{Process, page};
use super::words::run_on;
use crate::coherence::Discards;
use crate::{Advice, Vm};

/// CPU 0 runs `zero` in a space whose CPUs `of` have replicas. `before` comes first.
fn discard_while(
    of: &[usize],
    configure: impl FnOnce(&mut Vm<super::system::System>),
    before: impl FnOnce(&Process),
    zero: fn(&Process),
) {
    let process = Process::with_user(3, of, |vm| {
        let mut vm = vm.with_reclaim();
        configure(&mut vm);
        vm
    });
    let frame = process.frame(PAGE);
    before(&process);
    // loom begins with the thread that was made first.
    let two = process.spawn(2, move |process| {
        process.discard();
        process.host.assert_unused(frame);
    });
    let zero = process.spawn(0, zero);
    run_on(1);
    process.host.touch(PAGE);
    two.join().unwrap();
    zero.join().unwrap();
}

pub(super) fn discard_while_discarding() {
    discard_while(&[1], |_| (), |_| (), Process::discard);
}

/// CPU 0 claims the page, and moves it.
pub(super) fn discard_while_migrating() {
    discard_while(&[1], |_| (), |_| (), Process::migrate);
}

/// The page was discarded in place. CPU 0 claims it, and frees it.
pub(super) fn discard_while_freeing_discarded() {
    let in_place = |vm: &mut Vm<_>| vm.policy.discards = Discards::InPlace;
    discard_while(&[1], in_place, Process::discard, |process| {
        process.space.vm.free_all_discarded();
    });
}

/// CPU 0 reclaims the page, which it uses also. The replica of CPU 1 is in a batch of its own.
pub(super) fn discard_while_reclaiming() {
    let free = |process: &Process| {
        process.space.advise(page(PAGE), Advice::Free).unwrap();
        for cpu in [1, 0] {
            run_on(cpu);
            assert!(process.access(PAGE), "CPU {cpu} cannot use the page");
        }
    };
    discard_while(
        &[0, 1],
        |_| (),
        free,
        |process| {
            process.space.advise(page(PAGE), Advice::PageOut).unwrap();
        },
    );
}
