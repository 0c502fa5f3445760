//! The report of a run: one line of JSON for each object, with the names of the lab's JSON.
//!
//! The first line covers all CPUs, from the first `Begin` to the last `End`, or the whole run.
//! Lines with `"cpu"` cover one CPU and the whole run, with the engine's names. The line with
//! `"memory"` has the memory manager's counts.

use core::fmt::{self, Display as _, Write as _};

use shootdown_program::interpreter::Measurement;
use shootdown_vm::Lifetimes as _;

use crate::kernel::arch::{Arch, Architecture, Status};
use crate::kernel::coherence::Engine;
use crate::kernel::console::println;
use crate::kernel::contents;
use crate::kernel::counts::FLUSH_WAITS;
use crate::kernel::end::end;
use crate::kernel::executor::Executor;
use crate::kernel::memory::frames;
use crate::kernel::totals::{Totals, engine_by_name};

/// The time in nanoseconds, and all counters.
pub(crate) type Reading = (u64, Totals);

/// Prints the report of a run and ends it. Call this when the last thread is done.
pub(crate) fn finish(executor: &Executor, measured: &Measurement<Reading>, now: &Reading) -> ! {
    let cpus = executor.settings.cpus;
    // Reclaims the spaces whose page tables other CPUs could still walk.
    Engine.reap();
    executor.vm.free_dead_tables();
    println!("{}", object(|members| outcome(executor, measured, now, members)));
    for cpu in 0..cpus {
        println!("{}", object(|members| of_cpu(cpu, members)));
    }
    println!("{}", object(|members| memory(executor, members)));
    let is_right = contents::violations() == 0 && frames().stale_writes() == 0;
    end(if is_right { Status::Passed } else { Status::Failed })
}

fn outcome(
    executor: &Executor,
    measured: &Measurement<Reading>,
    now: &Reading,
    members: &mut Members<'_, '_>,
) -> fmt::Result {
    let (begin_ns, before) = measured.begin.unwrap_or_default();
    let (end_ns, after) = measured.end.unwrap_or(*now);
    let Totals { engine, counted } = after.since(&before);
    members.text("workload", executor.stream.name())?;
    members.text("design", "shootdown")?;
    members.text("arch", Arch::NAME)?;
    let [p50, p99, max] = FLUSH_WAITS.quantiles();
    let full = engine.flushes_full - counted.flushes_full_at_switch;
    let ranged = engine.flushes_ranged - counted.flushes_ranged_at_switch;
    let at_switch = counted.flushes_full_at_switch + counted.flushes_ranged_at_switch;
    members.numbers([
        ("cpus", u64::from(executor.settings.cpus)),
        ("time_ns", end_ns - begin_ns),
        ("time_range_ns", end_ns - measured.first_end.map_or(end_ns, |(ns, _)| ns)),
        ("iterations", measured.iterations),
        ("ipis_sent", engine.interrupts_sent),
        ("ipis_coalesced", engine.rings_coalesced),
        ("flushes", counted.flushes),
        ("flushes_full", full),
        ("flushes_ranged", ranged),
        ("flushes_at_switch", at_switch),
        ("pages_invalidated", engine.pages_invalidated),
        ("switches", counted.switches),
        ("switches_without_flush", counted.switches.saturating_sub(counted.flushes_full_at_switch)),
        ("migrations", counted.migrations),
        ("faults", counted.faults),
        ("read_in", counted.read_in),
        ("interrupted_ns", counted.interrupted_ns),
        ("flush_wait_ns", counted.flush_wait_ns),
        ("broadcasts", engine.broadcasts_sent),
        ("tags_taken", engine.tags_taken),
        ("rollovers", engine.rollovers),
    ])?;
    members.object("shootdown_wait_ns", |members| {
        members.numbers([("p50", p50), ("p99", p99), ("max", max)])
    })?;
    members.numbers([
        ("violations", contents::violations() + frames().stale_writes()),
        ("wrong_contents", contents::violations()),
        ("stale_writes", frames().stale_writes()),
    ])
}

fn of_cpu(cpu: u32, members: &mut Members<'_, '_>) -> fmt::Result {
    let Totals { engine, counted } = Totals::of(cpu);
    members.numbers([("cpu", u64::from(cpu))])?;
    members.object("engine", |members| members.numbers(engine_by_name(&engine)))?;
    members.object("kernel", |members| members.numbers(counted.by_name()))
}

fn memory(executor: &Executor, members: &mut Members<'_, '_>) -> fmt::Result {
    let (stats, deferred) = (executor.ended(), executor.vm.quarantined_tables());
    let discards = executor.vm.discard_stats();
    members.object("memory", |members| {
        members.numbers([
            ("flushes", stats.flushes + discards.flushes),
            ("flushes_for_races", stats.flushes_for_races),
            ("flushes_avoided", stats.flushes_avoided),
            ("mapped_around", stats.mapped_around),
            ("collapsed", stats.collapsed),
            ("split", stats.split),
            ("migrated", stats.migrated),
            ("replicas", stats.replicas),
            ("replica_tables", stats.replica_tables),
            ("replica_links", stats.linked),
            ("replica_link_faults", stats.link_faults),
            ("held_tables_now", deferred.now),
            ("held_tables_peak", deferred.peak),
            ("held_tables_overflows", deferred.overflows),
            ("pages_discarded_in_place", discards.in_place),
            ("pages_discarded_freed", discards.freed),
            ("pages_discarded_used_again", discards.used_again),
            ("pages_reclaimable_max", discards.peak),
            ("late_page_ns", discards.late_page_ns),
            ("frames_in_use", frames().in_use()),
        ])
    })
}

/// A JSON object, whose members `F` writes.
struct Object<F>(F);

/// Creates an object. The bound is here so that closures take references of any lifetime.
fn object<F: Fn(&mut Members<'_, '_>) -> fmt::Result>(members: F) -> Object<F> {
    Object(members)
}

/// The members of an object, separated by commas.
struct Members<'a, 'b> {
    out: &'a mut fmt::Formatter<'b>,
    is_first: bool,
}

impl<F: Fn(&mut Members<'_, '_>) -> fmt::Result> fmt::Display for Object<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('{')?;
        (self.0)(&mut Members { out: &mut *f, is_first: true })?;
        f.write_char('}')
    }
}

impl Members<'_, '_> {
    fn begin(&mut self, name: &str) -> fmt::Result {
        if !core::mem::take(&mut self.is_first) {
            self.out.write_char(',')?;
        }
        write!(self.out, "\"{name}\":")
    }

    fn numbers(&mut self, all: impl IntoIterator<Item = (&'static str, u64)>) -> fmt::Result {
        for (name, number) in all {
            self.begin(name)?;
            write!(self.out, "{number}")?;
        }
        Ok(())
    }

    fn text(&mut self, name: &str, text: &str) -> fmt::Result {
        self.begin(name)?;
        self.out.write_char('"')?;
        for character in text.chars() {
            match character {
                '"' | '\\' => write!(self.out, "\\{character}")?,
                '\0'..='\x1f' => write!(self.out, "\\u{:04x}", character as u32)?,
                _ => self.out.write_char(character)?,
            }
        }
        self.out.write_char('"')
    }

    fn object(
        &mut self,
        name: &str,
        members: impl Fn(&mut Members<'_, '_>) -> fmt::Result,
    ) -> fmt::Result {
        self.begin(name)?;
        Object(members).fmt(self.out)
    }
}
