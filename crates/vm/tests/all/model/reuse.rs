//! Programs whose clean pages are flushed when their frames are reused.
//!
//! Few pages of a file may wait unless many are listed, so areas begin with different parts of the
//! file here. The test counts the pages that waited: it would prove nothing without them.

use std::cell::Cell;

use super::*;

/// Areas begin with one of this many parts of the file.
const FILE_PARTS: u64 = 5;

/// Returns the same steps, and steps that map, read and page out large parts of the file.
fn file_steps() -> impl Strategy<Value = (usize, Step)> {
    let (first, count, access) = (0, PAGES, Access::Read);
    let step = prop_oneof![
        2 => prop_oneof![Just(READ), Just(READ_WRITE)].prop_map(move |protection| {
            Step::MapFixed { first, count, protection, kind: Kind::PrivateFile }
        }),
        4 => (0..CPUS).prop_map(move |cpu| Step::Touch { page: 0, count, cpu, access }),
        3 => (0..PAGES, 1..=8u64).prop_map(|(first, count)| {
            Step::PageOut { first, count: count.min(PAGES - first) }
        }),
    ];
    prop_oneof![2 => steps(), 1 => (0..4usize, step)]
}

#[test]
fn programs_match_model_with_reuse() {
    run_with_reuse::<REUSING>();
}

#[test]
fn programs_match_model_with_reuse_and_replicas() {
    run_with_reuse::<REUSING_REPLICATED>();
}

fn run_with_reuse<const LOCK: u8>() {
    let waited = Cell::new(0);
    let config = ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() };
    let program = |steps: Vec<(usize, Step)>| {
        let fixture = Fixture::<LOCK, AT_WAIT>::with_reclaim();
        let mut fixture = Fixture { file_parts: FILE_PARTS, ..fixture };
        for (which, step) in &steps {
            fixture.step(*which, step);
            waited.update(|count| count + fixture.host.waiting_pages());
        }
        fixture.end();
        Ok(())
    };
    let steps = prop::collection::vec(file_steps(), 1..60);
    TestRunner::new(config).run(&steps, program).unwrap();
    assert!(waited.get() > 1000, "only {} pages waited", waited.get());
}
