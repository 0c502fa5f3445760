//! Break before make: small pages become a block, and a block small pages. Between the old and the
//! new entry, nobody may be left that caches the old one, lazy CPUs included: to hold both is a
//! "TLB conflict", which Arm takes for a fault.

use std::sync::atomic::Ordering::Relaxed;

use shootdown::{Extent, PageSize, Reach, Rule, Tagging};

use crate::hardware::{Size, System};

/// What was cached is small pages, all of them under one table: the tag goes.
fn whole() -> Extent {
    Extent::whole().freeing_tables()
}

/// Changes the page's size three times under CPUs that are lazy on the space, or away, and come
/// back. Returns how often one had both sizes.
fn conflicts(size: Size, extent: Extent) -> u64 {
    let system = System::<2>::new(size);
    for cpu in 0..4 {
        system.switch(cpu, 0);
        system.touch(cpu);
    }
    (1..3).for_each(|cpu| system.pin(cpu).enter_lazy());
    system.switch(3, 1);
    for made in [PageSize::SIZE_2M, PageSize::SIZE_4K, PageSize::SIZE_2M] {
        // Break, flush, make.
        system.map(0, None);
        system.flush(0, 0, extent);
        system.map(0, Some(made));
        (0..4).for_each(|cpu| system.speculate(cpu));
        for cpu in 2..4 {
            system.switch(cpu, 0);
            system.touch(cpu);
        }
        system.pin(2).enter_lazy();
        system.switch(3, 1);
    }
    system.machine().conflicts.load(Relaxed)
}

const SIZES: [Size; 5] = [
    Size { broadcast: Some(Reach::Everyone), ..Size::SMALL },
    Size { broadcast: Some(Reach::Targets), ..Size::SMALL },
    Size { broadcast: None, ..Size::SMALL },
    Size { tagging: Tagging::Renamed, broadcast: None, ..Size::SMALL },
    Size { tagging: Tagging::PerCpu, broadcast: None, ..Size::SMALL },
];

#[test]
fn nobody_ever_has_both_sizes() {
    let small = Extent::pages(0, 33, PageSize::SIZE_4K).freeing_tables();
    let block = Extent::pages(0, 1, PageSize::SIZE_2M).freeing_tables();
    for size in SIZES {
        for extent in [whole(), small, block] {
            assert_eq!(conflicts(size, extent), 0, "{extent:?}, {:?}", size.tagging);
        }
    }
}

/// The test can fail: if tables are not said to be freed, or lazy CPUs not told, or if who comes
/// back drops the tag only after it has loaded the root.
#[test]
fn somebody_would_otherwise() {
    let extent = Extent::pages(0, 1, PageSize::SIZE_2M);
    for size in SIZES {
        assert_ne!(conflicts(size, extent), 0, "{:?}", size.tagging);
        for rule in [Rule::RingLazy, Rule::DiscardFreedTables] {
            let broken = Size { broken: Some(rule), ..size };
            // Where everyone is told, so is who is away: it has nothing left to make up for.
            let is_needed = rule == Rule::RingLazy || size.broadcast != Some(Reach::Everyone);
            let went_wrong = conflicts(broken, extent.freeing_tables()) != 0;
            assert_eq!(went_wrong, is_needed, "{rule:?}, {:?}", size.tagging);
        }
    }
}
