//! The loops over all CPUs, which mask interrupts while they run.

#![expect(unsafe_code, reason = "retires a space, disconnects a CPU, and switches to spaces")]

use core::mem;
use core::ptr::NonNull;

use shootdown::{CpuId, Extent};
use shootdown_hw::Processor;

use crate::limits::Limits;
use crate::paths::{PAGE, Path, Stage};
use crate::system::System;

impl<P: Processor, const W: usize> Path<P, W> {
    /// The loops over all CPUs of a system of `64 * W` CPUs, in the order of reports.
    pub const LOOPS: [Self; 9] = [
        // Each CPU uses the space. The caller does not wait.
        Self {
            name: "flush_of_all",
            prepare: |system| {
                system.on_other_cpus(|system| system.switch(0));
                Stage::new(system, 0)
            },
            run: Stage::send_flush,
            limits: Limits::new([3230, 28_852, 221_183], None),
        },
        // All CPUs have answered.
        Self {
            name: "wait_for_all",
            prepare: |system| {
                let stage = Stage::new(system, 0);
                stage.sent = Some(stage.pin.flush_kernel(PAGE));
                system.run_other_handlers();
                stage
            },
            run: |stage| stage.sent.as_mut().expect("`prepare` has flushed").wait(),
            limits: Limits::new([1636, 24_705, 172_566], None),
        },
        // Each other CPU is lazy on the space.
        Self {
            name: "flush_of_none",
            prepare: lazy_everywhere,
            run: Stage::flush,
            limits: Limits::new([1910, 16_373, 130_005], None),
        },
        // Each other CPU is lazy on the space, and has not seen its tables unhooked.
        Self {
            name: "flush_walkers",
            prepare: |system| {
                let stage = lazy_everywhere(system);
                stage.flush();
                stage
            },
            run: |stage| mem::forget(stage.pin.flush_walkers(stage.space)),
            limits: Limits::new([3284, 29_194, 228_763], None),
        },
        // No other CPU is in user mode. The harness isolates CPUs: the flush looks at each.
        Self {
            name: "flush_kernel",
            prepare: |system| Stage::new(system, 0),
            run: |stage| mem::forget(stage.pin.flush_kernel(PAGE)),
            limits: Limits::new([3625, 32_402, 253_372], None),
        },
        // Each other CPU has left the space.
        Self {
            name: "trim_cpumask",
            prepare: |system| {
                system.on_other_cpus(|system| {
                    system.switch(0);
                    system.switch(1);
                });
                Stage::new(system, 0)
            },
            run: |stage| assert!(stage.pin.trim_cpumask(stage.space), "no other CPU trims"),
            limits: Limits::new([1341, 11_154, 88_022], None),
        },
        // Each CPU is lazy on the space.
        Self {
            name: "retire",
            prepare: lazy_everywhere,
            run: Stage::retire,
            limits: Limits::new([1430, 12_385, 98_087], None),
        },
        // Each CPU has a dead space loaded.
        Self {
            name: "reap",
            prepare: |system| {
                let stage = lazy_everywhere(system);
                stage.retire();
                stage
            },
            run: |stage| mem::forget(stage.pin.reap()),
            limits: Limits::new([2697, 32_753, 261_391], None),
        },
        // Each bell is rung.
        Self {
            name: "disconnect",
            prepare: |system| {
                let stage = Stage::new(system, 0);
                mem::forget(stage.pin.flush_kernel(Extent::whole()));
                stage
            },
            // SAFETY: CPU 1 executes nothing any more.
            run: |stage| unsafe { stage.pin.disconnect(CpuId(1)) },
            limits: Limits::new([1424, 12_406, 98_374], None),
        },
    ];

    /// The loops of a system whose CPUs share their tags: see [`SharedTags`](crate::SharedTags).
    pub const LOOPS_OF_TAGS: [Self; 1] = [
        // The tags have run out. Each CPU uses the first space.
        Self {
            name: "switch_at_rollover",
            prepare: |system| {
                system.on_other_cpus(|system| system.switch(0));
                (2..6).for_each(|space| system.switch(space));
                Stage::new(system, 6)
            },
            run: |stage| stage.switch(),
            limits: Limits::new([6317, 30_505, 218_745], None),
        },
    ];
}

/// A stage on which each CPU but CPU 0 is lazy on space 0.
fn lazy_everywhere<P: Processor, const W: usize>(
    system: &System<P, W>,
) -> &'static mut Stage<P, W> {
    system.on_other_cpus(System::enter_lazy);
    Stage::new(system, 0)
}

impl<P: Processor, const W: usize> Stage<P, W> {
    /// Retires space 0. CPU 0 enters lazy.
    fn retire(&mut self) {
        // SAFETY: no CPU uses the space any more, and it stays at its address for ever.
        mem::forget(unsafe { self.pin.retire(NonNull::from(self.space)) });
    }
}
