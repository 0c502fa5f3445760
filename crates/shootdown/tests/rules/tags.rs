//! Programs about global tags, renamed tags, and broadcasts.
//!
//! The software machine delivers a broadcast only when its issuer completes it, and orders each use
//! of a TLB with completions, as hardware does. So loom explores the interleavings of a broadcast
//! with all other operations. It assumes that hardware orders its own walks and broadcasts as the
//! contract demands.

use std::sync::Arc;

use shootdown::soft::{Config, Touch};
use shootdown::{Entries, Machine as _, Root, Rule, Space, Tagging};

use crate::ends::retire;
use crate::system::{Cpu, Machine, System, finish, page_at, switch};
use crate::{Program, find_failure};

/// Number of tags: enough for two CPUs, and few enough to run out soon.
const FEW: usize = 4;

/// The configuration of a machine with [`FEW`] tags and more spaces than tags.
fn few_tags(config: Config) -> Config {
    Config { tables: 8, ..config.with_broadcasts(FEW) }
}

/// As [`few_tags`], with broadcasts that reach one or two CPUs, or every CPU.
fn in_domains(config: Config) -> Config {
    Config { tables: 8, ..config.with_domains(FEW) }
}

/// `N` more spaces, which do not move.
type OtherSpaces<const W: usize, const N: usize = 3> = Arc<[Space<Machine<W>>; N]>;

fn other_spaces<const W: usize, const N: usize>(system: &System<W>) -> OtherSpaces<W, N> {
    let spaces = std::array::from_fn(|root| system.engine.space(Root(root as u64 + 2)));
    spaces.iter().for_each(|space| system.machine().map(space, 0));
    Arc::new(spaces)
}

/// Switches to a space, and uses a page.
fn switch_and_touch<const W: usize>(cpu: &Cpu<'_, W>, space: &Space<Machine<W>>) {
    switch(cpu, space);
    assert_eq!(cpu.touch(0), Touch::Ok);
}

/// Runs all `spaces` on CPU 0, so that tags run out. The spaces must not be dropped before the
/// machine.
fn roll_over<const W: usize>(cpu: &Cpu<'_, W>, spaces: &[Space<Machine<W>>]) {
    spaces.iter().for_each(|space| switch(cpu, space));
}

/// A system on which CPU 1 has used `a` and is on `b`. Then CPU 0 has run out of tags, and the ASID
/// of `a` belongs to another space.
fn asid_reused<const W: usize>(config: Config) -> (Arc<System<W>>, OtherSpaces<W>) {
    let system = System::<W>::active(few_tags(config));
    switch(&system.cpu(1), &system.b);
    let spaces = other_spaces(&system);
    roll_over(&system.cpu(0), &spaces[..]);
    (system, spaces)
}

/// CPU 1 comes back to a space that gets another ASID, while CPU 0 flushes it by broadcast.
pub(crate) fn broadcast_while_asid_changes<const W: usize>(config: Config) {
    let (system, spaces) = asid_reused::<W>(config);
    system.race_flush(|system, cpu| {
        switch(cpu, &system.a);
        let _ = cpu.touch(0);
    });
    drop(spaces);
}

/// A device is attached to a space that CPU 1 uses, while CPU 0 flushes it by broadcast.
pub(crate) fn attach_while_broadcasting<const W: usize>(config: Config) {
    let system = System::<W>::active(few_tags(config));
    let attach_and_use = |system: &System<W>, _: &Cpu<'_, W>| {
        system.engine.attach_device(&system.a).unwrap();
        let _ = system.machine().touch_by_device(&system.a, 0);
    };
    let mut pending = system.race(attach_and_use, |cpu| system.unmap(cpu, 0));
    let _ = system.cpu(0).pin();
    if !pending.poll() {
        system.cpu(1).interrupt_point();
    }
    finish(pending);
    system.machine().free(&system.a, 0);
    assert_ne!(system.machine().touch_by_device(&system.a, 0), Touch::Stale);
}

