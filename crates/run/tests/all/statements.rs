//! Statements on memory: their flushes, and the stale accesses without them.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;

use shootdown::Horizon;
use shootdown_designs::{Design, Linux70};
use shootdown_program::operation::{
    Access, AreaId, Entry, FileId, Mapping, Moves, Operation, Permission, ProgramId, RawAddress,
};
use shootdown_run::text::{CellError, Text};
use shootdown_run::{Limits, Memory, Outcome, Settings, Supply};
use shootdown_sim::Time;
use shootdown_vm::{Cause, Change, DynCoherence, ErasedCoherence, Later};

use crate::memory_model::model::checked;
use crate::operations::Programs;
use crate::text::{machine, rows, run, text};

const AREA: AreaId = AreaId(0);
const OTHER: ProgramId = ProgramId(1);

/// A design that omits the flushes of one cause.
struct Without(ErasedCoherence, Option<Cause>);

/// A flush that was not sent.
struct Skipped;

impl DynCoherence for Without {
    fn inner(&self) -> &dyn DynCoherence {
        &*self.0
    }

    fn flush(&self, space: &dyn Any, change: &Change) -> Box<dyn Any> {
        if Some(change.cause) == self.1 { Box::new(Skipped) } else { self.0.flush(space, change) }
    }

    fn flush_later(&self, space: &dyn Any, change: &Change) -> Later<Box<dyn Any>, Box<dyn Any>> {
        Later::Sent(self.flush(space, change))
    }

    fn wait(&self, pending: Box<dyn Any>) -> Horizon {
        if pending.is::<Skipped>() { Horizon::UNKNOWN } else { self.0.wait(pending) }
    }
}

/// The first page of the first area that a process maps.
const FIRST_PAGE: u64 = 16;

/// Runs two threads of a process on two CPUs. The second thread uses the addresses of eight pages
/// all the time, from before `change` until after it.
fn run_beside(mapping: Mapping, change: Operation, skipped: Option<Cause>) -> Outcome {
    let write = || Operation::write(AREA, 0..8);
    let entry = Entry::Absent;
    let use_page = |page| RawAddress::Fault { page, access: Access::Read, entry };
    let use_pages = || {
        let pages = (FIRST_PAGE..FIRST_PAGE + 8).map(use_page).map(Operation::RawAddress);
        pages.chain([Operation::Compute(500)])
    };
    let first = vec![
        Operation::map(AREA, 8, Permission::ReadWrite, mapping),
        write(),
        Operation::Spawn(OTHER),
        Operation::Compute(50_000),
        change,
        Operation::Compute(50_000),
        Operation::Join(OTHER),
    ];
    let second = [Operation::Migrate(1)].into_iter();
    let second = second.chain((0..200).flat_map(|_| use_pages())).collect();
    let settings = Settings {
        memory: Memory { supply: Supply::Reclaimed, ..Memory::of_frames(1 << 12) },
        limits: Limits { threads: 16, time: Time::from_ms(1000) },
        contents: Some(checked),
        on_fault: shootdown_program::OnFault::Survived,
        ..Settings::DEFAULT
    };
    let programs = Programs(RefCell::new((0..).zip([first, second]).collect()));
    let design =
        |sim| -> ErasedCoherence { Box::new(Without(Linux70::uncounted(sim).into(), skipped)) };
    shootdown_run::run(machine(2), settings, Rc::new(programs), design).unwrap()
}

/// Checks that `change` leaves no stale access, and that one is found without its flush.
fn check_flush_is_needed(mapping: Mapping, change: &Operation, cause: Cause) {
    let wrong = |outcome: &Outcome| outcome.violations + outcome.wrong_contents;
    let intact = run_beside(mapping, change.clone(), None);
    assert_eq!(wrong(&intact), 0, "{intact:?}");
    let broken = run_beside(mapping, change.clone(), Some(cause));
    assert!(wrong(&broken) > 0, "{change:?} without its flush was not detected");
}

#[test]
fn moved_area_without_flush_is_detected() {
    let change = Operation::Remap { area: AREA, from: 8, to: 8, moves: Moves::Always };
    check_flush_is_needed(Mapping::Anonymous, &change, Cause::Move);
}

#[test]
fn hinted_pages_without_flush_are_detected() {
    let change = Operation::Hint { area: AREA, pages: 0..8 };
    check_flush_is_needed(Mapping::Anonymous, &change, Cause::Protect);
}

#[test]
fn truncated_file_without_flush_is_detected() {
    let file = FileId(0);
    let change = Operation::Truncate { file, pages: 0 };
    check_flush_is_needed(Mapping::SharedFile(file), &change, Cause::Unmap);
}

