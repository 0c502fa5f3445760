//! Processors with errata, guests, and the kernel's table: what their TLBs may hold.

use super::*;
use shootdown_check::Reach;

/// CPU 0 runs the space. CPU 1 unmaps a page, and calls `invalidate` before it reuses the frame.
fn reuse_after(it: &Shared, cpu: usize, invalidate: fn(&HostileMachine, &Shared)) {
    if cpu == 0 {
        load(it, 1);
        return with_machine(HostileMachine::stay_in_user_mode);
    }
    it.tables.swap(0, Entry::EMPTY);
    publish();
    with_machine(|machine| invalidate(machine, it));
    with_machine(|machine| machine.reuse_frame(0));
}

const REUSED: Option<Violation> = Some(Violation::UsesReused { cpu: 0, page: 0 });

fn broadcast(machine: &HostileMachine) {
    machine.issue_broadcast(|page| page == 0);
}

/// Waits `waits` times, each time after `operations` broadcasts that remove nothing.
fn wait(machine: &HostileMachine, waits: usize, operations: usize) {
    for _ in 0..waits {
        (0..operations).for_each(|_| machine.broadcast_nothing());
        machine.complete_broadcasts();
    }
}

#[test]
fn second_wait_completes_if_operation_precedes_it() {
    let once: Body = |it, cpu| {
        reuse_after(it, cpu, |machine, _| {
            broadcast(machine);
            wait(machine, 1, 0);
        });
    };
    let twice: Body = |it, cpu| {
        reuse_after(it, cpu, |machine, _| {
            broadcast(machine);
            wait(machine, 2, 0);
        });
    };
    let operation_first: Body = |it, cpu| {
        reuse_after(it, cpu, |machine, _| {
            broadcast(machine);
            wait(machine, 1, 1);
            wait(machine, 2, 0);
        });
    };
    let again: Body = |it, cpu| {
        reuse_after(it, cpu, |machine, _| {
            broadcast(machine);
            wait(machine, 1, 0);
            wait(machine, 1, 1);
        });
    };
    let all = [once, twice, operation_first, again];
    let expect = |profile, expected: [bool; 4]| {
        let found = all.map(|body| violation(profile, body));
        assert_eq!(found, expected.map(|is_wrong| REUSED.filter(|_| is_wrong)), "{profile:?}");
    };
    expect(Profile::ARM64, [false; 4]);
    expect(Profile::X86_1718, [true, false, false, false]);
    expect(Profile::ARM64_4118414, [true, true, true, false]);
}

/// One more operation and wait complete all broadcasts before them, and none after them.
#[test]
fn second_wait_is_for_all_broadcasts_before_first() {
    let several: Body = |it, cpu| {
        reuse_after(it, cpu, |machine, _| {
            broadcast(machine);
            machine.issue_broadcast(|page| page == 1);
            wait(machine, 1, 0);
            wait(machine, 1, 1);
        });
    };
    let later: Body = |it, cpu| {
        reuse_after(it, cpu, |machine, _| {
            machine.issue_broadcast(|page| page == 1);
            wait(machine, 1, 0);
            broadcast(machine);
            wait(machine, 1, 0);
        });
    };
    assert_eq!(violation(Profile::ARM64_4118414, several), None);
    assert_eq!(violation(Profile::ARM64_4118414, later), REUSED);
    assert_eq!(violation(Profile::X86_1718, later), REUSED);
}

/// A broadcast of kernel pages is an operation as well: it and a wait complete earlier broadcasts
/// of either kind.
#[test]
fn kernel_broadcast_completes_earlier_broadcasts() {
    fn kernel(machine: &HostileMachine, page: usize) {
        machine.broadcast_kernel(|it| it == page, WalkCaches::Keep);
        machine.complete_broadcasts();
    }
    fn reuse_kernel_page_after(it: &Shared, cpu: usize, invalidate: fn(&HostileMachine)) {
        if cpu == 0 {
            return with_machine(|machine| machine.set_online(true));
        }
        it.kernel.swap(0, Entry::EMPTY);
        publish();
        with_machine(invalidate);
        with_machine(|machine| machine.reuse_kernel_frame(0));
    }
    let once: Body = |it, cpu| reuse_kernel_page_after(it, cpu, |machine| kernel(machine, 0));
    let twice: Body = |it, cpu| {
        reuse_kernel_page_after(it, cpu, |machine| {
            kernel(machine, 0);
            kernel(machine, 1);
        });
    };
    let of_space: Body = |it, cpu| {
        reuse_after(it, cpu, |machine, _| {
            broadcast(machine);
            machine.complete_broadcasts();
            kernel(machine, 1);
        });
    };
    let reused = Some(Violation::UsesReusedKernel { cpu: 0, page: 0 });
    assert_eq!(violation(Profile::ARM64_4118414, once), reused);
    for body in [twice, of_space] {
        assert_eq!(violation(Profile::ARM64_4118414, body), None);
    }
}

