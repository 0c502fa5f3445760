//! Runs of workloads that were encoded and decoded.

use std::rc::Rc;

use shootdown_designs::Linux70;
use shootdown_program::Workload;
use shootdown_program::operation::ProgramId;
use shootdown_program::stream::{Encoded, encode};
use shootdown_run::programs::{Crowd, Kind, MprotectThreaded};
use shootdown_run::{Settings, run};
use shootdown_sim::Machine;

#[test]
fn step_of_a_loop_takes_few_bytes() {
    let workload = MprotectThreaded::new(2, 1000);
    let encoded = encode(&workload);
    let (steps, bytes) = (encoded.steps(ProgramId(1)).count(), encoded.bytes().len());
    assert!(steps > 2000 && bytes < 2 * steps * 7, "{bytes} bytes, {steps} steps");
}

#[test]
fn encoded_workload_runs_like_the_original() {
    let crowd = Crowd { kind: Kind::Madvise, processes: 2, threads: 2, iterations: 20, seed: 1 };
    let round = include_str!("../../../sim/tests/round.toml");
    let machine = Machine::from_toml(round).unwrap().with_cpus(4).unwrap();
    let outcome = |workload: Rc<dyn Workload>| {
        let run = run(machine.clone(), Settings::DEFAULT, workload, Linux70::uncounted).unwrap();
        (run.time, run.iterations, run.counts)
    };
    let encoded = Encoded::new(encode(&crowd).bytes().to_vec()).unwrap();
    assert_eq!(encoded.name(), crowd.name());
    assert_eq!(outcome(Rc::new(encoded)), outcome(Rc::new(crowd)));
}
