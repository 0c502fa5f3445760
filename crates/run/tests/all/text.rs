//! Workloads as text: the meaning of statements, errors with positions, and the examples.

use shootdown_designs::Design;
use shootdown_run::text::{Cell, CellError, Grid, Position, Row, Text};
use shootdown_sim::{Cause, Machine};

pub(crate) fn machine(cpus: usize) -> Machine {
    let round = include_str!("../../../sim/tests/round.toml");
    Machine::from_toml(round).unwrap().with_cpus(cpus).unwrap()
}

pub(crate) fn text(source: &str) -> Text {
    Text::parse("test", source).unwrap_or_else(|error| panic!("{source}: {error}"))
}

pub(crate) fn run(
    text: &Text,
    cpus: usize,
    design: Design,
    seed: u64,
) -> Result<Vec<Row>, CellError> {
    let machine = machine(cpus);
    Cell { workload: text, machine: &machine, design, seed }.run()
}

/// Runs a text on two CPUs, and returns its rows.
pub(crate) fn rows(source: &str) -> Vec<Row> {
    run(&text(source), 2, Design::SHOOTDOWN, 1).unwrap_or_else(|error| panic!("{source}: {error}"))
}

/// Returns the time of a text with one interval, in microseconds, rounded to the nearest.
fn us(source: &str) -> u64 {
    let rows = rows(source);
    assert_eq!(rows.len(), 1, "{rows:?}");
    (rows[0].time_ns + 500) / 1000
}

#[test]
fn interval_is_open_while_any_thread_is_in_it() {
    assert_eq!(us("thread main { time { compute 30us } }"), 30);
    assert_eq!(us("thread main { repeat 3 { time { compute 10us }\n compute 50us } }"), 30);
    let two = "thread main { spawn worker * 2\n join }
               thread worker { pin index\n compute 10us * index\n time { compute 30us } }";
    assert!((40..45).contains(&us(two)), "one begins 10 µs after the other: {}", us(two));
}

#[test]
fn whole_run_is_measured_without_interval() {
    let rows = rows("thread main { compute 20us\n count 3\n count }");
    assert_eq!((rows.len(), rows[0].workload.as_str(), rows[0].operations), (1, "test", 4));
    assert!((20_000..30_000).contains(&rows[0].time_ns), "{rows:?}");
}

#[test]
fn named_intervals_are_rows_with_own_counts() {
    let rows = rows(
        "thread main {
            time first { compute 10us }
            time second { compute 20us\n count 5 }
        }",
    );
    let found: Vec<_> = rows
        .iter()
        .map(|row| (row.workload.as_str(), row.time_ns / 1000, row.operations))
        .collect();
    assert_eq!(found, [("test/first", 10, 0), ("test/second", 20, 5)]);
    // Two CPUs, of which one computes.
    assert_eq!(rows[1].time_by_cause.total().ns(), 2 * rows[1].time_ns);
    assert_eq!(rows[1].time_by_cause[Cause::Idle].ns(), rows[1].time_ns);
}

#[test]
fn operations_count_for_intervals_of_their_thread() {
    let rows = rows(
        "thread main { time outer { spawn worker\n spawn other\n join }\n time last { count 10 } }
         thread worker { time inner { count 1 } }
         thread other { count 100 }",
    );
    let found: Vec<_> = rows.iter().map(|row| (row.workload.as_str(), row.operations)).collect();
    assert_eq!(found[0], ("test/outer", 100));
    assert_eq!(found[1], ("test/last", 10));
    assert!(matches!(found[2], ("test/inner", 1 | 101)), "{found:?}");
}

#[test]
fn loops_and_choices_do_as_they_say() {
    let body = "let sum = 0
        for i in 2..11 step 4 { let sum = sum + i }
        repeat 2 { if sum == 18 and not (sum < 18) { compute 10us } else { compute 100us } }
        if sum % 5 == 2 { compute 100us } else if sum - 17 == 1 { compute 1us } else { compute 7us }
        for i in 3..3 { compute 100us }
        choose {
            case 0 { compute 100us }
            case max(1, 2) { compute min(4us, 5us) }
        }";
    assert_eq!(us(&format!("thread main {{ time {{ {body} }} }}")), 25);
    assert!(
        (100..=110).contains(&us("thread main { time { repeat for 100us { compute 10us } } }"))
    );
}