/// A CPU that has broadcast holds none of the entries itself when it has waited once.
#[test]
fn early_wait_is_complete_on_its_own_cpu() {
    let own: Body = |it, cpu| {
        if cpu == 0 {
            load(it, 1);
            reuse_after(it, 1, |machine, _| {
                broadcast(machine);
                wait(machine, 1, 0);
            });
            with_machine(HostileMachine::stay_in_user_mode);
        }
    };
    assert_eq!(violation(Profile::ARM64_4118414, own), None);
}

#[test]
fn only_exception_ends_late_accesses_in_user_mode() {
    let waited: Body = |it, cpu| {
        reuse_after(it, cpu, |machine, _| {
            broadcast(machine);
            machine.complete_broadcasts();
        });
    };
    assert_eq!(violation(Profile::ARM64_4193714, waited), REUSED);
    let interrupted: Body = |it, cpu| {
        reuse_after(it, cpu, |machine, it| {
            broadcast(machine);
            machine.complete_broadcasts();
            machine.send_interrupt(0);
            while it.y.load(Relaxed) == 0 {
                machine.spin_hint();
            }
        });
    };
    assert_eq!(violation(Profile::ARM64_4193714, interrupted), None);
}

/// Root and tag change together, or one after the other.
#[test]
fn root_and_tag_mix_only_if_written_together() {
    fn switch(it: &Shared, cpu: usize, steps: fn(&HostileMachine, usize, usize)) {
        if cpu == 0 {
            load(it, 1);
            let other = with_machine(PageTables::new);
            with_machine(|machine| {
                steps(machine, it.tables.root(), other.root());
                machine.stay_in_user_mode();
            });
        }
    }
    let together: Body = |it, cpu| {
        switch(it, cpu, |machine, _, other| {
            machine.load_root(Some(other), 2, OnLoad::Keep);
        });
    };
    // The new root is cached under the old tag.
    let and_back: Body = |it, cpu| {
        switch(it, cpu, |machine, own, other| {
            machine.load_root(Some(other), 2, OnLoad::Keep);
            machine.load_root(None, 2, OnLoad::Keep);
            machine.load_root(None, 1, OnLoad::Keep);
            machine.load_root(Some(own), 1, OnLoad::Keep);
        });
    };
    let apart: Body = |it, cpu| {
        switch(it, cpu, |machine, _, other| {
            machine.load_root(None, 1, OnLoad::Keep);
            machine.load_root(None, 2, OnLoad::Keep);
            machine.load_root(Some(other), 2, OnLoad::Keep);
        });
    };
    let foreign = Some(Violation::UsesForeign { cpu: 0, page: 0 });
    for body in [together, and_back] {
        assert_eq!(violation(Profile::ARM64_1003, body), foreign);
        assert_eq!(violation(Profile::ARM64, body), None);
    }
    assert_eq!(violation(Profile::ARM64_1003, apart), None);
}

/// An invalidation of a page of a guest leaves what was combined from it.
#[test]
fn combined_entry_needs_invalidation_of_its_own() {
    let pages: Body = |it, cpu| {
        reuse_after(it, cpu, |machine, _| {
            broadcast(machine);
            machine.complete_broadcasts();
        });
    };
    let both: Body = |it, cpu| {
        reuse_after(it, cpu, |machine, _| {
            broadcast(machine);
            machine.complete_broadcasts();
            machine.broadcast_combined(1);
            machine.complete_broadcasts();
        });
    };
    let at_once: Body = |it, cpu| {
        reuse_after(it, cpu, |machine, _| {
            broadcast(machine);
            machine.broadcast_combined(1);
            machine.complete_broadcasts();
        });
    };
    let whole: Body = |it, cpu| {
        reuse_after(it, cpu, |machine, _| {
            machine.issue_tag(Reach::Everybody, 1);
            machine.complete_broadcasts();
        });
    };
    for body in [pages, at_once] {
        assert_eq!(violation(Profile::ARM64_STAGE2, body), REUSED);
    }
    for body in [both, whole] {
        assert_eq!(violation(Profile::ARM64_STAGE2, body), None);
    }
    assert_eq!(violation(Profile::ARM64, pages), None);
}

