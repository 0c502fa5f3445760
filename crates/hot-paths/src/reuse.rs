//! Flush at reuse: its parts are loops over all CPUs too.

use core::mem;

use shootdown::{CleanBatch, CleanExtent, StaleWrites};
use shootdown_hw::Processor;

use crate::limits::Limits;
use crate::paths::{PAGE, Path, Stage};
use crate::system::System;

impl<P: Processor, const W: usize> Path<P, W, true> {
    /// The loops of a machine that flushes at reuse, in the order of reports. Each CPU uses the
    /// space.
    pub const LOOPS_OF_REUSE: [Self; 3] = [
        // Makes a collection of one page of one space.
        Self {
            name: "defer_one_page",
            prepare: used_everywhere,
            run: Stage::defer_page,
            limits: Limits::new([886, 1033, 1867], None),
        },
        // Each CPU has caught up since the page was unmapped.
        Self {
            name: "reuse_seen",
            prepare: |system| {
                let stage = unflushed(system);
                used_everywhere(system);
                stage
            },
            run: Stage::reuse,
            limits: Limits::new([3237, 27_468, 218_038], None),
        },
        // No CPU has. The caller does not wait.
        Self {
            name: "reuse_of_all",
            prepare: unflushed,
            run: Stage::reuse,
            limits: Limits::new([4811, 42_574, 338_652], None),
        },
    ];
}

/// A stage on which each CPU has switched to space 0.
fn used_everywhere<P: Processor, const W: usize>(
    system: &System<P, W, true>,
) -> &'static mut Stage<P, W, true> {
    system.on_other_cpus(|system| {
        system.switch(1);
        system.switch(0);
    });
    Stage::new(system, 0)
}

/// A stage with a page that was unmapped, and that each CPU may use.
fn unflushed<P: Processor, const W: usize>(
    system: &System<P, W, true>,
) -> &'static mut Stage<P, W, true> {
    let stage = used_everywhere(system);
    stage.defer_page();
    stage
}

impl<P: Processor, const W: usize> Stage<P, W, true> {
    /// Unmaps a clean page, whose flush waits.
    fn defer_page(&mut self) {
        let mut batch = CleanBatch::new();
        let entry = batch.space(self.system.machine(), &self.space).expect("the batch is empty");
        let extent = CleanExtent::new(PAGE, StaleWrites::Impossible);
        entry.unmapped(extent.expect("the page is clean"));
        self.unflushed = Some(batch.defer(&self.pin));
    }

    /// Flushes the page, without the wait.
    fn reuse(&mut self) {
        let unflushed = self.unflushed.as_mut().expect("`prepare` has unmapped a page");
        mem::forget(unflushed.reuse(&self.pin));
    }
}