/// As [`broadcast_while_asid_changes`], and CPU 2 also switches to the space. CPU 2 has allocated
/// an ASID since the rollover, so it may use this one without the allocator's lock.
pub(crate) fn broadcast_while_another_allocates<const W: usize>(config: Config) {
    let system = System::<W>::active(Config { cpus: 3, ..few_tags(config) });
    switch(&system.cpu(1), &system.b);
    let spaces = other_spaces::<W, 3>(&system);
    roll_over(&system.cpu(0), &spaces[..]);
    // CPUs 1 and 2 have nothing else to do in the new epoch.
    system.cpu(1).pin().leave_space();
    [1, 2].into_iter().for_each(|cpu| switch(&system.cpu(cpu), &system.b));
    let others = [1, 2].map(|cpu| {
        let system = Arc::clone(&system);
        loom::thread::spawn(move || {
            let cpu = system.cpu(cpu);
            switch(&cpu, &system.a);
            let _ = cpu.touch(0);
        })
    });
    let pending = system.unmap(&system.cpu(0), 0);
    others.into_iter().for_each(|other| other.join().unwrap());
    (1..3).for_each(|cpu| system.cpu(cpu).interrupt_point());
    let _ = system.cpu(0).pin();
    finish(pending);
    system.machine().free(&system.a, 0);
    (1..3).for_each(|cpu| assert_ne!(system.cpu(cpu).touch(0), Touch::Stale));
    drop(spaces);
}

/// CPU 1 uses a space when tags run out. Then CPU 0 runs the same space, and flushes it.
pub(crate) fn rollover_under_active<const W: usize>(config: Config) {
    let system = System::<W>::active(few_tags(config));
    let spaces = other_spaces::<W, 3>(&system);
    let cpu = system.cpu(0);
    switch(&cpu, &system.b);
    roll_over(&cpu, &spaces[..]);
    assert_eq!(cpu.touch(0), Touch::Ok);
    switch(&cpu, &system.a);
    assert_eq!(cpu.touch(0), Touch::Ok);
    finish(system.unmap(&cpu, 0));
    system.machine().free(&system.a, 0);
    assert_ne!(system.cpu(1).touch(0), Touch::Stale);
}

/// CPU 1 switches to a space whose ASID belonged to an earlier space of CPU 1.
pub(crate) fn reuse_an_asid<const W: usize>(config: Config) {
    let (system, spaces) = asid_reused::<W>(config);
    let cpu = system.cpu(1);
    switch(&cpu, &spaces[2]);
    assert_eq!(cpu.touch(0), Touch::Ok);
}

/// CPU 0 ends a space that CPU 1 has run as well, and runs two other spaces. CPU 1 then runs the
/// second one of these.
pub(crate) fn end_space_of_two_cpus<const W: usize>(config: Config) {
    let system = System::<W>::active(few_tags(config));
    switch(&system.cpu(1), &system.b);
    let spaces = other_spaces::<W, 3>(&system);
    let cpu = system.cpu(0);
    [&spaces[0], &system.a, &spaces[0]].into_iter().for_each(|space| switch(&cpu, space));
    retire(&system, &cpu);
    switch_and_touch(&cpu, &spaces[1]);
    switch_and_touch(&system.cpu(1), &spaces[1]);
}

/// Tags run out while CPU 1 goes back to a space. Then CPU 0 also runs the space, and flushes it.
pub(crate) fn rollover_while_choosing<const W: usize>(config: Config) {
    let system = System::<W>::active(few_tags(config));
    switch(&system.cpu(1), &system.b);
    let spaces = other_spaces::<W, 3>(&system);
    system.race(
        |system, cpu| {
            switch(cpu, &system.a);
            assert_eq!(cpu.touch(0), Touch::Ok);
        },
        |cpu| roll_over(cpu, &spaces[..]),
    );
    let cpu = system.cpu(0);
    switch(&cpu, &system.a);
    assert_eq!(cpu.touch(0), Touch::Ok);
    finish(system.unmap(&cpu, 0));
    system.machine().free(&system.a, 0);
    assert_ne!(system.cpu(1).touch(0), Touch::Stale);
    assert_ne!(cpu.touch(0), Touch::Stale);
}

