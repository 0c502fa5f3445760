//! Litmus tests whose verdicts are well known. Those that concern SC are from the RC11 paper, which
//! differs from C11 as of 2011 in `Z6.U` and `RWC` with fences.

use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};

use crate::model::{
    Access, Execution, Name, Program, Step, add, compare_exchange, enumerate, fence, load, store,
    swap,
};

/// A test: its threads, the values that make up its outcome, and its verdict. A value is that of a
/// load, or the last one of a location.
struct Litmus {
    name: Name,
    threads: Vec<Vec<Step>>,
    outcome: &'static [(Name, u64)],
    is_allowed: bool,
}

impl Litmus {
    fn program(&self) -> Program {
        let names = ["P0", "P1", "P2", "P3"];
        Program::new(&[], names.into_iter().zip(self.threads.clone()).collect())
    }

    fn has_outcome(&self, execution: &Execution) -> bool {
        self.outcome.iter().all(|&(name, expected)| {
            execution.value(name).or_else(|| execution.last(name)) == Some(expected)
        })
    }
}

fn allowed(name: Name, outcome: &'static [(Name, u64)], threads: Vec<Vec<Step>>) -> Litmus {
    Litmus { name, threads, outcome, is_allowed: true }
}

fn forbidden(name: Name, outcome: &'static [(Name, u64)], threads: Vec<Vec<Step>>) -> Litmus {
    Litmus { is_allowed: false, ..allowed(name, outcome, threads) }
}

fn w(at: Name, value: u64, ordering: Ordering) -> Step {
    store(at, value, ordering)
}

fn r(name: Name, at: Name, ordering: Ordering) -> Step {
    load(at, ordering).named(name)
}

fn f(ordering: Ordering) -> Step {
    fence(ordering)
}

fn store_buffering() -> Vec<Litmus> {
    const BOTH_OLD: &[(Name, u64)] = &[("a", 0), ("b", 0)];
    let sb = |store, load| {
        vec![vec![w("x", 1, store), r("a", "y", load)], vec![w("y", 1, store), r("b", "x", load)]]
    };
    let fenced = |[one, two]: [Option<Ordering>; 2]| {
        let mut threads = sb(Relaxed, Relaxed);
        one.into_iter().for_each(|ordering| threads[0].insert(1, f(ordering)));
        two.into_iter().for_each(|ordering| threads[1].insert(1, f(ordering)));
        threads
    };
    vec![
        allowed("SB", BOTH_OLD, sb(Relaxed, Relaxed)),
        allowed("SB, release and acquire", BOTH_OLD, sb(Release, Acquire)),
        forbidden("SB, sc accesses", BOTH_OLD, sb(SeqCst, SeqCst)),
        forbidden("SB, sc fences", BOTH_OLD, fenced([Some(SeqCst); 2])),
        allowed("SB, one sc fence", BOTH_OLD, fenced([Some(SeqCst), None])),
        allowed("SB, weaker fences", BOTH_OLD, fenced([Some(AcqRel); 2])),
    ]
}

fn message_passing() -> Vec<Litmus> {
    const STALE: &[(Name, u64)] = &[("a", 1), ("b", 0)];
    let mp = |store, load| {
        vec![
            vec![w("x", 1, Relaxed), w("y", 1, store)],
            vec![r("a", "y", load), r("b", "x", Relaxed)],
        ]
    };
    let mut fenced = mp(Relaxed, Relaxed);
    fenced[0].insert(1, f(Release));
    fenced[1].insert(1, f(Acquire));
    // The third thread's store or read-modify-write comes between the release and the acquire.
    let passed_on = |middle: Vec<Step>| {
        vec![
            vec![w("x", 1, Relaxed), w("y", 1, Release)],
            middle,
            vec![r("a", "y", Acquire), r("b", "x", Relaxed)],
        ]
    };
    const PASSED_ON: &[(Name, u64)] = &[("m", 1), ("a", 2), ("b", 0)];
    let second_store = vec![
        vec![w("x", 1, Relaxed), w("y", 1, Release), w("y", 2, Relaxed)],
        vec![r("a", "y", Acquire), r("b", "x", Relaxed)],
    ];
    vec![
        allowed("MP", STALE, mp(Relaxed, Relaxed)),
        forbidden("MP, release and acquire", STALE, mp(Release, Acquire)),
        allowed("MP, release alone", STALE, mp(Release, Relaxed)),
        allowed("MP, acquire alone", STALE, mp(Relaxed, Acquire)),
        forbidden("MP, fences", STALE, fenced),
        forbidden(
            "MP, release sequence",
            PASSED_ON,
            passed_on(vec![add("y", 1, Relaxed).named("m")]),
        ),
        forbidden("MP, swap", PASSED_ON, passed_on(vec![swap("y", 2, Relaxed).named("m")])),
        allowed(
            "MP, a store ends the release sequence",
            PASSED_ON,
            passed_on(vec![r("m", "y", Relaxed), w("y", 2, Relaxed)]),
        ),
        // C++20 (P0982). C++11 forbids it.
        allowed("MP, a store of the same thread", &[("a", 2), ("b", 0)], second_store),
    ]
}