/// Returns the flushes of an interval with 20 turns of `body`, under Linux's design.
fn flushes_of_turns(before: &str, body: &str) -> u64 {
    let source = format!(
        "memory 64MiB reclaim
         thread main {{ {before}\n time {{ repeat 20 {{ {body} }} }} }}"
    );
    let rows = run(&text(&source), 2, Design::LINUX_7_0, 1).unwrap_or_else(|it| panic!("{it}"));
    assert_eq!(rows[0].violations, 0, "{rows:?}");
    rows[0].flushes_full + rows[0].flushes_ranged
}

#[test]
fn remap_moves_with_one_flush_each_time() {
    let moves = |size| flushes_of_turns("map a 8\n write a", &format!("remap a {size}\n read a"));
    assert_eq!(moves(""), 20);
    assert_eq!(moves("8"), 0, "nothing changes");
    // The area grows in place, and loses a page that no one has used.
    assert_eq!(flushes_of_turns("map a 8\n write a", "remap a 9\n remap a 8"), 0);
    // Another area is behind it.
    let turn = "map a 8\n write a\n map b 1\n remap a 9\n unmap a\n unmap b";
    assert!(flushes_of_turns("syscall", turn) >= 40, "a move and an unmap in each turn");
    rows("thread main { map a 4\n write a\n remap a 8\n write a\n remap a\n write a[7] }");
}

#[test]
fn truncate_flushes_each_mapping_once() {
    let turns = |before: &str| flushes_of_turns(before, "truncate f 4\n write a");
    assert_eq!(turns("map a 8 shared f\n write a"), 20);
    assert_eq!(turns("map a 4 shared f\n write a"), 0, "no page is removed");
    let two = "map a 8 shared f\n map b 8 shared f\n write a\n write b";
    assert_eq!(flushes_of_turns(two, "truncate f 4\n write a\n write b"), 40);
    let source = "memory 64MiB reclaim
        thread main {
            map a 8 shared f(1)
            write a
            fork child
            join
            time { truncate f(1) 4 }
        }
        thread child { write a\n sleep 1ms }";
    assert_eq!(rows(source)[0].violations, 0);
}

#[test]
fn hint_flushes_once_and_faults_again() {
    let turn = |rest: &str| flushes_of_turns("map a 8\n write a", &format!("hint a\n {rest}"));
    assert_eq!(turn("read a"), 20);
    assert_eq!(turn("write a[0]"), 20);
    assert_eq!(turn("syscall"), 1, "no page was used between the scans");
    let time = |text: &str| rows(text)[0].time_ns;
    let with = |hint: &str| {
        time(&format!("thread main {{ map a 64\n write a\n {hint}\n time {{ read a }} }}"))
    };
    assert!(with("hint a") > 2 * with("syscall"), "each access is a fault");
}

#[test]
fn huge_area_splits_at_first_discard_of_a_part() {
    // Four MiB contain a block whole, wherever they begin: page 600 is in it.
    let large = "map a 4MiB\n huge a\n write a[600]";
    assert_eq!(flushes_of_turns(large, "discard a[600]\n write a[600]"), 21, "one split");
    let small = "map a 4MiB\n write a[600]";
    assert_eq!(flushes_of_turns(small, "discard a[600]\n write a[600]"), 20);
    let time = |huge: &str| {
        let source = format!(
            "thread main {{ map a 4MiB\n {huge}\n write a[600]\n time {{ write a[601..900] }} }}"
        );
        rows(&source)[0].time_ns
    };
    assert!(time("huge a") * 4 < time("syscall"), "the first write has mapped all pages");
}

#[test]
fn statements_that_cannot_work_are_refused() {
    for (body, cause, remedy) in [
        ("map a 4\n remap a 0", "the area has no pages", "`unmap` it"),
        ("map a 4\n remap b 4", "no thread maps `b`", "add `map b SIZE`"),
        ("map a 4 shared f\n truncate g 4", "no thread maps the file `g`", "shared g"),
        ("map a 4 shared f\n huge a", "only anonymous pages", "without a file"),
        ("map a 4\n remap a[0..2] 4", "takes a whole area", "leave out"),
        ("map a 4\n unmap a[0]\n remap a 8", "part of the range is not mapped", "map the pages"),
        ("map a 4\n remap a 1GiB * 1000000", "there is no room", "declare `memory SIZE`"),
    ] {
        let source = format!("memory 64MiB reclaim\nthread main {{ {body} }}");
        let ran = |text| run(&text, 2, Design::SHOOTDOWN, 1);
        let error = match Text::parse("test", &source).map(ran) {
            Ok(Err(CellError::Text(error))) | Err(error) => error,
            other => panic!("{body}: {other:?}"),
        };
        assert!(error.cause.contains(cause), "{body}: {error}");
        assert!(error.remedy.contains(remedy), "{body}: {}", error.remedy);
    }
    let source = "thread main { map a 4 shared f\n truncate f 4 }";
    let error = Text::parse("test", source).unwrap_err();
    assert!(error.cause.contains("only if memory is managed"), "{error}");
    assert!(error.remedy.contains("memory SIZE reclaim"), "{}", error.remedy);
}
