//! The choice between interrupts and broadcasts is at most 5 % worse than the better of the two, on
//! machines that have both, but for cells that are named.

use std::rc::Rc;

use shootdown_designs::{Design, discarding_immediately, without_replicas};
use shootdown_program::Workload;
use shootdown_run::programs::{Crowd, Kind, Loop, MadviseAndCompute, Tasks};
use shootdown_run::{Limits, Memory, Settings};
use shootdown_sim::{Machine, Time};

use crate::common::is_soak;

const SETTINGS: Settings = Settings {
    memory: Memory::of_frames(1 << 20),
    limits: Limits { threads: 512, time: Time::from_ms(60_000) },
    ..Settings::DEFAULT
};

/// Returns workloads: two threads that flush, many threads that flush in few and in many processes,
/// and one thread that flushes beside threads that compute. The workloads are long enough for the
/// engine to adapt. If 32 CPUs start with a broadcast at the same time, the last of them waits 100
/// µs before it changes its choice.
fn workloads(seed: u64) -> [Rc<dyn Workload>; 4] {
    let (kind, tasks) = (Kind::Madvise, Tasks::Threads);
    let crowd =
        |processes, threads, iterations| Crowd { kind, processes, threads, iterations, seed };
    [
        Rc::new(Loop { kind, tasks, count: 2, iterations: 360, seed }),
        Rc::new(crowd(4, 8, 480)),
        Rc::new(crowd(16, 2, 120)),
        Rc::new(MadviseAndCompute { others: 7, iterations: 240, compute_ns: 4000, seed }),
    ]
}

/// The longest time under the choice, relative to the better method.
const WORSE_MAX: f64 = 1.05;

/// The cells that are worse, each with its limit. With two threads, the method decides which of
/// them gets their lock next, which the engine's estimate of costs does not know:
/// on `amd-invlpgb`, 2.6 ms with interrupts, and 3.6 ms with the broadcasts that it chooses;
/// beside seven threads that compute, the two methods differ by 6 %, and the estimate of a
/// broadcast is too low.
const WORSE: [(&str, &str, f64); 4] = [
    ("amd-invlpgb", "madvise-2-threads", 1.40),
    ("amd-invlpgb", "madvise-16x2-threads", 1.12),
    ("arm64-2s", "madvise-2-threads", 1.13),
    ("ampere-emag-32", "madvise-beside-7", 1.07),
];

/// Asserts that the choice is no worse. Each time is a sum over six seeds, because collisions
/// between many competing threads are random.
fn choice_is_no_worse(machine: &str) {
    let machine = Machine::from_toml(machine).unwrap();
    let mut chosen = Vec::new();
    for index in 0..workloads(1).len() {
        let time = |design: Design| {
            let of_seed = |seed| {
                let workload = Rc::clone(&workloads(seed)[index]);
                let outcome = shootdown_run::run(machine.clone(), SETTINGS, workload, |sim| {
                    without_replicas(discarding_immediately(design.on(sim)))
                })
                .unwrap();
                assert_eq!((outcome.violations, outcome.hazards), (0, 0), "{design}");
                outcome.time.us()
            };
            (1..=6).map(of_seed).sum::<f64>()
        };
        let ways = [Design::SHOOTDOWN_INTERRUPTS, Design::SHOOTDOWN_BROADCASTS].map(time);
        let worse = time(Design::SHOOTDOWN) / ways[0].min(ways[1]);
        chosen.push((workloads(1)[index].name(), worse, ways));
    }
    println!("{}: {chosen:?}", machine.name);
    for (workload, worse, _) in &chosen {
        let known = WORSE.iter().find(|cell| (cell.0, cell.1) == (&machine.name, workload));
        let limit = known.map_or(WORSE_MAX, |cell| cell.2);
        assert!(*worse <= limit, "{}, {workload}: {worse} > {limit}", machine.name);
    }
    // The methods must differ in some workload, otherwise the test shows nothing.
    let matters =
        |&(_, _, [one, other]): &(String, f64, [f64; 2])| (one / other - 1.0).abs() > 0.05;
    assert!(chosen.iter().any(matters), "{}: {chosen:?}", machine.name);
}

/// The machine that CI runs.
const IN_CI: [&str; 1] = ["amd-invlpgb"];

macro_rules! no_worse {
    ($($name:ident: $machine:literal;)*) => {$(
        #[test]
        fn $name() {
            if !is_soak() && !IN_CI.contains(&$machine) {
                println!("skipped: {}, which `cargo xtask soak` runs", $machine);
                return;
            }
            choice_is_no_worse(include_str!(concat!("../../../../machines/", $machine, ".toml")));
        }
    )*};
}

no_worse! {
    on_an_ampere: "ampere-emag-32";
    on_two_sockets_of_arm64: "arm64-2s";
    on_amd_with_invlpgb: "amd-invlpgb";
    on_risc_v_by_firmware: "riscv-64";
}
