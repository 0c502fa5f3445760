//! The paths that are counted.

#![expect(unsafe_code, reason = "switches to spaces")]

use alloc::boxed::Box;
use core::mem;

use shootdown::{Batch, Extent, ExtentSet, Pending, PinnedCpu, Space, StaleWrites, Unflushed};
use shootdown_hw::Processor;

use crate::harness::Counted;
use crate::limits::{Limits, STACK};
use crate::system::System;

/// A path: one operation on a state that was created for it.
#[derive(Debug)]
pub struct Path<P: Processor + 'static, const W: usize, const R: bool = false> {
    /// The name in reports, with underscores for spaces.
    pub name: &'static str,
    /// Brings a new system into the state in which the path begins.
    pub prepare: fn(&System<P, W, R>) -> &'static mut Stage<P, W, R>,
    /// Runs the path once.
    pub run: fn(&mut Stage<P, W, R>),
    /// The budget of instructions.
    pub limits: Limits,
}

impl<P: Processor, const W: usize> Path<P, W> {
    /// All paths, in the order of reports.
    pub const ALL: [Self; 13] = [
        // The CPU idles and keeps its space loaded.
        Self {
            name: "enter_lazy",
            prepare: |system| Stage::new(system, 0),
            run: |stage| stage.pin.enter_lazy(),
            limits: Limits::new([10, 10, 10], Some([7, 7, 7])),
        },
        // The CPU returns to the same space.
        Self {
            name: "leave_lazy",
            prepare: |system| {
                let stage = Stage::new(system, 0);
                stage.pin.enter_lazy();
                stage
            },
            run: |stage| stage.switch(),
            limits: Limits::new([18, 18, 18], Some([16, 16, 16])),
        },
        // Flushes of the kernel leave the CPU alone from here on.
        Self {
            name: "enter_user",
            prepare: |system| Stage::new(system, 0),
            run: |stage| stage.pin.enter_user(),
            limits: Limits::new([3, 3, 3], None),
        },
        // The kernel's pages were not flushed in that time.
        Self {
            name: "enter_kernel",
            prepare: |system| {
                let stage = Stage::new(system, 0);
                stage.pin.enter_user();
                stage
            },
            run: |stage| stage.pin.enter_kernel(),
            limits: Limits::new([8, 8, 8], Some([12, 12, 12])),
        },
        // The space has a tag on the CPU.
        Self {
            name: "switch_current_tag",
            prepare: |system| Stage::new(system, 1),
            run: |stage| stage.switch(),
            limits: Limits::new([37, 37, 37], Some([40, 42, 44])),
        },
        // The seventh space has taken the tag that this one, the last to be loaded, had on the CPU.
        Self {
            name: "switch_new_tag",
            prepare: |system| {
                for space in [0, 1, 2, 3, 4, 6, 5] {
                    system.switch(space);
                }
                Stage::new(system, 6)
            },
            run: |stage| stage.switch(),
            limits: Limits::new([125, 131, 133], Some([90, 90, 90])),
        },
        // No other CPU has run the space.
        Self {
            name: "flush_alone",
            prepare: |system| Stage::new(system, 0),
            run: Stage::flush,
            limits: Limits::new([54, 64, 66], Some([45, 48, 52])),
        },
        // `munmap` flushes in this way, with gathered extents.
        Self {
            name: "flush_gathered_alone",
            prepare: |system| Stage::new(system, 0),
            run: |stage| stage.flush_gathered(),
            limits: Limits::new([61, 71, 73], Some([55, 60, 65])),
        },
        // The other CPU is lazy on the space.
        Self {
            name: "flush_lazy_skipped",
            prepare: |system| {
                system.on_other_cpus(System::enter_lazy);
                Stage::new(system, 0)
            },
            run: Stage::flush,
            limits: Limits::new([168, 246, 242], Some([150, 160, 180])),
        },
        // The other CPU uses the space. The caller does not wait.
        Self {
            name: "flush_one_interrupted",
            prepare: |system| {
                system.on_other_cpus(|system| system.switch(0));
                Stage::new(system, 0)
            },
            run: Stage::send_flush,
            limits: Limits::new([186, 300, 282], Some([170, 180, 200])),
        },
        // The other CPU has interrupted this one for a flush of one page.
        Self {
            name: "handle_flush_IPI",
            prepare: |system| {
                system.on_other_cpus(|system| {
                    // Do not wait: no CPU would answer.
                    mem::forget(system.pin().flush(system.space(0), PAGE));
                });
                Stage::new(system, 0)
            },
            run: |stage| stage.pin.handle_flush_ipi(),
            limits: Limits::new([80, 80, 80], Some([75, 75, 75])),
        },
        // The batch already contains the space.
        Self {
            name: "batch_one_more_page",
            prepare: Stage::with_batch,
            run: |stage| stage.unmap(0x2000),
            limits: Limits::new([150, 150, 150], None),
        },
        // A batch with one page of one space, which no other CPU has run.
        Self {
            name: "flush_batch_alone",
            prepare: Stage::with_batch,
            run: |stage| stage.send_batch(),
            limits: Limits::new([194, 257, 333], Some([250, 250, 250])),
        },
    ];