#[test]
fn weights_decide_how_often_a_case_is_chosen() {
    let text =
        "thread main { repeat 1000 { choose { case 9 { count }\n case 1 { compute 1ns } } } }";
    let operations = rows(text)[0].operations;
    assert!((850..950).contains(&operations), "{operations}");
}

#[test]
fn random_numbers_follow_from_seed_and_not_from_design() {
    let text = text(
        "thread main { spawn worker * 3\n join }
         thread worker { map m 8
            repeat 20 { count random(1, 100)\n write m\n discard m } }",
    );
    let operations = |design, seed| run(&text, 2, design, seed).unwrap()[0].operations;
    let [ours, linux] = [Design::SHOOTDOWN, Design::LINUX_4_12].map(|it| operations(it, 7));
    assert_eq!(ours, linux);
    assert_ne!(ours, operations(Design::SHOOTDOWN, 8));
}

#[test]
fn barrier_releases_threads_together_in_each_round() {
    // The slowest of three threads takes 30 µs in each round, on CPUs of their own.
    let text = text(
        "thread main { spawn worker * 3\n join }
         thread worker {
            pin index
            barrier start 3
            time { repeat 4 { compute 10us * (index + 1)\n barrier step 3 } }
         }",
    );
    let time = run(&text, 3, Design::SHOOTDOWN, 1).unwrap()[0].time_ns;
    assert!((120_000..200_000).contains(&time), "{time}");
}

#[test]
fn wake_during_barrier_is_kept_for_block() {
    rows(
        "thread main { spawn sleeper\n compute 50us\n wake sleeper\n compute 50us
                       barrier both 2\n join }
         thread sleeper { barrier both 2\n block }",
    );
}

#[test]
fn started_thread_inherits_areas_and_variables() {
    let rows = rows(
        "parameter pages = 4
         thread main {
            map shared pages
            let rounds = 3
            spawn worker * 2
            fork worker
            join
         }
         thread worker {
            # Its own area of the same name does not replace the area of the others.
            if index == 1 { map shared 2 * pages }
            repeat rounds { write shared\n discard shared\n count }
         }",
    );
    assert_eq!((rows[0].operations, rows[0].violations), (9, 0));
}

#[test]
fn operations_of_memory_and_threads_run() {
    let rows = rows(
        "memory 64MiB reclaim
         nodes 2
         thread main {
            map a 16
            map b(1) 64KiB read private data
            map c 16 read shared data(3)
            write a[0..4]
            read b(1)[2]
            read c
            protect a[0] none
            protect a[0] read
            segfault a[0]
            protect a write
            move a to 1
            discard a[1..3]
            unmap c[0..8]
            lock big\n syscall\n unlock big
            yield
            sleep 1us
            fork child
            spawn other
            join child
            wake other
            join
         }
         thread child { exec\n map d 1\n write d }
         thread other { block\n unmap a }",
    );
    assert_eq!(rows[0].violations, 0);
    assert!(rows[0].flushes_full + rows[0].flushes_ranged >= 5, "{rows:?}");
}

#[test]
fn survived_faults_do_not_end_the_run() {
    let body = "map a 2\n unmap a\n read a\n count";
    let fatal = text(&format!("thread main {{ {body} }}"));
    assert!(run(&fatal, 2, Design::SHOOTDOWN, 1).is_err());
    assert_eq!(rows(&format!("survive_faults\nthread main {{ {body} }}"))[0].operations, 1);
}

