//! What is counted.

#![expect(unsafe_code, reason = "switches")]

use alloc::boxed::Box;
use core::hint::black_box;

use shootdown::{Batch, Extent, Here, Space, StaleWrites};
use shootdown_bare::Processor;

use crate::harness::Counted;
use crate::system::System;

/// A path: what is done once, in a state that is as it should be for that.
pub trait Path<P: Processor + 'static> {
    /// Its name, in the words of reports.
    const NAME: &'static str;
    /// How many instructions it may take on x86-64, with [`Plain`](crate::Plain) hardware and code
    /// that does not unwind: 2 % above what was measured on a host, with rustc 1.95.
    const BUDGET: u64;

    /// What it is given: no more than one or two words, or one thing by its address.
    type State;

    /// Makes a system ready, which nothing else has been done with.
    fn ready(system: &System<P>) -> Self::State;

    /// Does it.
    fn run(state: Self::State);
}

/// Is shown all paths.
pub trait Visitor<P: Processor + 'static> {
    /// One of them.
    fn visit<T: Path<P>>(&mut self);
}

/// A CPU, and the space that it is to do something about.
#[derive(Debug)]
pub struct Stage<P: Processor + 'static> {
    here: Here<'static, Counted<P>>,
    space: &'static Space<Counted<P>>,
    machine: &'static Counted<P>,
}

impl<P: Processor> Stage<P> {
    fn new(system: &System<P>, space: usize) -> &'static Self {
        let (here, space) = (system.here(), system.space(space));
        Box::leak(Box::new(Self { here, space, machine: system.machine() }))
    }

    #[inline(always)]
    fn switch(&self) {
        // SAFETY: the CPU is online, and the space lives for ever.
        unsafe { self.here.switch(self.space) };
    }

    /// Takes a page of the space, as reclaim does.
    #[inline]
    fn take(&self, batch: &mut Taken<P>, address: u64) {
        let Self { here, space, machine } = self;
        let space = batch.space(*machine, space).expect("a batch has room for one");
        space.unmapped(here, Extent::page(address), StaleWrites::Impossible).wait();
    }
}

type Taken<P> = Batch<&'static Space<Counted<P>>, ()>;

macro_rules! paths {
    ($(
        $(#[$doc:meta])*
        $name:ident($text:literal, $budget:literal): $state:ty,
        |$system:ident| $ready:expr, |$given:pat_param| $run:expr;
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Debug)]
            pub enum $name {}

            impl<P: Processor + 'static> Path<P> for $name {
                const NAME: &'static str = $text;
                const BUDGET: u64 = $budget;
                type State = $state;

                fn ready($system: &System<P>) -> Self::State {
                    $ready
                }

                // Always: else the count would depend on whether it is called from one place.
                #[inline(always)]
                fn run($given: Self::State) {
                    $run;
                }
            }
        )*

        /// Shows all paths, in the order of reports.
        pub fn visit_all<P: Processor + 'static>(visitor: &mut impl Visitor<P>) {
            $(visitor.visit::<$name>();)*
        }
    };
}