/// An invalidation of one virtual CPU's name leaves what is cached under another one's, and what is
/// cached of stage 2.
#[test]
fn combined_entry_has_name_of_virtual_cpu() {
    fn reuse(it: &Shared, cpu: usize, invalidate: impl Fn(&HostileMachine)) {
        if cpu != 0 {
            return;
        }
        load(it, 1);
        with_machine(|machine| {
            for name in [1, 2] {
                machine.set_name(name);
                machine.stay_in_user_mode();
            }
        });
        let frame = it.tables.swap(0, Entry::EMPTY).target();
        with_machine(|machine| {
            invalidate(machine);
            machine.reuse_frame(frame);
            machine.set_name(1);
            machine.stay_in_user_mode();
        });
    }
    let stage_2: Body = |it, cpu| {
        reuse(it, cpu, |machine| machine.invalidate_pages(|_| true, WalkCaches::Invalidate));
    };
    let with_other_name: Body = |it, cpu| {
        reuse(it, cpu, |machine| {
            machine.invalidate_pages(|_| true, WalkCaches::Invalidate);
            machine.invalidate_name(2);
        });
    };
    let with_own_name: Body = |it, cpu| {
        reuse(it, cpu, |machine| {
            machine.invalidate_pages(|_| true, WalkCaches::Invalidate);
            machine.invalidate_name(1);
        });
    };
    let names: Body = |it, cpu| {
        reuse(it, cpu, |machine| [1, 2].into_iter().for_each(|name| machine.invalidate_name(name)));
    };
    let guest: Body = |it, cpu| reuse(it, cpu, |machine| machine.invalidate_tag(Some(1)));
    for body in [stage_2, with_other_name, names] {
        assert_eq!(violation(Profile::X86_EPT, body), REUSED);
    }
    for body in [with_own_name, guest] {
        assert_eq!(violation(Profile::X86_EPT, body), None);
    }
}

/// A table may be freed while its guest is loaded and does not run; not if it runs afterwards.
#[test]
fn guest_that_does_not_run_is_not_walked() {
    fn free(it: &Shared, cpu: usize, runs: impl Fn(&HostileMachine)) {
        if cpu == 0 {
            load(it, 1);
            let table = it.tables.unlink_table(0).expect("it is linked");
            with_machine(|machine| {
                machine.free_table(table);
                runs(machine);
            });
        }
    }
    let stays_out: Body = |it, cpu| free(it, cpu, |_| {});
    let runs: Body = |it, cpu| {
        if cpu == 0 {
            load(it, 1);
            with_machine(HostileMachine::stay_in_user_mode);
        }
        free(it, cpu, HostileMachine::stay_in_user_mode);
    };
    for profile in [Profile::X86_EPT, Profile::X86_NPT] {
        assert_eq!(violation(profile, stays_out), None);
        assert_eq!(violation(profile, runs), Some(Violation::WalksFreed { cpu: 0 }));
    }
    assert_eq!(violation(Profile::X86, stays_out), Some(Violation::WalksFreed { cpu: 0 }));
}

/// Each address of a strided broadcast removes the one page that translates it.
#[test]
fn stride_skips_small_pages_between_addresses() {
    fn reuse_second_page(it: &Shared, cpu: usize, count: usize, stride: usize) {
        if cpu == 0 {
            load(it, 1);
            return with_machine(HostileMachine::stay_in_user_mode);
        }
        it.tables.swap(1, Entry::EMPTY);
        publish();
        with_machine(|machine| {
            machine.broadcast_strided(0, count, stride);
            machine.complete_broadcasts();
            machine.reuse_frame(1);
        });
    }
    let reused = Some(Violation::UsesReused { cpu: 0, page: 1 });
    let cases: [(Body, Option<Violation>); 4] = [
        (|it, cpu| reuse_second_page(it, cpu, 2, 2), reused),
        (|it, cpu| reuse_second_page(it, cpu, 1, 1), reused),
        (|it, cpu| reuse_second_page(it, cpu, 2, 1), None),
        (|it, cpu| reuse_second_page(it, cpu, 3, 1), None),
    ];
    for (body, expected) in cases {
        assert_eq!(violation(Profile::X86, body), expected);
    }
}