#[test]
fn mistakes_are_reported_at_their_position() {
    for (source, line, column, cause) in [
        ("thread main {\n  raed heap\n}", 2, 3, "`raed` is not an operation"),
        ("thread main {\n  while 1 {\n}", 2, 3, "`while` is not an operation"),
        ("thread main {\n  read heap\n}", 2, 8, "no thread maps `heap`"),
        ("thread main {\n  compute 4\n}", 2, 11, "expected a time, found a number"),
        ("thread main { map a 1us }", 1, 21, "expected a size, found a time"),
        ("thread main { compute 1us + 4KiB }", 1, 27, "`+` of a time and a size"),
        ("thread main { compute n * 1us }", 1, 23, "`n` is not a variable"),
        ("thread main { spawn worker }", 1, 21, "there is no thread `worker`"),
        ("thread main { yield }\nthread spare { yield }", 2, 1, "nothing starts the thread"),
        ("thread worker { spawn worker }", 1, 1, "there is no thread `main`"),
        ("parameter n = 1\nthread main { yield }", 1, 11, "nothing uses the parameter `n`"),
        ("thread main {\n repeat 3 {\n", 2, 12, "expected `}`"),
        ("thread main { yield yield }", 1, 21, "expected the end of the line"),
        ("thread main { let cpus = 1 }", 1, 19, "`cpus` is a name of the language"),
        ("thread main { yield }\nthread main { yield }", 2, 1, "two threads `main`"),
        ("memory random(4)\nthread main { yield }", 1, 8, "needed before the run"),
        ("thread main { map a 1\n move a to 0 }", 2, 2, "can be moved only if"),
        ("thread main { map a 1 shared f\n page_out a }", 2, 2, "written out only if"),
        ("nodes 2\nthread main { map a 1 }", 1, 1, "`nodes` has no effect"),
        ("memory 1GiB\nnodes 2\nthread main { map a 1 }", 2, 1, "`nodes` has no effect"),
        ("thread main { join }", 1, 15, "`main` does not start a thread"),
        (
            "thread main { spawn a\n spawn b }\nthread a { yield }\nthread b { join a }",
            4,
            12,
            "`b` does not start the thread `a`",
        ),
        ("survive_faults\nsurvive_faults\nthread main { yield }", 2, 1, "declared twice"),
        ("thread main { choose { } }", 1, 15, "nothing to choose"),
        ("yield", 1, 1, "`yield` is not a declaration"),
        ("", 1, 1, "there is no thread `main`"),
    ] {
        let error = Text::parse("test", source).expect_err(source);
        assert_eq!(error.at, Position { line, column }, "{source}: {error}");
        assert!(error.cause.contains(cause), "{source}: {error}");
        assert!(!error.remedy.is_empty());
    }
    let deep = format!("thread main {{ compute {}1us{} }}", "(".repeat(5000), ")".repeat(5000));
    assert!(Text::parse("test", &deep).unwrap_err().cause.contains("nested deeper"));
}

#[test]
fn failing_statement_is_reported_at_its_position() {
    for (body, line, cause) in [
        ("map a 4\n write a[4]", 2, "`a` has pages 0 to 3"),
        ("map a 4\n write a[2..2]", 2, "`a` has pages 0 to 3"),
        ("map a cpus - 2", 1, "the area has no pages"),
        ("map a cpus - 3", 1, "is negative"),
        ("compute 1us / (cpus - 2)", 1, "division by 0"),
        ("if cpus > 2 { let n = 1 }\n count n", 2, "`n` has no value here"),
        ("pin cpus", 1, "there is no CPU 2"),
        ("unlock big", 1, "lock 0 is not held"),
        ("block", 1, "none can wake another"),
        ("barrier all 2", 1, "none can wake another"),
        ("barrier all 0", 1, "the barrier is for 0 threads"),
        ("map a 4 read\n write a", 2, "thread `main(0)`: "),
        ("repeat for 1ms { let n = 1 }", 1, "does nothing that takes time"),
        ("count random(0)", 1, "there is no number from 0 on and below 0"),
        ("wake main(3)", 1, "no thread `main(3)` was started"),
        ("spawn main * 2", 1, "4098 threads exist, and a run has room for no more"),
        ("spawn main", 1, "the run starts more than 1048576 threads"),
    ] {
        let error = run(&text(&format!("thread main {{ {body} }}")), 2, Design::SHOOTDOWN, 1);
        let Err(CellError::Text(error)) = error else { panic!("{body}: {error:?}") };
        assert_eq!(error.at.line, line, "{body}: {error}");
        assert!(error.cause.contains(cause), "{body}: {error}");
    }
}