/// A system with three CPUs that have taken the ASIDs 1 to 4: CPU 1 is on `a` with ASID 1, CPU 2 on
/// the first of the other spaces with 2, and CPU 0 on `b` with 4. No CPU has 3.
fn three_cpus<const W: usize>(config: Config) -> (Arc<System<W>>, OtherSpaces<W, 4>) {
    let system = System::<W>::new(Config { cpus: 3, ..few_tags(config) });
    let spaces = other_spaces::<W, 4>(&system);
    switch(&system.cpu(1), &system.a);
    switch(&system.cpu(2), &spaces[0]);
    [&spaces[1], &system.b].into_iter().for_each(|space| switch(&system.cpu(0), space));
    (system, spaces)
}

/// Tags run out on CPU 0. Meanwhile CPU 2 goes to the space of CPU 1, and then CPU 1 to the space
/// that CPU 0 leaves. No other space may get the ASID that CPU 1 has left.
pub(crate) fn leave_reserved_asid<const W: usize>(config: Config) {
    let (system, spaces) = three_cpus::<W>(config);
    let leave = |system: &System<W>, cpu: &Cpu<'_, W>| {
        switch(&system.cpu(2), &system.a);
        switch(cpu, &system.b);
    };
    system.race(leave, |cpu| switch_and_touch(cpu, &spaces[2]));
    switch_and_touch(&system.cpu(0), &system.a);
}

/// Tags run out on CPU 0, which gets the ASID 1. Then CPU 1 may not get the ASID 2 that CPU 2 has
/// loaded.
pub(crate) fn allocate_beside_reserved<const W: usize>(config: Config) {
    let system = System::<W>::new(Config { cpus: 3, ..few_tags(config) });
    let spaces = other_spaces::<W, 4>(&system);
    switch(&system.cpu(0), &spaces[0]);
    switch(&system.cpu(2), &spaces[1]);
    switch(&system.cpu(1), &system.b);
    switch(&system.cpu(0), &system.a);
    let new = Arc::clone(&spaces);
    system.race(
        move |_, cpu| switch_and_touch(cpu, &new[2]),
        |cpu| switch_and_touch(cpu, &spaces[3]),
    );
    [0, 1].into_iter().for_each(|cpu| switch_and_touch(&system.cpu(cpu), &spaces[1]));
}

/// Tags run out on CPU 0 while CPU 2 takes an ASID. Meanwhile CPU 1 comes online, and runs a space
/// that has an ASID. No other space may get this ASID.
pub(crate) fn come_online_while_tags_run_out<const W: usize>(config: Config) {
    let config = Config { cpus: 3, tags: 6, ..few_tags(config) };
    let system = System::<W>::with_cpus([0, 2], config);
    let spaces = other_spaces::<W, 6>(&system);
    // The second ASID, which CPU 2 is going to take in the new epoch, is that of `a`.
    let zero = system.cpu(0);
    roll_over(&zero, &spaces[..1]);
    switch(&zero, &system.a);
    roll_over(&zero, &spaces[1..5]);
    let run = |cpu, run: fn(&System<W>, &Cpu<'_, W>)| {
        let system = Arc::clone(&system);
        loom::thread::spawn(move || run(&system, &system.cpu(cpu)))
    };
    let others = [
        run(2, |system, cpu| switch_and_touch(cpu, &system.b)),
        run(1, |system, cpu| {
            cpu.pin().online();
            switch_and_touch(cpu, &system.a);
        }),
    ];
    switch(&zero, &spaces[5]);
    others.into_iter().for_each(|other| other.join().unwrap());
    switch_and_touch(&zero, &system.a);
    let pending = system.unmap(&zero, 0);
    drop(zero);
    system.conclude(pending);
    drop(spaces);
}

