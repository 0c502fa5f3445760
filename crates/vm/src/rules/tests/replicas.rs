//! Operations on a space, while another CPU makes its replica, links, cuts and abandons it.

use alloc::vec::Vec;

use super::machine::PAGE;
use super::system::{Process, System, page};
use crate::coherence::{Change, Freed, Replication};
use crate::platform::{FrameUse, Platform};
use crate::sharers::Sharers;
use crate::{Advice, Vm};

/// Makes the first replica of the space on CPU 1, while CPU 0, which has run `before`, runs `zero`.
fn first_replica(before: impl FnOnce(&Process), zero: impl FnOnce(&Process)) {
    let process = Process::new(2, Replication::IfWorth, Vm::with_reclaim);
    before(&process);
    let frame = process.frame(PAGE);
    let one = process.spawn(1, |process| {
        process.access(PAGE);
    });
    zero(&process);
    process.host.assert_unused(frame);
    one.join().unwrap();
}

pub(super) fn make_replica_while_discarding() {
    first_replica(|_| (), Process::discard);
}

pub(super) fn make_replica_while_migrating() {
    first_replica(
        |_| (),
        |process| {
            process.space.migrate(page(PAGE), 1).unwrap();
        },
    );
}

pub(super) fn make_replica_while_reclaiming() {
    let discardable = |process: &Process| process.space.advise(page(PAGE), Advice::Free).unwrap();
    first_replica(discardable, |process| {
        process.space.advise(page(PAGE), Advice::PageOut).unwrap();
    });
}

/// CPU 1, whose replica exists, links the table of the page, and later cuts the link.
pub(super) fn link_and_cut_while_discarding() {
    let process = Process::with_replicas(2, &[1], |vm| vm);
    let (frame, replica) = (process.frame(PAGE), process.replica(1));
    let one = process.spawn(1, move |process| {
        process.access(PAGE);
        process.cut(&replica);
        process.host.touch(PAGE);
    });
    process.discard();
    process.host.assert_unused(frame);
    one.join().unwrap();
}

/// CPU 1 returns to user mode in the canonical tree, while CPU 0 runs `zero`.
fn give_up(replicas: &[usize], zero: impl FnOnce(&Process)) {
    let process = Process::with_user(2, replicas, Vm::with_reclaim);
    process.space.give_up_replicas();
    let frame = process.frame(PAGE);
    let one = process.spawn(1, Process::return_to_user);
    zero(&process);
    process.host.assert_unused(frame);
    one.join().unwrap();
}

pub(super) fn give_up_last_while_discarding() {
    give_up(&[1], Process::discard);
}

/// (A discard takes a lock after it has read which replicas are in use, and that lock would order
/// the accesses.)
pub(super) fn give_up_one_of_two_while_migrating() {
    give_up(&[0, 1], Process::migrate);
}

/// CPU 0 cuts the links of CPU 1 instead of flushing its replica, and CPU 1 abandons the replica.
pub(super) fn give_up_while_cutting() {
    let process = Process::with_user(2, &[1], |vm| vm);
    process.space.give_up_replicas();
    let (frame, replica) = (process.frame(PAGE), process.replica(1));
    let one = process.spawn(1, Process::return_to_user);
    process.cut(&replica);
    process.host.assert_unused(frame);
    one.join().unwrap();
}

/// As above, while CPU 2 unmaps the page and frees its table. The cut must not change the sharers
/// of a table that was freed.
pub(super) fn unhook_while_cutting_and_giving_up() {
    let process = Process::with_user(3, &[1], |vm| vm);
    process.space.give_up_replicas();
    let replica = process.replica(1);
    let one = process.spawn(1, Process::return_to_user);
    let two = process.spawn(2, |process| process.space.unmap(page(PAGE)).unwrap());
    process.cut(&replica);
    one.join().unwrap();
    two.join().unwrap();
}

/// CPU 2 finds no replica in use, and frees the table of the page. (To loom, the barrier of a flush
/// also acquires what other CPUs have acquired, so that an unmap would detect less.)
pub(super) fn free_table_after_cut_and_giving_up() {
    let process = Process::with_user(3, &[1], |vm| vm);
    process.space.give_up_replicas();
    let replica = process.replica(1);
    let table = process.space.mappings.tables.leaf_table(&process.host, PAGE).unwrap().1;
    let one = process.spawn(1, Process::return_to_user);
    let two = process.spawn(2, move |process| {
        if !process.space.mappings.replicas.are_used() {
            process.host.free_table(table);
        }
    });
    process.cut(&replica);
    one.join().unwrap();
    two.join().unwrap();
}

/// A replica is cut after 16 flushes, or four for each link if that is more, and again after as
/// many.
pub(super) fn cut_after_four_flushes_for_each_link() {
    let process = Process::with_replicas(2, &[1], |vm| vm);
    let (replica, mut linked) = (process.replica(1), Vec::new());
    for (links, flushes) in [(1, 16), (4, 16), (5, 20), (0, 16)] {
        for number in 0..links {
            let address = [0, 5, 7][number / 3] << 30 | [0, 5, 7][number % 3] << 21;
            let new_table = || process.host.allocate(FrameUse::Table);
            let table = new_table().unwrap();
            assert_eq!(replica.link(&process.host, address, table, new_table), Ok(true));
            assert_eq!(replica.link(&process.host, address, table, new_table), Ok(false));
            linked.push(table);
        }
        for _ in 0..flushes {
            assert!(!replica.is_flushed_often(), "{links} links");
            replica.count_flush();
        }
        assert!(replica.is_flushed_often(), "{links} links");
        process.cut(&replica);
        for &table in &linked {
            process.host.sharers(table, &mut |cpu| panic!("CPU {cpu} shares {table:?}"));
        }
    }
}

/// A flush of everything concerns every CPU, whatever tables are in the tree.
pub(super) fn flush_of_everything_concerns_everyone() {
    let process = Process::with_replicas(2, &[1], |vm| vm);
    let mut sharers = Sharers::default();
    let (tables, change) = (&process.space.mappings.tables, Change::whole(Freed::Pages));
    sharers.add_for::<System>(&process.host, tables, &change);
    assert!(sharers.cpus().is_none());
}