#[test]
fn remedy_names_what_the_text_lacks() {
    let remedy = |source: &str| match Text::parse("test", source) {
        Err(error) => error.remedy,
        Ok(text) => match run(&text, 2, Design::SHOOTDOWN, 1) {
            Err(CellError::Text(error)) => error.remedy,
            other => panic!("{source}: {other:?}"),
        },
    };
    let full = remedy("memory 1MiB\nthread main { map a 2MiB\n write a }");
    assert!(full.contains("`memory SIZE`") && full.contains("reclaim"), "{full}");
    let looping = remedy("thread main { while 1 { } }");
    assert!(looping.contains("`repeat N {`") && !looping.contains("write"), "{looping}");
    assert_eq!(remedy("thread main { raed a }"), "use `read`");
    assert_eq!(remedy("thread main { survivefaults }").find("use one of `map`"), Some(0));
}

#[test]
fn pass_of_each_thread_through_interval_is_measured() {
    let row = rows(
        "thread main { spawn worker * 100\n join }
         thread worker { lock one\n time { if index == 7 { compute 90us } else { compute 10us } }
            unlock one }",
    )
    .remove(0);
    let near = |ns: u64, us: u64| ns.abs_diff(us * 1000) < us * 10;
    assert!(near(row.pass_p50_ns, 10) && near(row.pass_p99_ns, 10), "{row:?}");
    assert!(near(row.pass_max_ns, 90), "{row:?}");
    assert_eq!(rows("thread main { compute 1us }")[0].pass_max_ns, 0);
}

#[test]
fn pages_of_one_call_are_flushed_together() {
    let flushes = |discards: &str| {
        let source = format!(
            "thread main {{ map a 16\n spawn other\n block\n write a\n time {{ {discards} }} }}
             thread other {{ pin 1\n read a\n wake main\n compute 200us }}"
        );
        let row = run(&text(&source), 2, Design::LINUX_6_12, 1).unwrap().remove(0);
        (row.requests, row.violations)
    };
    assert_eq!(flushes("for page in 0..16 step 2 { discard a[page] }"), (8, 0));
    assert_eq!(flushes("discard a step 2"), (1, 0));
    assert_eq!(flushes("discard a[3..4] step 1"), (1, 0));
    assert_eq!(flushes("offer a"), (1, 0));
    // A part of the area is a large page then.
    let large = "map b 4MiB\n write b\n collapse b\n write b\n discard b[0..512]\n unmap b";
    assert_eq!(flushes(large).1, 0);
}

#[test]
fn stopped_cpu_runs_nothing_until_its_return() {
    let source = "thread main { spawn worker\n compute 20us\n stop 1 for 1ms\n join }
         thread worker { pin 1\n time { compute 100us } }";
    assert_eq!((us(source) + 50) / 100, 11);
}

/// Other threads read a page that all share, and never the discarded ones.
#[test]
fn discards_of_own_pages_interrupt_no_cpu_under_abis() {
    let source = "thread main { map common 1\n write common\n spawn worker * cpus\n join }
         thread worker { pin index\n map own 8\n repeat 20 { write own\n read common
            compute 5us\n discard own } }";
    let interrupts = |design| {
        let row = run(&text(source), 4, design, 1).unwrap().remove(0);
        assert_eq!(row.violations, 0, "{design}");
        row.interrupts
    };
    assert_eq!(interrupts(Design::ABIS), 3, "those of the exit");
    assert!(interrupts(Design::LINUX_4_12) > 100);
}

#[test]
fn cpu_stops_one_before_it() {
    let source = "thread main { pin 2\n spawn worker\n repeat 3 { stop 1 for 1ms\n compute 2ms }
            join }
         thread worker { pin 1\n time { compute 100us\n sleep 3ms\n compute 100us } }";
    let row = run(&text(source), 3, Design::SHOOTDOWN, 1).unwrap().remove(0);
    assert!(row.time_ns > 3_200_000, "{}", row.time_ns);
}

#[test]
fn paravirtual_flush_does_not_wait_for_stopped_cpu() {
    let source = "thread main { map a 1\n write a\n spawn reader\n compute 50us\n stop 1 for 1ms
            compute 10us\n time { discard a }\n join }
         thread reader { pin 1\n repeat 20 { read a\n compute 10us } }";
    let wait = |design| {
        let row = run(&text(source), 2, design, 1).unwrap().remove(0);
        assert_eq!(row.violations, 0, "{design}");
        row.time_ns / 1000
    };
    assert!(wait(Design::LINUX_7_0) > 900 && wait(Design::LINUX_7_0_PV) < 20);
    assert!(wait(Design::SHOOTDOWN) < 20);
}

