//! Break before make: small pages become a block, and a block becomes small pages.
//!
//! When the new entry is made, no CPU may still cache the old one, lazy CPUs included. A CPU that
//! caches both has a "TLB conflict", for which Arm raises a fault.

use std::sync::atomic::Ordering::Relaxed;

use shootdown::{Extent, PageSize, Reach, Rule, Tagging};

use crate::hardware::{Size, System};

/// The whole space, with freed tables.
fn whole() -> Extent {
    Extent::whole().freeing_tables()
}

/// Changes the page's size three times, while CPUs are lazy on the space or away from it, and come
/// back. Returns the number of times that a CPU cached both sizes.
fn conflicts(size: Size, extent: Extent) -> u64 {
    let system = System::<2>::new(size);
    for cpu in 0..4 {
        system.switch(cpu, 0);
        system.touch(cpu);
    }
    (1..3).for_each(|cpu| system.pin(cpu).enter_lazy());
    system.switch(3, 1);
    for new_size in [PageSize::SIZE_2M, PageSize::SIZE_4K, PageSize::SIZE_2M] {
        // Break, flush, make.
        system.map(0, None);
        system.flush(0, 0, extent);
        system.map(0, Some(new_size));
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
fn no_cpu_caches_both_sizes() {
    let small = Extent::pages(0, 33, PageSize::SIZE_4K).freeing_tables();
    let block = Extent::pages(0, 1, PageSize::SIZE_2M).freeing_tables();
    for size in SIZES {
        for extent in [whole(), small, block] {
            assert_eq!(conflicts(size, extent), 0, "{extent:?}, {:?}", size.tagging);
        }
    }
}

/// The test above can fail. It fails if the extent does not free tables, or if lazy CPUs are not
/// notified. It also fails if a CPU that comes back drops the tag after it has loaded the root.
#[test]
fn conflicts_are_detected_without_the_rules() {
    let extent = Extent::pages(0, 1, PageSize::SIZE_2M);
    for size in SIZES {
        assert_ne!(conflicts(size, extent), 0, "{:?}", size.tagging);
        for rule in [Rule::RingLazy, Rule::DiscardFreedTables] {
            let broken = Size { broken: Some(rule), ..size };
            // A broadcast to all CPUs also reaches CPUs that are away, so they have nothing to
            // catch up with.
            let is_needed = rule == Rule::RingLazy || size.broadcast != Some(Reach::Everyone);
            let has_conflicts = conflicts(broken, extent.freeing_tables()) != 0;
            assert_eq!(has_conflicts, is_needed, "{rule:?}, {:?}", size.tagging);
        }
    }
}