/// Two CPUs unpin ASIDs at the same time. Then three may be pinned, so that each CPU has an ASID.
pub(crate) fn two_unpin_asids<const W: usize>(config: Config) {
    let system = System::<W>::new(Config { tags: 6, ..few_tags(config) });
    let spaces = other_spaces::<W, 3>(&system);
    let pin = |space| system.cpu(0).pin().pin_tag(space).is_some();
    assert!(pin(&system.a) && pin(&system.b));
    system.race(
        // SAFETY: there is no device.
        |system, cpu| unsafe { cpu.pin().unpin_tag(&system.b) },
        // SAFETY: as above.
        |cpu| unsafe { cpu.pin().unpin_tag(&system.a) },
    );
    assert!(spaces.iter().all(pin));
}

/// A system on which CPU 0 has taken all ASIDs, the first one for `a`, and the next space to run.
fn all_taken<const W: usize>(config: Config) -> (Arc<System<W>>, OtherSpaces<W, 6>) {
    let system = System::<W>::new(Config { tags: 6, ..few_tags(config) });
    let spaces = other_spaces::<W, 6>(&system);
    switch(&system.cpu(0), &system.a);
    roll_over(&system.cpu(0), &spaces[..5]);
    (system, spaces)
}

/// CPU 1 pins the space while tags run out on CPU 0.
pub(crate) fn pin_while_tags_run_out<const W: usize>(config: Config) {
    let (system, spaces) = all_taken::<W>(config);
    let pin = |system: &System<W>, cpu: &Cpu<'_, W>| {
        assert!(cpu.pin().pin_tag(&system.a).is_some());
    };
    system.race(pin, |cpu| switch_and_touch(cpu, &spaces[5]));
    switch_and_touch(&system.cpu(0), &system.a);
}

/// CPU 1 runs the space that is pinned, and unpins it, while tags run out on CPU 0.
pub(crate) fn unpin_while_tags_run_out<const W: usize>(config: Config) {
    let (system, spaces) = all_taken::<W>(config);
    assert!(system.cpu(0).pin().pin_tag(&system.a).is_some());
    let run_and_unpin = |system: &System<W>, cpu: &Cpu<'_, W>| {
        switch(cpu, &system.a);
        // SAFETY: there is no device.
        unsafe { cpu.pin().unpin_tag(&system.a) };
    };
    system.race(run_and_unpin, |cpu| switch_and_touch(cpu, &spaces[5]));
    switch_and_touch(&system.cpu(0), &system.a);
}

/// Two CPUs switch to a space that has no ASID yet; then one flushes it by broadcast.
pub(crate) fn two_allocate_one_asid<const W: usize>(config: Config) {
    let system = System::<W>::new(few_tags(config));
    let run = |system: &System<W>, cpu: &Cpu<'_, W>| switch_and_touch(cpu, &system.a);
    system.race(run, |cpu| switch(cpu, &system.a));
    let cpu = system.cpu(0);
    finish(system.unmap(&cpu, 0));
    system.machine().free(&system.a, 0);
    assert_ne!(system.cpu(1).touch(0), Touch::Stale);
}

/// CPU 1 counts its tags up until the count wraps around.
pub(crate) fn wrap_around<const W: usize>(config: Config) {
    let config = Config { tagging: Tagging::Renamed, tags: 2, tables: 8, ..config };
    let system = System::<W>::active(config);
    let spaces = other_spaces::<W, 1>(&system);
    let c = &spaces[0];
    let cpu = system.cpu(1);
    switch(&cpu, &system.b);
    switch(&cpu, c);
    assert_eq!(cpu.touch(0), Touch::Ok);
}

