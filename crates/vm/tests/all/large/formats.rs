//! Collapse and split on the MMUs of other machines, whose entries have other bits.

use shootdown_vm::{
    Aarch64, Access, AddressSpace, Advice, Backing, Format, LoongArch64, PAGE_BYTES, Place,
    Sharing, Sv39, Vm, X86_64,
};

use crate::large::fixture::*;
use crate::platform::decode::{self, Mmu};
use crate::platform::*;

fn collapse_and_split_work<F: Format + 'static>(mmu: Mmu) {
    let host = Host::with_mmu(8 * BLOCK as usize, 2, everything(), mmu);
    let vm: Vm<TestSystem<_, F>> =
        Vm::new(host.clone(), Notifying::<RELEASED, AT_WAIT>(host.clone())).unwrap();
    let space = AddressSpace::new(&vm.with_reclaim()).unwrap();
    let place = Place::Fixed(everything());
    space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
    let pages = || block(1).step_by(PAGE_BYTES as usize);
    for address in pages() {
        access(&space, 1, address, Access::Write, address).unwrap();
    }
    let check = |but: std::ops::Range<u64>| {
        host.check_caches();
        for address in pages() {
            let word = access(&space, 0, address, Access::Read, 0);
            assert_eq!(word, Ok(if but.contains(&address) { 0 } else { address }));
        }
    };
    let is_large = || host.is_large(space.root(), block(1).start);

    assert_eq!(space.collapse(everything()), Ok(1));
    assert!(is_large());
    check(0..0);
    space.protect(block(1), READ).unwrap();
    space.protect(block(1), READ_WRITE).unwrap();
    access(&space, 1, block(1).start, Access::Write, block(1).start).unwrap();
    assert!(is_large() && host.is_dirty(space.root(), block(1).start));
    check(0..0);
    let gone = at(BLOCK + 40, 8);
    space.advise(gone.clone(), Advice::DontNeed).unwrap();
    assert!(!is_large() && host.is_dirty(space.root(), block(1).start));
    check(gone.clone());
    let child = space.fork().unwrap();
    access(&child, 0, block(1).start, Access::Write, 7).unwrap();
    child.exit();
    assert_eq!(space.collapse(everything()), Ok(1));
    check(gone);
    space.unmap(block(1)).unwrap();
    space.exit();
    assert_eq!(host.frames_in_use(), 1);
}

#[test]
fn collapse_and_split_work_on_x86_64() {
    collapse_and_split_work::<X86_64>(decode::X86_64);
}

#[test]
fn collapse_and_split_work_on_aarch64() {
    collapse_and_split_work::<Aarch64>(decode::AARCH64);
}

#[test]
fn collapse_and_split_work_on_loongarch64() {
    collapse_and_split_work::<LoongArch64>(decode::LOONGARCH64);
}

#[test]
fn collapse_and_split_work_on_sv39() {
    collapse_and_split_work::<Sv39>(decode::SV39);
}
