//! The engine on the host's threads and atomics: briefly here, for as long as one likes with
//! `cargo xtask soak` or the `stress` example.
//!
//! An x86 host shows no missing barrier (each locked instruction is a full one); it does show
//! missed steps, at full speed. Run by miri, which knows C++20's weak memory, it shows both.

use std::thread;

use shootdown::soft::{Churn, ChurnReport, Config, Host, Soft};
use shootdown::{CpuId, Rule};

/// The uses of given-away pages, and the walks of given-away tables.
fn churn(config: Config, steps: usize, seed: u64) -> (ChurnReport, u64) {
    let engine = Soft::<Host>::engine(config);
    let churn = Churn::new(&engine);
    let mut report = ChurnReport::default();
    thread::scope(|scope| {
        let cpus = (0..config.cpus)
            .map(|cpu| {
                scope.spawn({
                    let (engine, churn) = (&engine, &churn);
                    move || churn.run(engine, CpuId(cpu), seed, steps)
                })
            })
            .collect::<Vec<_>>();
        for cpu in cpus {
            report += cpu.join().unwrap();
        }
    });
    (report, engine.machine().freed_table_walks())
}

const CONFIG: Config = Config { cpus: 4, tables: 3, pages: 4, tags: 2, broken: None };
/// miri is some thousand times slower.
const STEPS: usize = if cfg!(miri) { 60 } else { 100_000 };

#[test]
fn nobody_uses_what_was_given_away() {
    // miri brings seeds of its own.
    let seeds = if cfg!(miri) { 1 } else { 4 };
    for seed in 0..seeds {
        for tags in [0, 1, 6] {
            let config = Config { tags, ..CONFIG };
            let (report, walks) = churn(config, STEPS, seed);
            assert_eq!((report.stale, walks), (0, 0), "{tags} tags, seed {seed}");
            assert!(report.touches > 0 && report.flushes > 0);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes more steps than miri has time for")]
fn without_the_ring_somebody_does() {
    let config = Config { broken: Some(Rule::RingPresent), ..CONFIG };
    assert!(churn(config, STEPS, 0).0.stale > 0);
}