fn coherence() -> Vec<Litmus> {
    vec![
        forbidden(
            "CoRR",
            &[("a", 1), ("b", 0)],
            vec![vec![w("x", 1, Relaxed)], vec![r("a", "x", Relaxed), r("b", "x", Relaxed)]],
        ),
        forbidden("CoWW", &[("x", 1)], vec![vec![w("x", 1, Relaxed), w("x", 2, Relaxed)]]),
        forbidden("CoRW1", &[("a", 1)], vec![vec![r("a", "x", Relaxed), w("x", 1, Relaxed)]]),
        forbidden(
            "CoRW2",
            &[("a", 2), ("x", 2)],
            vec![vec![r("a", "x", Relaxed), w("x", 1, Relaxed)], vec![w("x", 2, Relaxed)]],
        ),
        forbidden(
            "CoWR",
            &[("a", 2), ("x", 1)],
            vec![vec![w("x", 1, Relaxed), r("a", "x", Relaxed)], vec![w("x", 2, Relaxed)]],
        ),
        forbidden(
            "two additions read the same value",
            &[("a", 0), ("b", 0)],
            vec![vec![add("x", 1, Relaxed).named("a")], vec![add("x", 1, Relaxed).named("b")]],
        ),
        forbidden(
            "two exchanges succeed",
            &[("a", 0), ("b", 0)],
            vec![
                vec![compare_exchange("x", 0, 1, Relaxed).named("a")],
                vec![compare_exchange("x", 0, 2, Relaxed).named("b")],
            ],
        ),
        forbidden(
            "a store between an addition and its source",
            &[("a", 0), ("x", 1)],
            vec![vec![add("x", 1, Relaxed).named("a")], vec![w("x", 2, Relaxed)]],
        ),
    ]
}

/// Tests of two threads and two locations in which the order of modification matters; and LB.
fn orders_of_modification() -> Vec<Litmus> {
    let lb = |load, store| {
        vec![vec![r("a", "x", load), w("y", 1, store)], vec![r("b", "y", load), w("x", 1, store)]]
    };
    let two_writes = |ordering, fences: Option<Ordering>| {
        let thread = |first, second| {
            let fence = fences.map(f).into_iter();
            [w(first, 1, ordering)]
                .into_iter()
                .chain(fence)
                .chain([w(second, 2, ordering)])
                .collect()
        };
        vec![thread("x", "y"), thread("y", "x")]
    };
    let s = |store, load| {
        vec![
            vec![w("x", 2, Relaxed), w("y", 1, store)],
            vec![r("a", "y", load).only_if(&[1]), w("x", 1, Relaxed)],
        ]
    };
    let shape_r = |fences: Option<Ordering>| {
        let fence = || fences.map(f).into_iter();
        let one = [w("x", 1, Relaxed)].into_iter().chain(fence()).chain([w("y", 1, Release)]);
        let two = [w("y", 2, Relaxed)].into_iter().chain(fence()).chain([r("a", "x", Acquire)]);
        vec![one.collect(), two.collect()]
    };
    const FIRST_ONES: &[(Name, u64)] = &[("x", 1), ("y", 1)];
    vec![
        forbidden("LB", &[("a", 1), ("b", 1)], lb(Relaxed, Relaxed)),
        forbidden("LB, acquire and release", &[("a", 1), ("b", 1)], lb(Acquire, Release)),
        allowed("2+2W", FIRST_ONES, two_writes(Relaxed, None)),
        allowed("2+2W, release", FIRST_ONES, two_writes(Release, None)),
        forbidden("2+2W, sc fences", FIRST_ONES, two_writes(Relaxed, Some(SeqCst))),
        forbidden("2+2W, sc accesses", FIRST_ONES, two_writes(SeqCst, None)),
        allowed("S", &[("a", 1), ("x", 2)], s(Relaxed, Relaxed)),
        forbidden("S, release and acquire", &[("a", 1), ("x", 2)], s(Release, Acquire)),
        allowed("R, release and acquire", &[("a", 0), ("y", 2)], shape_r(None)),
        forbidden("R, sc fences", &[("a", 0), ("y", 2)], shape_r(Some(SeqCst))),
    ]
}