    /// The flush whose stack is measured, with [limits](Self::limits) in bytes: one gathered page,
    /// from the notification of another CPU to the end of the wait. The other CPU's handler runs on
    /// the same stack and needs no more of it than the flush.
    pub const FLUSH_AND_WAIT: Self = Self {
        name: "flush_and_wait",
        prepare: |system| {
            system.on_other_cpus(|system| system.switch(0));
            Stage::new(system, 0)
        },
        run: |stage| {
            let mut extents = ExtentSet::new();
            extents.add(PAGE);
            let mut pending = stage.pin.flush_gathered(stage.space, &extents);
            stage.system.run_other_handlers();
            pending.wait();
        },
        limits: STACK,
    };
}

/// The page that is flushed.
pub(crate) const PAGE: Extent = Extent::page(0x1000);

type PageBatch<P, const W: usize, const R: bool> = Batch<&'static Space<Counted<P, W, R>>, ()>;

/// The state on which a path works: CPU 0, a space, and a batch.
///
/// The pin guard comes first, so that a call of its methods computes no address.
#[repr(C)]
#[derive(Debug)]
pub struct Stage<P: Processor + 'static, const W: usize, const R: bool = false> {
    pub(crate) pin: PinnedCpu<'static, Counted<P, W, R>>,
    pub(crate) space: &'static Space<Counted<P, W, R>>,
    pub(crate) system: System<P, W, R>,
    batch: PageBatch<P, W, R>,
    /// A flush that was sent.
    pub(crate) sent: Option<Pending<'static, Counted<P, W, R>>>,
    /// A clean page that was unmapped.
    pub(crate) unflushed: Option<Unflushed<&'static Space<Counted<P, W, R>>, ()>>,
}

