//! A CPU that stopped while it used an ASID, and came back.

use shootdown::{CpuId, Machine as _};

use crate::hardware::{Size, System};

/// While CPU 3 is disconnected, its ASID is allocated to another space. If CPU 3 still reserved it
/// for space 0, the next rollover would give both spaces the ASID.
#[test]
fn asid_of_disconnected_cpu_is_not_reserved_any_more() {
    let system = System::<2>::new(Size { spaces: 200, tags: 15, ..Size::SMALL });
    system.switch(3, 0);
    let asid = system.tag(3);
    system.machine().load_kernel();
    // SAFETY: CPU 3 has loaded the kernel's root, and does nothing any more. There is one thread.
    unsafe { system.pin(0).disconnect(CpuId(3)) };
    let mut others = 1..200;
    let gets_asid = |&other: &usize| {
        system.switch(0, other);
        system.tag(0) == asid
    };
    let other = others.find(gets_asid).expect("each rollover frees the ASID");
    system.pin(3).online();
    let before = system.total_stats().rollovers;
    for space in others {
        system.switch(1, space);
        if system.total_stats().rollovers > before {
            break;
        }
    }
    system.switch(1, 0);
    system.switch(0, other);
    assert_eq!(system.total_stats().rollovers, before + 1);
    assert_ne!(system.tag(0), system.tag(1));
}