/// Tests of three and four threads.
fn causality() -> Vec<Litmus> {
    let iriw = |store, load, fences: Option<Ordering>| {
        let reader = |[one, two]: [(Name, Name); 2]| -> Vec<Step> {
            let fence = fences.map(f).into_iter();
            [r(one.0, one.1, load)]
                .into_iter()
                .chain(fence)
                .chain([r(two.0, two.1, load)])
                .collect()
        };
        let readers = [reader([("a", "x"), ("b", "y")]), reader([("c", "y"), ("d", "x")])];
        let writers = [vec![w("x", 1, store)], vec![w("y", 1, store)]];
        writers.into_iter().chain(readers).collect::<Vec<_>>()
    };
    const DISAGREE: &[(Name, u64)] = &[("a", 1), ("b", 0), ("c", 1), ("d", 0)];
    let wrc = |store, load| {
        vec![
            vec![w("x", 1, Relaxed)],
            vec![r("a", "x", load), w("y", 1, store)],
            vec![r("b", "y", load), r("c", "x", Relaxed)],
        ]
    };
    const NOT_CAUSAL: &[(Name, u64)] = &[("a", 1), ("b", 1), ("c", 0)];
    let isa2 = |middle| {
        vec![
            vec![w("x", 1, Relaxed), w("y", 1, Release)],
            vec![r("a", "y", middle), w("z", 1, Release)],
            vec![r("b", "z", Acquire), r("c", "x", Relaxed)],
        ]
    };
    let rwc = |fences: Option<Ordering>| {
        let fence = || fences.map(f).into_iter();
        let reader =
            [r("a", "x", Acquire)].into_iter().chain(fence()).chain([r("b", "y", Acquire)]);
        let writer = [w("y", 1, Release)].into_iter().chain(fence()).chain([r("c", "x", Acquire)]);
        vec![vec![w("x", 1, Release)], reader.collect(), writer.collect()]
    };
    let z6u = |fences: Option<Ordering>| {
        let fence = || fences.map(f).into_iter();
        let one = [w("x", 1, SeqCst)].into_iter().chain(fence()).chain([w("y", 1, Release)]);
        let two = [add("y", 1, SeqCst).named("b"), r("c", "y", Relaxed)];
        let three = [w("y", 3, SeqCst)].into_iter().chain(fence()).chain([r("a", "x", SeqCst)]);
        vec![one.collect(), two.to_vec(), three.collect()]
    };
    const Z6U: &[(Name, u64)] = &[("a", 0), ("b", 1), ("c", 3)];
    vec![
        allowed("IRIW, acquire", DISAGREE, iriw(Release, Acquire, None)),
        forbidden("IRIW, sc fences", DISAGREE, iriw(Relaxed, Relaxed, Some(SeqCst))),
        forbidden("IRIW, sc accesses", DISAGREE, iriw(SeqCst, SeqCst, None)),
        allowed("WRC", NOT_CAUSAL, wrc(Relaxed, Relaxed)),
        allowed("WRC, the first store relaxed", NOT_CAUSAL, wrc(Relaxed, Acquire)),
        forbidden("WRC, release and acquire", NOT_CAUSAL, wrc(Release, Acquire)),
        allowed("ISA2, one load relaxed", NOT_CAUSAL, isa2(Relaxed)),
        forbidden("ISA2, release and acquire", NOT_CAUSAL, isa2(Acquire)),
        allowed("RWC", &[("a", 1), ("b", 0), ("c", 0)], rwc(None)),
        forbidden("RWC, sc fences", &[("a", 1), ("b", 0), ("c", 0)], rwc(Some(SeqCst))),
        allowed("Z6.U", Z6U, z6u(None)),
        forbidden("Z6.U, sc fences", Z6U, z6u(Some(SeqCst))),
    ]
}

#[test]
fn model_agrees_with_known_verdicts() {
    let tests =
        [store_buffering(), message_passing(), coherence(), orders_of_modification(), causality()];
    let mut failed = Vec::new();
    for test in tests.iter().flatten() {
        let found = enumerate(&test.program(), |execution| test.has_outcome(execution));
        let verdict = if found.is_allowed() { "allowed" } else { "forbidden" };
        println!("{:<44} {verdict:<10} {:>4} executions", test.name, found.executions);
        if found.is_allowed() != test.is_allowed {
            found.witness.iter().for_each(|witness| println!("{witness}"));
            failed.push(test.name);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn plain_accesses_race_unless_ordered() {
    for (store_order, load_order, races) in
        [(Release, Acquire, false), (Release, Relaxed, true), (Relaxed, Acquire, true)]
    {
        let writer = vec![store("x", 1, Access::Plain), store("y", 1, store_order)];
        let reader = vec![load("y", load_order).only_if(&[1]), load("x", Access::Plain)];
        let program = Program::new(&[], vec![("writer", writer), ("reader", reader)]);
        let found = enumerate(&program, Execution::has_race);
        assert_eq!(found.is_allowed(), races, "{store_order:?} {load_order:?}");
    }
}

/// Two threads, each with a load and then an addition: a load observes any prefix of the two
/// additions.
#[test]
fn executions_are_counted_once() {
    let thread = |name| (name, vec![load("x", Relaxed), add("x", 1, Relaxed)]);
    let found = enumerate(&Program::new(&[], vec![thread("P0"), thread("P1")]), |_| true);
    // The first thread to add has loaded 0 before. The other thread loads 0 or 1.
    assert_eq!((found.executions, found.with_outcome), (4, 4));
}
