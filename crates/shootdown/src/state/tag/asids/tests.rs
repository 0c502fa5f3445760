use super::*;
use crate::state::machine::tests::Plain;
use std::vec::Vec;

#[test]
fn word_keeps_asid_pins_and_epoch_apart() {
    let mut word = AsidWord::new(6, 0xfffe);
    for pins in 0..=255 {
        assert_eq!((word.asid(), word.tag(), word.epoch()), (0xfffe, Tag(0xfffe), 6));
        assert_eq!(word.is_pinned(), pins != 0);
        assert_eq!(word.unpinned().0, AsidWord::new(6, 0xfffe).0);
        let proposed = word.renewed(8, 3).proposed();
        assert_eq!((proposed.epoch(), proposed.allocated_in(), proposed.asid()), (9, 8, 3));
        assert_eq!(proposed.confirmed().0 & AsidWord::PINS, word.0 & AsidWord::PINS);
        assert_eq!(proposed.confirmed().epoch(), 8);
        word.0 = word.0.wrapping_add(AsidWord::PIN);
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes half a minute, and runs no unsafe code that others do not")]
fn asid_count_is_limited_by_machine_and_words() {
    fn count<const WORDS: usize>(tags: usize) -> u64 {
        AsidAllocator::<Plain<WORDS>>::new().count(&Plain::with_tags(tags))
    }
    assert_eq!([count::<8>(15), count::<8>(255), count::<8>(256)], [15, 255, 255]);
    assert_eq!([count::<2048>(1 << 20), count::<2>(0), count::<0>(9)], [65535, 0, 0]);
    // One ASID for each CPU, and one more.
    let covers_all_cpus =
        |tags| AsidAllocator::<Plain<8>>::new().covers_all_cpus(&Plain::with_tags(tags));
    assert!(covers_all_cpus(129) && !covers_all_cpus(128));
}

/// The machine has room for 128 CPUs.
#[test]
fn stocks_hold_at_most_a_quarter_of_asids() {
    let size = |tags| AsidAllocator::<Plain<2048>>::new().block_size(&Plain::with_tags(tags));
    assert_eq!([size(0), size(1), size(1023), size(1024)], [1, 1, 1, 2]);
    assert_eq!([size(4095), size(32_767), size(32_768), size(65_535)], [4, 32, 64, 64]);
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes, and runs no unsafe code that others do not")]
fn blocks_have_each_asid_once() {
    for count in [1, 63, 64, 65, 130, 255, 1023, 1024, 1100, 4095, 65_535] {
        let machine = Plain::<2048>::with_tags(count);
        let allocator = AsidAllocator::<Plain<2048>>::new();
        for epoch in [FIRST, FIRST + EPOCH] {
            let mut asids = Vec::new();
            while let Some(block) = allocator.take_block(&machine, epoch) {
                assert_eq!(block.epoch, epoch);
                let bits = (0..64).filter(|bit| block.asids >> bit & 1 != 0);
                asids.extend(bits.map(|bit| block.word as u64 * 64 + bit));
            }
            assert!(asids.iter().copied().eq(1..=count as u64), "{count}: {asids:?}");
            assert!(allocator.take_block(&machine, epoch).is_none());
        }
        assert!(allocator.take_block(&machine, FIRST).is_none(), "the epoch is over");
    }
}

#[test]
fn list_has_pins_and_reserved_asids() {
    let (allocator, machine) = (AsidAllocator::<Plain<8>>::new(), Plain::<8>::with_tags(255));
    for asid in [1, 64, 200] {
        allocator.set_pinned(&machine, asid, |word, bit| word | bit);
    }
    allocator.set_pinned(&machine, 64, |word, bit| word & !bit);
    let list = |epoch| [0, 1, 2, 3].map(|word| allocator.listed(&machine, epoch, word));
    assert_eq!(list(FIRST), [Some(0); 4], "there were no pins in the first epoch");
    let write = |is_complete| {
        allocator.write_list(&machine, 4, |add| {
            assert_eq!(list(FIRST), [None; 4]);
            add(63);
            add(130);
            is_complete
        });
    };
    write(false);
    assert_eq!(list(4), [None; 4]);
    write(true);
    assert_eq!(list(4), [1 << 63 | 2, 0, 1 << 2, 1 << 8].map(Some));
}

#[test]
fn lock_is_held_during_the_closure() {
    let machine = Plain::<2>::with_tags(3);
    let allocator = AsidAllocator::<Plain<2>>::new();
    let lock = || allocator.lock.0.load(Relaxed);
    let inside = allocator.with_lock(&machine, CpuId(2), || {
        assert!(allocator.try_with_lock(&machine, CpuId(3), || ()).is_none());
        lock()
    });
    assert_eq!((inside, lock()), (holder(CpuId(2)), 0));
    assert_eq!(allocator.try_with_lock(&machine, CpuId(3), lock), Some(holder(CpuId(3))));
    allocator.lock.0.store(holder(CpuId(2)), Relaxed);
    allocator.release_lock_of(&machine, CpuId(1));
    assert_eq!(lock(), holder(CpuId(2)));
    allocator.release_lock_of(&machine, CpuId(2));
    assert_eq!(lock(), 0);
}