paths! {
    /// The CPU has nothing to do, and leaves its space loaded.
    EnterLazy("enter_lazy", 11): &'static Stage<P>,
    |system| Stage::new(system, 0), |stage| stage.here.enter_lazy();

    /// It comes back to the same space, and has missed nothing.
    LeaveLazy("leave_lazy", 20): &'static Stage<P>,
    |system| {
        let stage = Stage::new(system, 0);
        stage.here.enter_lazy();
        stage
    },
    |stage| stage.switch();

    /// To a space whose tag the CPU still has.
    SwitchCurrentTag("switch_current_tag", 69): &'static Stage<P>,
    |system| Stage::new(system, 1), |stage| stage.switch();

    /// To a space that the CPU has had, but whose tag others have taken since.
    SwitchNewTag("switch_new_tag", 148): &'static Stage<P>,
    |system| {
        for space in [6, 0, 1, 2, 3, 4, 5] {
            system.switch(space);
        }
        Stage::new(system, 6)
    },
    |stage| stage.switch();

    /// Of one page, of a space that only this CPU has.
    FlushAlone("flush_alone", 81): &'static Stage<P>,
    |system| Stage::new(system, 0),
    |Stage { here, space, .. }| here.flush(space, Extent::page(0x1000)).wait();

    /// The other CPU has rung for a flush of one page.
    Answer("answer", 127): &'static Stage<P>,
    |system| {
        system.on_other_cpu(|system| {
            // Waiting for it would take for ever: nobody answers here.
            core::mem::forget(system.here().flush(system.space(0), Extent::page(0x1000)));
        });
        Stage::new(system, 0)
    },
    |stage| stage.here.answer();

    /// A page more in a batch that knows the space.
    TakeOneMore("take_one_more", 136): (&'static Stage<P>, &'static mut Taken<P>),
    |system| {
        let (stage, batch) = reclaiming(system);
        (stage, Box::leak(Box::new(batch)))
    },
    |(stage, batch)| stage.take(batch, 0x2000);

    /// What is no work in the next: a batch is moved, which its flush does twice. On bare metal
    /// there is no C library that does so by the widest registers; and of `rep movsq` each turn is
    /// counted.
    MoveBatch("move_batch", 225): (&'static Stage<P>, Taken<P>),
    |system| reclaiming(system), |(_, batch)| {
        let moved = batch;
        black_box(&moved);
    };

    /// The flush of a batch of one space that nobody else uses.
    FlushBatchAlone("flush_batch_alone", 696): (&'static Stage<P>, Taken<P>),
    |system| reclaiming(system), |(stage, batch)| batch.send(&stage.here).wait();
}

/// Reclaim is at it: one page was taken.
fn reclaiming<P: Processor>(system: &System<P>) -> (&'static Stage<P>, Taken<P>) {
    let (stage, mut batch) = (Stage::new(system, 0), Taken::new());
    stage.take(&mut batch, 0x1000);
    (stage, batch)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::plain::Plain;
    use crate::system::Roots;

    use shootdown::{CpuId, CpuStats, Machine as _};

    /// What CPU 0 did on a path, by the engine's own count.
    fn done<T: Path<Plain>>() -> CpuStats {
        // SAFETY: there is no interrupt, and nothing is loaded.
        let system = unsafe { System::new(Plain, &Roots::NONE) };
        let state = T::ready(&system);
        let stats = || system.machine().state(CpuId(0)).stats();
        let before = stats();
        T::run(state);
        let now = stats();
        CpuStats {
            answers: now.answers - before.answers,
            flushes_full: now.flushes_full - before.flushes_full,
            flushes_ranged: now.flushes_ranged - before.flushes_ranged,
            flushes_told_nobody: now.flushes_told_nobody - before.flushes_told_nobody,
            switches: now.switches - before.switches,
            switches_without_flush: now.switches_without_flush - before.switches_without_flush,
            ..CpuStats::default()
        }
    }

    #[test]
    fn each_path_does_what_its_name_says() {
        let nothing = CpuStats::default();
        assert_eq!(done::<EnterLazy>(), nothing);
        assert_eq!(done::<MoveBatch>(), nothing);
        let kept = CpuStats { switches: 1, switches_without_flush: 1, ..nothing };
        assert_eq!(done::<SwitchCurrentTag>(), kept);
        let flushed = CpuStats { switches: 1, flushes_full: 1, ..nothing };
        assert_eq!(done::<SwitchNewTag>(), flushed);
        let alone = CpuStats { flushes_ranged: 1, flushes_told_nobody: 1, ..nothing };
        assert_eq!(done::<FlushAlone>(), alone);
        assert_eq!(done::<FlushBatchAlone>(), alone);
        assert_eq!(done::<Answer>(), CpuStats { answers: 1, flushes_ranged: 1, ..nothing });
    }

    #[test]
    fn each_path_has_a_name_of_its_own() {
        struct Names(std::vec::Vec<&'static str>);
        impl Visitor<Plain> for Names {
            fn visit<T: Path<Plain>>(&mut self) {
                assert!(!self.0.contains(&T::NAME), "{} is two", T::NAME);
                self.0.push(T::NAME);
            }
        }
        let mut names = Names(std::vec::Vec::new());
        visit_all(&mut names);
        assert_eq!(names.0.len(), 9);
    }
}