#[test]
fn sender_waits_for_room_in_the_buffer() {
    let source = |kind: &str| {
        format!(
            "{kind} box 8
             thread main {{ spawn sender\n pin 0\n compute 50us
                repeat 20 {{ receive box\n compute 10us\n count }}\n join }}
             thread sender {{ pin 1\n repeat 8 {{ send box }}\n time {{ send box }}
                repeat 11 {{ send box }} }}"
        )
    };
    // The ninth message waits for room: in a pipe, for one place; in a socket, for six.
    let sent = |kind| run(&text(&source(kind)), 2, Design::SHOOTDOWN, 1).unwrap()[0].operations;
    assert!(sent("pipe") < 2 && (5..7).contains(&sent("socket")), "{}", sent("socket"));
    for (body, cause) in [("send box", "there is no pipe `box`"), ("receive x", "no pipe `x`")] {
        let error = Text::parse("test", &format!("thread main {{ {body} }}")).unwrap_err();
        assert!(error.cause.contains(cause), "{error}");
    }
    let bad = text("pipe box 0\nthread main { send box }");
    assert!(run(&bad, 2, Design::SHOOTDOWN, 1).is_err());
}

#[test]
fn seeds_after_the_first_have_jitter() {
    let text = text("thread main { time { repeat 100 { compute 1us\n syscall } } }");
    let time = |seed| run(&text, 2, Design::SHOOTDOWN, seed).unwrap()[0].time_ns;
    let (exact, near) = (time(1), time(2));
    assert!(exact != near && near != time(3), "{exact} {near}");
    assert_eq!(near, time(2), "the same seed, the same time");
    let machine = machine(2);
    let cell = Cell { workload: &text, machine: &machine, design: Design::SHOOTDOWN, seed: 2 };
    assert_eq!(cell.run_exactly().unwrap()[0].time_ns, exact);
    assert!(near.abs_diff(exact) < exact / 100, "the mean of costs stays: {exact} {near}");
}

#[test]
fn hottest_line_of_discards_is_the_area_lock() {
    let text = text(include_str!("../../../../workloads/page-discards.workload"));
    let machine = Machine::from_toml(include_str!("../../../../machines/amd-invlpgb.toml"));
    let machine = machine.unwrap().with_cpus(36).unwrap();
    let design = Design::LINUX_INVLPGB;
    let row = Cell { workload: &text, machine: &machine, design, seed: 1 }.run().unwrap().remove(0);
    let hottest = &row.hottest[0];
    assert_eq!(hottest.name, "lock of an area", "{:?}", row.hottest);
    let kernel = row.time_by_cause[Cause::Kernel].ns();
    assert!(row.line_wait_ns > kernel / 2 && row.line_wait_ns < kernel, "{row:?}");
    assert!(hottest.line_wait.ns() > row.line_wait_ns / 2 && hottest.transfers > 0);
}

#[test]
fn parameter_takes_values_of_its_quantity_alone() {
    let mut text = text("parameter pause = 10us\nthread main { time { compute pause } }");
    let us = |text: &Text| run(text, 2, Design::SHOOTDOWN, 1).unwrap()[0].time_ns / 1000;
    assert_eq!(us(&text), 10);
    text.set("pause", "cpus * 15us").unwrap();
    assert_eq!(us(&text), 30);
    for (name, value) in
        [("pause", "30"), ("pause", "4KiB"), ("paus", "1us"), ("pause", "x"), ("pause", "1us }")]
    {
        assert!(text.clone().set(name, value).is_err(), "{name} = {value}");
    }
}

#[test]
fn grid_has_same_rows_on_any_number_of_host_cpus() {
    let text = text(include_str!("../../../../workloads/madvise-server.workload"));
    let designs = vec![Design::LINUX_7_0, Design::SHOOTDOWN];
    let grid = Grid::new(text, &machine(4), &[2, 4], designs, vec![1, 2]).unwrap();
    let rows = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| grid.run(|| ())).unwrap()
    };
    let (one, three) = (rows(1), rows(3));
    assert_eq!(one, three);
    let order: Vec<_> = one.iter().map(|row| (row.cpus, row.design, row.seed)).collect();
    assert_eq!(order[..3], [(2, "linux-7.0", 1), (2, "linux-7.0", 2), (2, "shootdown", 1)]);
    assert_eq!(order.len(), 8);
}

