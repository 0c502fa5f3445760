//! The report of a run: one line of JSON for each object, with the names of the lab's JSON.
//!
//! The first line covers all CPUs, from the first `Begin` to the last `End`, or the whole run.
//! Lines with `"cpu"` cover one CPU and the whole run, with the engine's names. The line with
//! `"memory"` has the memory manager's counts.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt::Write as _;

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
    println!("{{{}}}", outcome(executor, measured, now));
    for cpu in 0..cpus {
        println!("{{{}}}", of_cpu(cpu));
    }
    println!("{{{}}}", memory(executor));
    let is_right = contents::violations() == 0 && frames().stale_writes() == 0;
    end(if is_right { Status::Passed } else { Status::Failed })
}

fn outcome(executor: &Executor, measured: &Measurement<Reading>, now: &Reading) -> String {
    let (begin_ns, before) = measured.begin.unwrap_or_default();
    let (end_ns, after) = measured.end.unwrap_or(*now);
    let Totals { engine, counted } = after.since(&before);
    let texts =
        [("workload", executor.stream.name()), ("design", "shootdown"), ("arch", Arch::NAME)];
    let [p50, p99, max] = FLUSH_WAITS.quantiles();
    let full = engine.flushes_full - counted.flushes_full_at_switch;
    let ranged = engine.flushes_ranged - counted.flushes_ranged_at_switch;
    let at_switch = counted.flushes_full_at_switch + counted.flushes_ranged_at_switch;
    let counts = numbers([
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
    ]);
    let wait = object("shootdown_wait_ns", &numbers([("p50", p50), ("p99", p99), ("max", max)]));
    let wrong = numbers([
        ("violations", contents::violations() + frames().stale_writes()),
        ("wrong_contents", contents::violations()),
        ("stale_writes", frames().stale_writes()),
    ]);
    joined(
        texts
            .map(|(name, text)| member(name, &quoted(text)))
            .into_iter()
            .chain([counts, wait, wrong]),
    )
}

fn of_cpu(cpu: u32) -> String {
    let Totals { engine, counted } = Totals::of(cpu);
    let engine = object("engine", &numbers(engine_by_name(&engine)));
    let kernel = object("kernel", &numbers(counted.by_name()));
    joined([numbers([("cpu", u64::from(cpu))]), engine, kernel])
}

fn memory(executor: &Executor) -> String {
    let (stats, deferred) = (executor.ended(), executor.vm.quarantined_tables());
    let discards = executor.vm.discard_stats();
    let counts = [
        ("flushes", stats.flushes + discards.flushes),
        ("flushes_for_races", stats.flushes_for_races),
        ("flushes_avoided", stats.flushes_avoided),
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
    ];
    object("memory", &numbers(counts))
}

/// Returns the members of a JSON object that are numbers.
fn numbers(all: impl IntoIterator<Item = (&'static str, u64)>) -> String {
    joined(all.into_iter().map(|(name, number)| member(name, &number.to_string())))
}

/// Returns a member that is an object.
fn object(name: &str, members: &str) -> String {
    member(name, &format!("{{{members}}}"))
}

fn member(name: &str, value: &str) -> String {
    format!("\"{name}\":{value}")
}

fn joined(members: impl IntoIterator<Item = String>) -> String {
    members.into_iter().collect::<Vec<_>>().join(",")
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        // A string never refuses text.
        let _ = match character {
            '"' | '\\' => write!(quoted, "\\{character}"),
            '\0'..='\x1f' => write!(quoted, "\\u{:04x}", character as u32),
            _ => quoted.write_char(character),
        };
    }
    quoted + "\""
}