/// CPU 1 removes the kernel's table, and CPU 0 handles that by `invalidate`.
fn free_kernel_table_after(it: &Shared, cpu: usize, invalidate: fn(&HostileMachine)) {
    if cpu == 0 {
        with_machine(|machine| machine.set_online(true));
        while it.x.load(Relaxed) == 0 {
            with_machine(HostileMachine::spin_hint);
        }
        with_machine(invalidate);
        return it.y.store(1, Release);
    }
    it.kernel.unlink();
    publish();
    it.x.store(1, Release);
    while it.y.load(Relaxed) == 0 {
        with_machine(HostileMachine::spin_hint);
    }
    with_machine(HostileMachine::free_kernel_table);
}

#[test]
fn kernel_page_invalidation_keeps_table_pointer_on_arm() {
    let pages: Body = |it, cpu| {
        free_kernel_table_after(it, cpu, |machine| {
            machine.invalidate_kernel_pages(|_| true, WalkCaches::Keep);
        });
    };
    let tables: Body = |it, cpu| {
        free_kernel_table_after(it, cpu, |machine| {
            machine.invalidate_kernel_pages(|_| true, WalkCaches::Invalidate);
        });
    };
    let all: Body = |it, cpu| {
        free_kernel_table_after(it, cpu, |machine| {
            machine.invalidate_tag(None);
        });
    };
    let walks = Some(Violation::WalksFreed { cpu: 0 });
    assert_eq!(violation(Profile::ARM64, pages), walks);
    assert_eq!(violation(Profile::X86, pages), None);
    for body in [tables, all] {
        assert_eq!(violation(Profile::ARM64, body), None);
    }
    // Fences do not replace the invalidation.
    let fenced: Body = |it, cpu| free_kernel_table_after(it, cpu, |_| fence());
    assert_eq!(violation(Profile::X86, fenced), walks);
}

/// Only broadcasts of tables, and commands, reach the device's pointer to the kernel's table.
#[test]
fn device_keeps_pointer_to_kernel_table() {
    fn free_after(it: &Shared, cpu: usize, invalidate: fn(&HostileMachine)) {
        if cpu == 0 {
            with_machine(|machine| machine.attach_device(it.tables.root(), 1));
            it.kernel.unlink();
            publish();
            with_machine(invalidate);
            with_machine(HostileMachine::free_kernel_table);
        }
    }
    fn broadcast_with(machine: &HostileMachine, upper: WalkCaches) {
        machine.broadcast_kernel(|_| true, upper);
        machine.complete_broadcasts();
    }
    let local: Body = |it, cpu| free_after(it, cpu, |machine| machine.invalidate_tag(None));
    let pages: Body = |it, cpu| free_after(it, cpu, |it| broadcast_with(it, WalkCaches::Keep));
    let tables: Body =
        |it, cpu| free_after(it, cpu, |it| broadcast_with(it, WalkCaches::Invalidate));
    let command: Body = |it, cpu| free_after(it, cpu, HostileMachine::invalidate_kernel_on_device);
    let detached: Body = |it, cpu| free_after(it, cpu, HostileMachine::detach_device);
    for body in [local, pages] {
        assert_eq!(violation(Profile::ARM64, body), Some(Violation::DeviceWalksFreed));
    }
    for body in [tables, command, detached] {
        assert_eq!(violation(Profile::ARM64, body), None);
    }
}