impl<P: Processor, const W: usize, const R: bool> Stage<P, W, R> {
    pub(crate) fn new(system: &System<P, W, R>, space: usize) -> &'static mut Self {
        Box::leak(Box::new(Self {
            system: *system,
            pin: system.pin(),
            space: system.space(space),
            batch: PageBatch::new(),
            sent: None,
            unflushed: None,
        }))
    }

    /// Creates a stage on which reclaim has unmapped one page of space 0.
    pub(crate) fn with_batch(system: &System<P, W, R>) -> &'static mut Self {
        let stage = Self::new(system, 0);
        stage.unmap(0x1000);
        stage
    }

    #[inline(always)]
    pub(crate) fn switch(&self) {
        // SAFETY: the CPU is online, and the space lives for ever.
        unsafe { self.pin.switch(self.space) };
    }

    /// Flushes one page.
    pub(crate) fn flush(&mut self) {
        self.pin.flush(self.space, PAGE).wait();
    }

    /// Flushes one page, without the wait.
    pub(crate) fn send_flush(&mut self) {
        mem::forget(self.pin.flush(self.space, PAGE));
    }

    /// Flushes one page as `munmap` does.
    #[inline(always)]
    fn flush_gathered(&self) {
        let mut extents = ExtentSet::new();
        extents.add(PAGE);
        self.pin.flush_gathered(self.space, &extents).wait();
    }

    /// Adds a page of the space to the batch, as reclaim does after it has unmapped the page.
    #[inline(always)]
    fn unmap(&mut self, address: u64) {
        let space =
            self.batch.space(self.system.machine(), &self.space).expect("a batch has room for one");
        space.unmapped(&self.pin, Extent::page(address), StaleWrites::Impossible).wait();
    }

    /// Flushes the batch and waits.
    #[inline(always)]
    pub(crate) fn send_batch(&mut self) {
        self.batch.send(&self.pin).wait();
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::limits::WIDTHS;
    use crate::plain::{Plain, SharedTags};
    use crate::system::Roots;

    use shootdown::{CpuId, CpuStats, Machine as _};
    use std::vec::Vec;

    /// The engine's counts on CPU 0 for each path.
    fn counts<const T: usize, const W: usize, const R: bool>(
        paths: &[Path<Plain<T>, W, R>],
        cpus: usize,
    ) -> Vec<(&'static str, CpuStats)> {
        let count = |path: &Path<Plain<T>, W, R>| {
            // SAFETY: there are no interrupts, and loading a root does nothing.
            let system = unsafe { System::with_cpus(Plain, &Roots::NONE, cpus) };
            let stage = (path.prepare)(&system);
            let stats = || system.machine().state(CpuId(0)).stats();
            let before = stats();
            (path.run)(stage);
            let now = stats();
            let counts = CpuStats {
                answers: now.answers - before.answers,
                interrupts_sent: now.interrupts_sent - before.interrupts_sent,
                flushes_full: now.flushes_full - before.flushes_full,
                flushes_ranged: now.flushes_ranged - before.flushes_ranged,
                flushes_local: now.flushes_local - before.flushes_local,
                skipped_lazy: now.skipped_lazy - before.skipped_lazy,
                rollovers: now.rollovers - before.rollovers,
                switches: now.switches - before.switches,
                switches_without_flush: now.switches_without_flush - before.switches_without_flush,
                ..CpuStats::default()
            };
            (path.name, counts)
        };
        paths.iter().map(count).collect()
    }

    #[test]
    fn paths_match_their_names() {
        let nothing = CpuStats::default();
        let alone = CpuStats { flushes_ranged: 1, flushes_local: 1, ..nothing };
        let interrupted = CpuStats { flushes_ranged: 1, interrupts_sent: 1, ..nothing };
        let expected = [
            ("enter_lazy", nothing),
            ("leave_lazy", nothing),
            ("enter_user", nothing),
            ("enter_kernel", nothing),
            ("switch_current_tag", CpuStats { switches: 1, switches_without_flush: 1, ..nothing }),
            ("switch_new_tag", CpuStats { switches: 1, flushes_full: 1, ..nothing }),
            ("flush_alone", alone),
            ("flush_gathered_alone", alone),
            ("flush_lazy_skipped", CpuStats { skipped_lazy: 1, ..alone }),
            ("flush_one_interrupted", interrupted),
            ("handle_flush_IPI", CpuStats { answers: 1, flushes_ranged: 1, ..nothing }),
            ("batch_one_more_page", nothing),
            ("flush_batch_alone", alone),
            ("flush_and_wait", interrupted),
        ];
        fn all<const W: usize>() -> Vec<Path<Plain, W>> {
            Path::ALL.into_iter().chain([Path::FLUSH_AND_WAIT]).collect()
        }
        assert_eq!(WIDTHS, [1, 8, 64]);
        assert_eq!(counts(&all::<1>(), 2), expected);
        assert_eq!(counts(&all::<8>(), 2), expected);
        assert_eq!(counts(&all::<64>(), 2), expected);
    }

    /// With 2 CPUs, with those of one word and one more, and with all.
    #[test]
    fn loops_reach_every_other_cpu() {
        for cpus in [2, 64, 65, 512] {
            let (others, nothing) = (cpus as u64 - 1, CpuStats::default());
            let interrupts = CpuStats { interrupts_sent: others, ..nothing };
            let ranged = CpuStats { flushes_ranged: 1, ..nothing };
            let expected = [
                ("flush_of_all", CpuStats { interrupts_sent: others, ..ranged }),
                ("wait_for_all", nothing),
                ("flush_of_none", CpuStats { skipped_lazy: others, flushes_local: 1, ..ranged }),
                ("flush_walkers", interrupts),
                ("flush_kernel", CpuStats { interrupts_sent: others, ..ranged }),
                ("trim_cpumask", nothing),
                ("retire", nothing),
                ("reap", interrupts),
                ("disconnect", CpuStats { interrupts_sent: others - 1, ..nothing }),
            ];
            assert_eq!(counts(&Path::<Plain, 8>::LOOPS, cpus), expected);
            let [(_, switch)] = counts(&Path::<SharedTags, 8>::LOOPS_OF_TAGS, cpus)[..] else {
                panic!("there is one such loop")
            };
            assert_eq!((switch.rollovers, switch.flushes_full), (1, 1));
            let local = CpuStats { flushes_local: 1, ..nothing };
            let expected =
                [("defer_one_page", ranged), ("reuse_seen", local), ("reuse_of_all", interrupts)];
            assert_eq!(counts(&Path::<Plain, 8, true>::LOOPS_OF_REUSE, cpus), expected);
        }
    }
}
