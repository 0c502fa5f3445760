//! The classes of interrupts.

use shootdown_designs::Design;
use shootdown_run::MemoryCosts;
use shootdown_run::text::{Cell, Row, Text};
use shootdown_sim::Machine;

fn row(source: &str, design: Design) -> Row {
    let round = include_str!("../../../sim/tests/round.toml");
    let machine = Machine::from_toml(round).unwrap().with_cpus(4).unwrap();
    let text = Text::parse("test", source).unwrap_or_else(|error| panic!("{source}: {error}"));
    let rows = Cell { workload: &text, machine: &machine, design, seed: 1 }.run().unwrap();
    let row = rows.into_iter().next().unwrap();
    let classes = row.classes;
    let sum = classes.interrupts_useful + classes.interrupts_early + classes.interrupts_in_vain;
    assert_eq!((sum, row.violations), (row.interrupts, 0), "{design}: {row:?}");
    row
}

/// Each thread discards pages that only it uses.
const OWN_PAGES: &str = "thread main { spawn worker * cpus\n join }
    thread worker { pin index\n map own 8\n
      repeat 40 { write own\n compute 2us\n discard own } }";

/// All threads read a page, and one of them changes its protection.
const SHARED_PAGE: &str = "thread main { map page 1\n map quiet 1\n write page\n read quiet\n
      spawn reader * (cpus - 1)\n pin 0\n
      repeat 20 { compute 20us\n protect page read\n protect page write\n write page } \n
      join }
    thread reader { pin index + 1\n read quiet\n repeat for 1ms { read page\n compute 500ns } }";

/// All threads have read a page, which one of them changes, and none reads it again.
const FORGOTTEN_PAGES: &str = "thread main { map pages 20\n write pages\n
      spawn reader * (cpus - 1)\n pin 0\n compute 100us\n
      for page in 0..20 { protect pages[page] read\n compute 10us } \n
      join }
    thread reader { pin index + 1\n read pages\n repeat for 1ms { compute 500ns } }";

#[test]
fn discards_of_own_pages_interrupt_in_vain() {
    for design in [Design::LINUX_7_0, Design::SHOOTDOWN_ALONE] {
        let row = row(OWN_PAGES, design);
        assert!(row.interrupts > 50, "{row:?}");
        let in_vain = row.classes.interrupts_in_vain;
        assert!(in_vain * 100 >= row.interrupts * 99, "{row:?}");
    }
}

/// At most 2 % of Linux's interrupts, less time than one flush per call, and
/// at most 2 MiB that are given back late.
#[test]
fn discards_in_place_interrupt_hardly_ever() {
    let linux = row(OWN_PAGES, Design::LINUX_7_0);
    let flushing = row(OWN_PAGES, Design::SHOOTDOWN_ALONE);
    let ours = row(OWN_PAGES, Design::SHOOTDOWN);
    assert!(ours.interrupts * 50 <= linux.interrupts, "{ours:?}");
    assert!(ours.time_ns < flushing.time_ns.min(linux.time_ns), "{ours:?}");
    assert_eq!(linux.memory_costs, MemoryCosts::default());
    assert_eq!(ours.memory_costs.pages_discarded_in_place, 4 * 40 * 8);
    assert_eq!(ours.memory_costs.pages_reclaimable_max, 4 * 8);
    assert!(ours.memory_costs.late_page_ns > 0);
}

#[test]
fn page_that_all_threads_read_interrupts_usefully() {
    let row = row(SHARED_PAGE, Design::LINUX_7_0);
    let useful = row.classes.interrupts_useful;
    assert!(useful > 20 && useful * 10 >= row.interrupts * 8, "{row:?}");
    assert_eq!(row.classes.interrupts_touched_2mib, row.interrupts);
}

#[test]
fn pages_that_nobody_reads_again_interrupt_early() {
    let row = row(FORGOTTEN_PAGES, Design::LINUX_7_0);
    assert!(row.interrupts >= 50, "{row:?}");
    assert_eq!(row.classes.interrupts_useful, 0, "{row:?}");
    assert!(row.classes.interrupts_early * 10 >= row.interrupts * 9, "{row:?}");
}
