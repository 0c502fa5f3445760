//! Progress of reclaim: no page can be reclaimed, or all pages are being written out, which takes
//! time.

use shootdown_program::operation::{FileId, Mapping, Operation};
use shootdown_run::{Limits, Memory, Settings, Supply};
use shootdown_sim::Time;

use crate::exhausted::{SETTINGS, machine, map, read, run_ours, write};

/// A device that writes a page in 20 ms, and reads a page in 10 ms.
const SLOW_STORAGE: &str = r#"
[storage]
page_ns = { value = 1000.0, source = "made up for tests" }
read_us = { value = 10000.0, source = "made up for tests" }
write_us = { value = 20000.0, source = "made up for tests" }
"#;

/// A reclaim thread that finds no page sleeps before it tries again.
#[test]
fn reclaim_threads_without_pages_do_not_spin() {
    // All pages but a few, so that both nodes are short.
    let fill = [map(0, 250, Mapping::Anonymous), write(0, 0..240)];
    let steps = fill.into_iter().chain([Operation::Compute(100_000_000), read(0, 0..240)]);
    let outcome = run_ours(machine(""), SETTINGS, [steps.collect()]).unwrap();
    let computed = Time::from_ms(100);
    assert!(outcome.time >= computed, "{}", outcome.time);
    // Each of two reclaim threads tries once per millisecond.
    let looks = outcome.counts.switches;
    assert!((100..1000).contains(&looks), "{looks} switches");
    let idle = outcome.counts.idle;
    assert!(idle * 100 > computed * 290, "three CPUs idled for only {idle}");
}

fn writers(threads: u64, pages: u64) -> impl Iterator<Item = Vec<Operation>> {
    (0..threads).map(move |thread| {
        let first = thread * pages;
        let all = (0..2)
            .flat_map(move |_| (first..first + pages).flat_map(|page| [write(0, page..page + 1)]));
        [map(0, threads * pages, Mapping::SharedFile(FileId(0)))].into_iter().chain(all).collect()
    })
}

/// Another thread is already writing out each page that could be reclaimed.
#[test]
fn thread_waits_for_pages_being_written_out() {
    for supply in [Supply::Reclaimed, Supply::ReclaimedReadAhead] {
        for (frames, threads) in [(90, 6), (120, 8), (128, 10)] {
            // Frames into which pages are being read are on no list, and an allocation does not
            // wait for them. With read-ahead there must be room for some.
            let frames = if supply == Supply::Reclaimed { frames } else { frames + 64 };
            let settings = Settings {
                memory: Memory { frames, supply, ..SETTINGS.memory },
                limits: Limits { time: Time::from_ms(600_000), ..SETTINGS.limits },
                ..SETTINGS
            };
            let outcome = run_ours(machine(SLOW_STORAGE), settings, writers(threads, 60));
            let outcome = outcome.unwrap_or_else(|error| panic!("{supply:?}, {frames}: {error}"));
            assert!(outcome.traffic.written_out > 60 * threads / 2, "{:?}", outcome.traffic);
        }
    }
}