/// CPU 1 uses the space, and CPU 0 flushes by broadcast, and frees the page when the flush is done.
pub(crate) fn broadcast_to_active<const W: usize>(config: Config) {
    let system = System::<W>::active(few_tags(config));
    let zero = system.cpu(0);
    let mut pending = system.unmap(&zero, 0);
    assert_eq!(system.cpu(1).touch(0), Touch::Ok);
    // The poll is on CPU 0, which has issued the broadcast.
    let _ = zero.pin();
    assert!(pending.poll(), "a broadcast needs no answer");
    system.machine().free(&system.a, 0);
    assert_ne!(system.cpu(1).touch(0), Touch::Stale);
    assert_eq!(system.machine().total_stats().interrupts_sent, 0);
}

/// CPU 0 flushes, and its broadcast is refused, while CPU 1 uses the space.
pub(crate) fn refused_broadcast<const W: usize>(config: Config) {
    let system = System::<W>::active(Config { refuses_each: 1, ..few_tags(config) });
    system.race_flush(|_, cpu| assert_ne!(cpu.touch(0), Touch::Stale));
}

/// CPU 0 flushes by a broadcast that completes at issue, and CPU 1, which uses the space, waits for
/// the flush.
pub(crate) fn wait_on_another_cpu_for_firmware<const W: usize>(config: Config) {
    let system = System::<W>::active(Config { completes_at_issue: true, ..few_tags(config) });
    let touch = |_: &System<W>, cpu: &Cpu<'_, W>| assert_ne!(cpu.touch(0), Touch::Stale);
    let pending = system.race(touch, |cpu| system.unmap(cpu, 0));
    let one = system.cpu(1);
    let _ = one.pin();
    finish(pending);
    system.machine().free(&system.a, 0);
    assert_ne!(one.touch(0), Touch::Stale);
}

/// CPU 0 flushes by broadcast, and CPU 1, which uses the space, waits for the flush.
pub(crate) fn wait_on_another_cpu<const W: usize>(config: Config) {
    let system = System::<W>::active(few_tags(config));
    let pending =
        system.race(|_, cpu| assert_eq!(cpu.touch(0), Touch::Ok), |cpu| system.unmap(cpu, 0));
    let one = system.cpu(1);
    let _ = one.pin();
    let mut pending = pending;
    assert!(!pending.poll(), "CPU 0 must complete the broadcast");
    system.cpu(0).interrupt_point();
    finish(pending);
    system.machine().free(&system.a, 0);
    assert_ne!(one.touch(0), Touch::Stale);
}

/// CPU 2 is a device that uses the space under its ASID, without publishing so.
pub(crate) fn flush_under_a_device<const W: usize>(config: Config) {
    let system = System::<W>::new(Config { cpus: 3, tags: 6, ..few_tags(config) });
    let cpu = system.cpu(0);
    switch(&cpu, &system.a);
    let tag = cpu.pin().pin_tag(&system.a).expect("there are enough ASIDs");
    let device = system.cpu(2);
    let _ = device.pin();
    // SAFETY: the space and its table live as long as the machine.
    unsafe { system.machine().load(system.a.root(), tag, Entries::Keep) };
    assert_eq!(device.touch(0), Touch::Ok);
    finish(system.unmap(&cpu, 0));
    system.machine().free(&system.a, 0);
    assert_ne!(device.touch(0), Touch::Stale);
}

/// CPU 1 is on another space during a flush that is not broadcast, and during one that is.
pub(crate) fn miss_a_flush_without_broadcast<const W: usize>(config: Config) {
    let system = System::<W>::active(Config { cpus: 3, ..few_tags(config) });
    let (zero, one, two) = (system.cpu(0), system.cpu(1), system.cpu(2));
    switch(&one, &system.b);
    finish(system.unmap(&zero, 0));
    system.machine().free(&system.a, 0);
    switch(&two, &system.a);
    let pending = system.unmap(&zero, 1);
    let _ = zero.pin();
    finish(pending);
    switch(&one, &system.a);
    assert_ne!(one.touch(0), Touch::Stale);
}

