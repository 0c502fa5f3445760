use super::*;
use std::vec;
use std::vec::Vec;

const fn horizon(flush: u64, cleared: u64) -> Horizon {
    Horizon::new(flush, cleared)
}

#[test]
fn tables_wait_until_their_flush_is_cleared() {
    let mut quarantine: Quarantine<Vec<&str>> = Quarantine::new(10);
    assert_eq!(quarantine.defer(horizon(5, 3), 1, vec!["five"]), Ok(()));
    assert_eq!(quarantine.defer(horizon(7, 3), 2, vec!["seven", "eight"]), Ok(()));
    assert_eq!(quarantine.take_cleared(horizon(8, 4)), None);
    assert_eq!(quarantine.take_cleared(horizon(9, 6)), Some((1, vec!["five"])));
    assert_eq!(quarantine.take_cleared(horizon(9, 6)), None);
    assert_eq!(quarantine.take_cleared(Horizon::UNKNOWN), None);
    assert_eq!(quarantine.table_count(), 2);
    assert_eq!(quarantine.take_any(), Some((2, vec!["seven", "eight"])));
    assert_eq!(quarantine.take_any(), None);
}

#[test]
fn too_many_tables_are_returned() {
    let mut few: Quarantine<Vec<u8>> = Quarantine::new(3);
    assert_eq!(few.defer(horizon(1, 0), 3, vec![1, 2, 3]), Ok(()));
    assert_eq!(few.defer(horizon(2, 0), 1, vec![4]), Err(vec![4]));
    assert_eq!(few.table_count(), 3);
}

/// This holds also if the flushes are done in another order than they were sent.
#[test]
fn tables_without_free_entry_join_the_latest() {
    let mut quarantine: Quarantine<Vec<u8>, 2> = Quarantine::new(100);
    for flush in [1, 6, 4, 8] {
        assert_eq!(quarantine.defer(horizon(flush, 0), 1, vec![flush as u8]), Ok(()));
    }
    assert_eq!(quarantine.take_cleared(horizon(9, 6)), Some((1, vec![1])));
    assert_eq!(quarantine.take_cleared(horizon(9, 7)), None);
    assert_eq!(quarantine.take_cleared(horizon(9, 8)), Some((3, vec![6, 4, 8])));
    assert_eq!(quarantine.table_count(), 0);
}

#[test]
fn merged_entry_waits_for_its_latest_flush() {
    let mut quarantine: Quarantine<Vec<u8>, 2> = Quarantine::new(100);
    // There is no free entry for flush 4, which joins that of the later flush 6.
    for flush in [1, 6, 4] {
        assert_eq!(quarantine.defer(horizon(flush, 0), 1, vec![flush as u8]), Ok(()));
    }
    assert_eq!(quarantine.take_cleared(horizon(9, 4)), Some((1, vec![1])));
    assert_eq!(quarantine.take_cleared(horizon(9, 5)), None);
    assert_eq!(quarantine.take_cleared(horizon(9, 6)), Some((2, vec![6, 4])));
}

#[test]
fn unknown_horizon_is_not_clear() {
    assert!(Horizon::CLEAR.is_clear() && !Horizon::UNKNOWN.is_clear());
    assert!(horizon(3, 3).is_clear() && !horizon(3, 2).is_clear());
    assert_eq!((horizon(5, 3).flush(), horizon(5, 3).cleared()), (5, 3));
}
