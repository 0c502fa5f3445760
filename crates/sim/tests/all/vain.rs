//! The causes of interrupts in vain.

use shootdown_sim::{Counts, FrameNumber, Purpose, Sim, TagEntries, Time, VainCause};

use crate::classes::{OTHER, PAGE, counts_of, flush, read, tables};

/// Makes a replica of a space: a root of its own, with the entry of the space's root.
fn replica(sim: &Sim, root: FrameNumber) -> FrameNumber {
    let replica = sim.allocate(Purpose::Table).unwrap();
    let entry = sim.update_entry(root, 0, |entry| entry);
    sim.update_entry(replica, 0, |_| entry);
    sim.replicate(root, replica);
    replica
}

fn load(sim: &Sim, root: FrameNumber) {
    sim.load_root(root, 1, TagEntries::Discarded);
}

fn flush_page(sim: &Sim, root: FrameNumber) {
    flush(sim, root, &[PAGE]);
}

/// Asserts that there was one interrupt, in vain, with this cause.
fn assert_cause(counts: &Counts, cause: VainCause) {
    let of = VainCause::ALL.map(|cause| counts.vain_causes.of(cause));
    assert_eq!((of.iter().sum(), counts.vain_causes.total()), (1, 1), "{of:?}");
    assert_eq!((counts.interrupts_in_vain, counts.vain_causes.of(cause)), (1, 1), "{of:?}");
}

#[test]
fn space_without_replicas_is_interrupted_for_lack_of_them() {
    assert_cause(&counts_of(|_, _| (), flush_page), VainCause::NoReplicas);
}

#[test]
fn replica_that_is_made_later_changes_the_cause() {
    for delay in [0, 50_000] {
        // Without a delay, the interrupt is on its way.
        let sender = move |sim: &Sim, root| {
            flush_page(sim, root);
            sim.spend(Time::from_ns(delay));
            replica(sim, root);
        };
        assert_cause(&counts_of(|_, _| (), sender), VainCause::BeforeReplicas);
    }
}

#[test]
fn target_with_the_spaces_own_tables_has_no_replica() {
    let target = |sim: &Sim, root| {
        replica(sim, root);
    };
    assert_cause(&counts_of(target, flush_page), VainCause::OwnTables);
}

#[test]
fn return_to_the_spaces_own_tables_gives_replicas_up() {
    let target = |sim: &Sim, root| {
        load(sim, replica(sim, root));
        load(sim, root);
    };
    assert_cause(&counts_of(target, flush_page), VainCause::GivenUp);
}

#[test]
fn target_of_another_space_is_absent() {
    let target = |sim: &Sim, root| {
        replica(sim, root);
        load(sim, tables(sim));
    };
    assert_cause(&counts_of(target, flush_page), VainCause::Absent);
}

#[test]
fn sharer_that_has_not_read_the_table_holds_nothing() {
    let target = |sim: &Sim, root| load(sim, replica(sim, root));
    assert_cause(&counts_of(target, flush_page), VainCause::UnreadTable);
}

#[test]
fn sharer_that_has_read_another_page_has_read_the_table() {
    let target = |sim: &Sim, root| {
        load(sim, replica(sim, root));
        read(sim, OTHER);
    };
    assert_cause(&counts_of(target, flush_page), VainCause::ReadTable);
}

#[test]
fn free_of_tables_comes_before_other_causes() {
    let sender = |sim: &Sim, root| {
        let record = sim.flush_of_tables_began(root, Some(PAGE..OTHER));
        sim.send_flush_interrupt([1]);
        sim.flush_sent();
        sim.flush_ended(record);
    };
    let target = |sim: &Sim, root| load(sim, replica(sim, root));
    assert_cause(&counts_of(target, sender), VainCause::Tables);
}