/// CPU 1 comes back to the space after a flush that was broadcast in the domain of CPU 2 alone.
pub(crate) fn come_back_outside_of_domains<const W: usize>(config: Config) {
    let system = System::<W>::active(Config { cpus: 3, ..in_domains(config) });
    let (zero, one, two) = (system.cpu(0), system.cpu(1), system.cpu(2));
    switch(&one, &system.b);
    switch(&two, &system.a);
    let pending = system.unmap(&zero, 0);
    let _ = zero.pin();
    finish(pending);
    system.machine().free(&system.a, 0);
    switch(&one, &system.a);
    assert_ne!(one.touch(0), Touch::Stale);
}

/// CPU 1 switches back to the space while CPU 0 flushes: in the domain of CPU 1 if it finds CPU 1
/// present, and otherwise only on CPU 0.
pub(crate) fn switch_during_broadcast_in_domains<const W: usize>(config: Config) {
    let system = System::<W>::active(in_domains(config));
    switch(&system.cpu(1), &system.b);
    system.race_flush(|system, cpu| switch(cpu, &system.a));
}

/// CPU 1 comes back from lazy while CPU 0 flushes: by broadcast if it finds CPU 1 present, and
/// otherwise only on CPU 0.
pub(crate) fn resume_during_broadcast<const W: usize>(config: Config) {
    let system = System::<W>::active(few_tags(config));
    system.cpu(1).pin().enter_lazy();
    system.race_flush(|system, cpu| switch(cpu, &system.a));
}

/// CPU 1 switches back to the space while CPU 0 flushes. See [`resume_during_broadcast`].
pub(crate) fn switch_during_broadcast<const W: usize>(config: Config) {
    let system = System::<W>::active(few_tags(config));
    switch(&system.cpu(1), &system.b);
    system.race_flush(|system, cpu| switch(cpu, &system.a));
}

/// CPU 1 stops using the space while CPU 0 flushes. See [`resume_during_broadcast`].
pub(crate) fn enter_lazy_during_broadcast<const W: usize>(config: Config) {
    let system = System::<W>::active(few_tags(config));
    let pending = system.race_reuse(|_, cpu| {
        assert_ne!(cpu.touch(0), Touch::Stale);
        cpu.pin().enter_lazy();
    });
    assert!(pending.is_none(), "a broadcast needs no answer");
}

/// CPU 1 switches to a space while CPU 0 unhooks its tables and flushes the walkers.
pub(crate) fn flush_walkers_by_broadcast<const W: usize>(config: Config) {
    let system = System::<W>::active(few_tags(config));
    switch(&system.cpu(1), &system.b);
    let pending = system.race(
        |system, cpu| switch(cpu, &system.a),
        |cpu| {
            system.machine().unhook_tables(&system.a);
            let mut extents = shootdown::ExtentSet::new();
            extents.add(page_at(0).freeing_tables());
            let mut pending = cpu.pin().flush_gathered(&system.a, &extents);
            pending.join(cpu.pin().flush_walkers(&system.a));
            pending
        },
    );
    let mut pending = pending;
    let _ = system.cpu(0).pin();
    if !pending.poll() {
        system.cpu(1).interrupt_point();
    }
    finish(pending);
    system.machine().free_tables(&system.a);
    system.cpu(1).speculate();
    assert_eq!(system.machine().freed_table_walks(), 0);
}