/// A command to the IOMMU leaves the device's own TLB, and the other order fills that TLB again.
#[test]
fn tlb_of_device_is_invalidated_last() {
    fn reuse_after(it: &Shared, cpu: usize, invalidate: fn(&HostileMachine)) {
        if cpu == 0 {
            with_machine(HostileMachine::give_device_tlb);
            with_machine(|machine| machine.attach_device(it.tables.root(), 1));
            it.tables.swap(0, Entry::EMPTY);
            fence();
            with_machine(invalidate);
            with_machine(|machine| machine.reuse_frame(0));
        }
    }
    fn command(machine: &HostileMachine) {
        let ticket = machine.issue_to_device(0, |page| page == 0, WalkCaches::Keep);
        machine.complete_on_device(ticket);
    }
    let iommu: Body = |it, cpu| reuse_after(it, cpu, command);
    let device_first: Body = |it, cpu| {
        reuse_after(it, cpu, |machine| {
            machine.invalidate_device_tlb();
            command(machine);
        });
    };
    let both: Body = |it, cpu| {
        reuse_after(it, cpu, |machine| {
            command(machine);
            machine.invalidate_device_tlb();
        });
    };
    for body in [iommu, device_first] {
        let reused = Some(Violation::UsesReused { cpu: 2, page: 0 });
        assert_eq!(violation(Profile::X86, body), reused);
    }
    assert_eq!(violation(Profile::X86, both), None);
}

/// A CPU may hold that a page is not mapped until it invalidates the page.
#[test]
fn absent_page_is_cached_on_riscv() {
    fn touch_after(it: &Shared, cpu: usize, invalidate: fn(&HostileMachine)) {
        if cpu == 0 {
            let entry = it.kernel.swap(0, Entry::EMPTY);
            it.kernel.swap(0, entry);
            fence();
            with_machine(invalidate);
            with_machine(|machine| machine.touch_kernel_page(0));
        }
    }
    let kept: Body = |it, cpu| touch_after(it, cpu, |_| ());
    let other: Body = |it, cpu| {
        touch_after(it, cpu, |machine| {
            machine.invalidate_kernel_pages(|page| page == 1, WalkCaches::Keep);
        });
    };
    let invalidated: Body = |it, cpu| {
        touch_after(it, cpu, |machine| {
            machine.invalidate_kernel_pages(|page| page == 0, WalkCaches::Keep);
        });
    };
    for body in [kept, other] {
        let faults = Some(Violation::FaultsOnMapped { cpu: 0, page: 0 });
        assert_eq!(violation(Profile::RISCV, body), faults);
        assert_eq!(violation(Profile::X86, body), None);
    }
    assert_eq!(violation(Profile::RISCV, invalidated), None);
}

/// A page or a tag that is named is not invalidated; everything is.
#[test]
fn named_invalidation_does_nothing_with_cip_1200() {
    fn use_after(it: &Shared, cpu: usize, invalidate: fn(&HostileMachine)) {
        if cpu == 0 {
            load(it, 1);
            it.tables.swap(0, Entry::EMPTY);
            fence();
            with_machine(|machine| {
                invalidate(machine);
                machine.reuse_frame(0);
                machine.stay_in_user_mode();
            });
        }
    }
    let page: Body = |it, cpu| {
        use_after(it, cpu, |machine| {
            machine.invalidate_pages(|_| true, WalkCaches::Invalidate);
        });
    };
    let tag: Body = |it, cpu| use_after(it, cpu, |machine| machine.invalidate_tag(Some(1)));
    let root: Body = |it, cpu| {
        use_after(it, cpu, |machine| {
            machine.load_root(Some(0), 1, OnLoad::Flush);
        });
    };
    let all: Body = |it, cpu| use_after(it, cpu, |machine| machine.invalidate_tag(None));
    for body in [page, tag, root] {
        assert_eq!(violation(Profile::RISCV_CIP_1200, body), REUSED);
        assert_eq!(violation(Profile::RISCV, body), None);
    }
    assert_eq!(violation(Profile::RISCV_CIP_1200, all), None);
}

/// A mark that comes after the entry was removed makes it look used.
#[test]
fn mark_after_removal_stays_on_knights_landing() {
    let body: Body = |it, cpu| {
        if cpu == 0 {
            it.tables.mark(0);
        } else {
            it.tables.swap(0, Entry::EMPTY);
            fence();
            it.observe(1, it.tables.entry(0).0);
        }
    };
    let values = |profile| -> BTreeSet<u64> {
        observed(profile, body).into_iter().map(|[_, value]| value).collect()
    };
    assert_eq!(values(Profile::X86_KNL), BTreeSet::from([0, Entry::STRAY_MARK.0]));
    assert_eq!(values(Profile::X86), BTreeSet::from([0]));
    assert!(!Entry::STRAY_MARK.is_present());
}