#[test]
fn examples_run_under_every_general_design() {
    for (name, source, parameters) in [
        (
            "madvise-server",
            include_str!("../../../../workloads/madvise-server.workload"),
            &["requests"],
        ),
        ("fork-server", include_str!("../../../../workloads/fork-server.workload"), &["requests"]),
        (
            "garbage-collector",
            include_str!("../../../../workloads/garbage-collector.workload"),
            &["cycles"],
        ),
        (
            "page-cache-scan",
            include_str!("../../../../workloads/page-cache-scan.workload"),
            &["readers"],
        ),
        (
            "page-cache-threads",
            include_str!("../../../../workloads/page-cache-threads.workload"),
            &["readers"],
        ),
        ("migration", include_str!("../../../../workloads/migration.workload"), &["rounds"]),
        (
            "process-starts",
            include_str!("../../../../workloads/process-starts.workload"),
            &["programs"],
        ),
        (
            "thread-starts",
            include_str!("../../../../workloads/thread-starts.workload"),
            &["workers"],
        ),
        ("page-discards", include_str!("../../../../workloads/page-discards.workload"), &["pages"]),
        ("file-discards", include_str!("../../../../workloads/file-discards.workload"), &["pages"]),
        (
            "fork-of-threads",
            include_str!("../../../../workloads/fork-of-threads.workload"),
            &["forks"],
        ),
    ] {
        let mut text = Text::parse(name, source).unwrap_or_else(|error| panic!("{name}: {error}"));
        for parameter in parameters {
            text.set(parameter, "2").unwrap();
        }
        for design in shootdown_designs::designs_for(shootdown_designs::Purpose::General) {
            let rows = run(&text, 3, design, 1).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(rows.iter().all(|row| row.time_ns > 0 && row.violations == 0), "{rows:?}");
            let flushes = |row: &Row| row.flushes_full + row.flushes_ranged;
            assert!(rows.iter().any(|row| row.operations > 0 && flushes(row) > 0), "{rows:?}");
        }
    }
}

/// Fails if pages do not wait for their flush: the numbers of interrupts are then about equal.
#[test]
fn clean_pages_are_flushed_by_few_interrupts_at_reuse() {
    let source = include_str!("../../../../workloads/page-cache-scan.workload");
    let text = Text::parse("page-cache-scan", source).unwrap();
    let sums = |design| {
        let rows = run(&text, 8, design, 1).unwrap();
        assert!(rows.iter().all(|row| row.violations == 0), "{rows:?}");
        rows.iter().map(|row| row.interrupts).sum::<u64>()
    };
    for (at_reuse, in_batches) in
        [(Design::SHOOTDOWN_REUSE, Design::SHOOTDOWN), (Design::LINUX_LUF, Design::LINUX_7_0)]
    {
        let [at_reuse, in_batches] = [at_reuse, in_batches].map(sums);
        assert!(0 < at_reuse && at_reuse * 2 < in_batches, "{at_reuse}, {in_batches}");
    }
}

#[test]
fn first_workload_of_the_book_runs() {
    let chapter = include_str!("../../../../docs/workloads.md");
    let blocks = chapter.split("```text\n").skip(1).filter_map(|rest| rest.split("```").next());
    let sources: Vec<_> = blocks.filter(|block| block.contains("thread main")).collect();
    // All threads count while the interval is open, for 10 ms and the last turn.
    let throughput = run(&text(sources[1]), 2, Design::LINUX_7_0, 1).unwrap();
    assert!((10_000..10_200).contains(&(throughput[0].time_ns / 1000)), "{throughput:?}");
    let source = sources[0];
    let mut text = text(source);
    text.set("workers", "cpus").unwrap();
    let rows = run(&text, 2, Design::LINUX_7_0, 1).unwrap();
    assert_eq!((rows.len(), rows[0].operations), (1, 200));
    assert!(rows[0].interrupts > 0);
    // The mistake that the chapter shows.
    let error = Text::parse("first", &source.replace("write buffer", "raed buffer")).unwrap_err();
    let shown = format!(
        "error: first.workload:{error}\n{}\ntry:   {}",
        error.excerpt(&source.replace("write buffer", "raed buffer")),
        error.remedy
    );
    assert!(chapter.contains(&shown), "{shown}");
}