/// CPU 1 pins the space for a device, CPU 2, which then uses the space, while CPU 0 flushes.
pub(crate) fn pin_while_flushing<const W: usize>(config: Config) {
    let system = System::<W>::new(Config { cpus: 3, tags: 6, ..few_tags(config) });
    switch(&system.cpu(0), &system.a);
    let pin_and_use = |system: &System<W>, cpu: &Cpu<'_, W>| {
        let tag = cpu.pin().pin_tag(&system.a).expect("there are enough ASIDs");
        let device = system.cpu(2);
        let _ = device.pin();
        // SAFETY: the space and its page table live as long as the machine.
        unsafe { system.machine().load(system.a.root(), tag, Entries::Keep) };
        let _ = device.touch(0);
    };
    let pending = system.race(pin_and_use, |cpu| system.unmap(cpu, 0));
    let _ = system.cpu(0).pin();
    finish(pending);
    system.machine().free(&system.a, 0);
    let device = system.cpu(2);
    let _ = device.pin();
    assert_ne!(device.touch(0), Touch::Stale);
}

/// CPU 2, a device, uses the pinned space, and CPU 1 unpins it. At the same time, CPU 0 flushes,
/// and then reuses the page.
pub(crate) fn unpin_while_flushing<const W: usize>(config: Config) {
    let system = System::<W>::new(Config { cpus: 3, tags: 6, ..few_tags(config) });
    switch(&system.cpu(0), &system.a);
    let tag = system.cpu(0).pin().pin_tag(&system.a).expect("there are enough ASIDs");
    let use_and_unpin = move |system: &System<W>, cpu: &Cpu<'_, W>| {
        let device = system.cpu(2);
        let _ = device.pin();
        // SAFETY: the space and its page table live as long as the machine.
        unsafe { system.machine().load(system.a.root(), tag, Entries::Keep) };
        let _ = device.touch(0);
        system.machine().load_kernel();
        system.machine().invalidate_all();
        let _ = cpu.pin();
        // SAFETY: the device has dropped the space.
        unsafe { cpu.pin().unpin_tag(&system.a) };
    };
    let _ = system.race_reuse(use_and_unpin);
}

/// CPU 0 flushes by broadcast, and goes offline before the broadcast is complete; CPU 2 waits for
/// it.
pub(crate) fn go_offline_with_broadcast<const W: usize>(config: Config) {
    let system = System::<W>::active(Config { cpus: 3, tags: 6, ..few_tags(config) });
    let zero = system.cpu(0);
    let pending = system.unmap(&zero, 0);
    zero.pin().offline();
    let two = system.cpu(2);
    let _ = two.pin();
    finish(pending);
    system.machine().free(&system.a, 0);
    assert_ne!(system.cpu(1).touch(0), Touch::Stale);
}

/// CPU 1 switches to the space that CPU 0 unpins, and then flushes by broadcast.
pub(crate) fn switch_while_unpinning<const W: usize>(config: Config) {
    let system = System::<W>::active(Config { tags: 6, ..few_tags(config) });
    switch(&system.cpu(1), &system.b);
    system.cpu(0).pin().pin_tag(&system.a).expect("there are enough ASIDs");
    let switch_in = |system: &System<W>, cpu: &Cpu<'_, W>| switch(cpu, &system.a);
    let pending = system.race(switch_in, |cpu| {
        // SAFETY: there is no device.
        unsafe { cpu.pin().unpin_tag(&system.a) };
        system.unmap(cpu, 0)
    });
    system.conclude(pending);
}

#[test]
fn pinning_needs_its_rules() {
    for rule in [Rule::NewAsidFence, Rule::BroadcastForDevices] {
        let config = Config { broken: Some(rule), ..Config::default() };
        let found = find_failure(&[("pin_while_flushing", pin_while_flushing::<1>)], config);
        assert!(found.is_some(), "{rule:?}");
    }
}

/// A flush that is not counted can miss a new ASID, and a device.
#[test]
fn uncounted_flush_needs_its_fence() {
    let programs: [Program; 2] =
        [broadcast_while_asid_changes::<1>, attach_while_broadcasting::<1>];
    for program in programs {
        let config = Config { broken: Some(Rule::UncountedFence), ..Config::default() };
        let (_, cause) = find_failure(&[("", program)], config).expect("the fence is needed");
        assert!(cause.starts_with("assertion") || cause.starts_with("Causality"), "{cause}");
    }
}
