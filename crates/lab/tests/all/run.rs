//! `shootdown run`: its rows in each format, its options, and its errors.

use std::path::Path;
use std::process::Output;

use crate::common::{BAD_INPUT, assert_error, command, text};

const SOURCE: &str = "parameter pages = 4
thread main { spawn worker * 2\n join }
thread worker {
    map m pages
    time {
        repeat 10 {
            write m
            discard m
            count
        }
    }
}
";

/// Runs the command in a directory with a workload file.
fn run_in(directory: &Path, arguments: &[&str]) -> Output {
    std::fs::write(directory.join("two.workload"), SOURCE).expect("a file");
    let mut command = command();
    let command = command.arg("run").args(arguments).current_dir(directory);
    command.output().expect("the command runs")
}

fn run(arguments: &[&str]) -> Output {
    run_in(tempfile::tempdir().expect("a directory").path(), arguments)
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let output = run(arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn json_has_the_documented_keys() {
    let found = json(&["two.workload", "--cpus", "2,4", "--seeds", "3", "--format", "json"]);
    let rows = found["rows"].as_array().expect("rows");
    assert_eq!((found.as_object().expect("an object").len(), rows.len()), (1, 2 * 2 * 3));
    let keys = |value: &serde_json::Value| {
        let mut keys: Vec<_> = value.as_object().expect("an object").keys().cloned().collect();
        keys.sort_unstable();
        keys.join(" ")
    };
    for row in rows {
        assert_eq!(
            keys(row),
            "bound cpus design flushes_full flushes_ranged hottest interrupts \
             interrupts_early interrupts_in_vain interrupts_touched_1gib \
             interrupts_touched_2mib interrupts_touched_512gib interrupts_useful \
             late_page_ns line_wait_ns machine operations pages_discarded_in_place \
             pages_predicted pages_predicted_in_vain pages_reclaimable_max pass_max_ns \
             pass_p50_ns pass_p99_ns preemption_checks preemptions replica_link_faults \
             replica_links replica_tables requests seed switches time_by_cause \
             time_error_percent time_ns violations workload"
        );
        assert_eq!(
            keys(&row["time_by_cause"]),
            "flush_wait_ns idle_ns interrupts_ns invalidations_ns kernel_ns lock_wait_ns \
             refills_ns user_ns"
        );
        for hottest in row["hottest"].as_array().expect("an array") {
            assert_eq!(keys(hottest), "line_wait_ns lock_wait_ns lock_waits name transfers");
        }
        let number = |key: &str| row[key].as_u64().expect("a number");
        let bound = number("interrupts_useful") + number("interrupts_early");
        assert_eq!(number("bound"), bound);
        assert_eq!(number("interrupts"), bound + number("interrupts_in_vain"));
        assert_eq!((&row["workload"], &row["operations"]), (&"two".into(), &20.into()));
        assert_eq!(row["machine"], "xeon-2s");
    }
    assert_eq!(rows[3]["design"], "shootdown");
    assert_eq!((&rows[6]["cpus"], &rows[8]["seed"]), (&4.into(), &3.into()));
}

#[test]
fn options_set_parameters_and_numbers_of_machine() {
    let time = |set: &[&str]| {
        let options = ["two.workload", "--cpus", "2", "--designs", "linux-7.0", "--format", "json"];
        json(&[&options, set].concat())["rows"][0]["time_ns"].as_u64().expect("a number")
    };
    let normal = time(&[]);
    assert!(time(&["--set", "pages=40"]) > 2 * normal);
    assert!(time(&["--set", "kernel.fault_ns=400000", "--set", "pages=1"]) > 10 * normal);
    assert_eq!(time(&["--set", "pages=2 * cpus"]), normal);
}

#[test]
fn text_and_csv_have_a_line_for_each_design() {
    let output = text(&run(&["two.workload", "--cpus", "4"]).stdout);
    assert!(output.lines().filter(|line| line.starts_with("two  ")).count() >= 4, "{output}");
    assert!(output.contains("kernel lines") && output.contains("hottest lines"), "{output}");
    let output = text(&run(&["two.workload", "--cpus", "4", "--format", "csv"]).stdout);
    let columns: Vec<_> = output.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(columns, [44; 3], "{output}");
}

#[test]
fn page_has_a_plot_over_cpus_and_the_text() {
    let directory = tempfile::tempdir().expect("a directory");
    let output =
        run_in(directory.path(), &["two.workload", "--cpus", "2,4,8", "--report", "page.html"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = std::fs::read_to_string(directory.path().join("page.html")).expect("a page");
    assert_eq!(page.matches("<svg ").count(), 2);
    // Two designs on three numbers of CPUs.
    assert!(page.matches("<circle ").count() >= 6, "{page}");
    assert!(page.contains("        repeat 10 {\n") && page.contains("linux-7.0"));
}

#[test]
fn list_has_every_workload() {
    let output = text(&run(&[]).stdout);
    for name in [
        "arena-per-thread",
        "madvise-server",
        "fork-server",
        "garbage-collector",
        "page-cache-scan",
        "page-cache-threads",
        "migration",
        "process-starts",
        "thread-starts",
        "page-discards",
        "file-discards",
        "fork-of-threads",
    ] {
        assert!(output.contains(name), "{output}");
    }
}

#[test]
fn mistake_is_shown_with_its_line_and_caret() {
    let directory = tempfile::tempdir().expect("a directory");
    for (source, cpus, expected) in [
        (
            "thread main {\n    slepp 1us\n}",
            "2",
            "error: bad.workload:2:5: `slepp` is not an operation\n\
             \x20 2 |     slepp 1us\n    |     ^\ntry:   use `sleep`\n",
        ),
        (
            "thread main {\n    pin 3\n}",
            "2",
            "error: bad.workload:2:5: there is no CPU 3: the machine has 2 (on 2 CPUs under \
             linux-7.0)\n  2 |     pin 3\n    |     ^\ntry:   use `cpus`, for example `pin index % \
             cpus`\n",
        ),
    ] {
        let path = directory.path().join("bad.workload");
        std::fs::write(path, source).expect("a file");
        let output = run_in(directory.path(), &["bad.workload", "--cpus", cpus]);
        assert_eq!(output.status.code(), Some(BAD_INPUT));
        assert_eq!(text(&output.stderr), expected);
    }
}

#[test]
fn bad_options_are_refused() {
    for (arguments, words) in [
        (&["no-such"][..], &["no-such", "fork-server"][..]),
        (&["two.workload", "--set", "pages"], &["--set pages", "KEY=VALUE"]),
        (&["two.workload", "--set", "page=1"], &["no parameter `page`", "`pages`"]),
        (&["two.workload", "--set", "pages=1us"], &["expected a number, found a time"]),
        (&["two.workload", "--set", "tlb.entrys=1"], &["tlb.entrys", "tlb.entries"]),
        (&["two.workload", "--set", "tlb.entries=x"], &["`x` is not a number"]),
        (&["two.workload", "--set", "tlb.entries=-1"], &["tlb.entries"]),
        (&["two.workload", "--cpus", "0"], &["--cpus", "0 CPUs"]),
        (&["two.workload", "--cpus", "5000"], &["--cpus", "5000 CPUs"]),
        (&["two.workload", "--designs", "solaris"], &["solaris", "linux-7.0"]),
        (&["two.workload", "--machine", "pdp-11"], &["pdp-11", "xeon-2s"]),
        (&["two.workload", "--designs", "linux-7.0-invlpgb"], &["broadcasts", "amd-invlpgb"]),
        (&["two.workload", "--set", "clock.ghz=4"], &["clock.ghz", "kernel.syscall_ns"]),
        (&["two.workload", "--report", "two.workload"], &["is also the input"]),
    ] {
        assert_error(&run(arguments), BAD_INPUT, words);
    }
}
