//! Published litmus tests of virtual memory on the hostile machine, with their published verdicts.
//!
//! The tests are those of "Relaxed virtual memory in Armv8-A" (Simner and others, ESOP 2022). The
//! verdicts are those of its strong model, without FEAT_ETS, as in the published table of results
//! (`esop_test_results.csv`). A few tests or verdicts are ours, which a comment states. Each test
//! asks for one outcome, the bad one. The machine is right if some schedule has that outcome
//! exactly where the verdict is "allowed".
//!
//! In names, R and W are reads and writes, T is a translation that succeeds, and Tf one that
//! faults. A test with `inv` begins with unmapped pages. After the `+` comes the order of each
//! CPU's accesses, where `po` is program order alone.
//!
//! # Behaviour under test
//!
//! - Stores are late, also for walkers of page tables.
//! - TLBs hold every entry that could be reached since the last invalidation, but no faults.
//! - A translation that an instruction has found early, which may be a fault, outlives an
//!   invalidation on its own CPU until the next context synchronisation: `ISB`, an exception, or a
//!   return from an exception.
//! - An invalidation is complete when its issuer's `DSB` is, and no sooner. A broadcast waits for
//!   other CPUs' accesses that use an invalidated entry. Loads that come later in program order may
//!   have executed by then, until a barrier orders them.
//! - An access whose address depends on a load is translated after that load.
//!
//! # Differences from the published verdicts
//!
//! The machine differs in three tests. The table marks each of them, and the test asserts the
//! difference. For these three, the table also has the verdict of Arm's current VMSA model, as in
//! herd7's source tree of June 2025. The machine agrees with that model in the first two.
//!
//! - `MP.RT.EL1+dsb-tlbiis-dsb+dmb` is published as allowed, and **never happens here**. herd7
//!   (June 2025) forbids it. In this outcome, the reader's access uses an entry after another CPU
//!   has invalidated it and has waited for the invalidation. According to the manual, `TLBI` "waits
//!   for all memory accesses using in-scope old translation information to complete". In the
//!   similar test RBS, which is forbidden, the reader must not find data that the frame's next
//!   owner writes. The authors' own list of 2022-09-14 (strong model with ETS) also has it as
//!   forbidden.
//! - `CoRpteT.EL1+dsb-tlbi-dsb` is published as forbidden, and **happens here**. herd7 (June 2025)
//!   allows it. Nothing in this test makes the translation later than in
//!   `CoWinvT.EL1+dsb-tlbi-dsb`, which is allowed.
//! - `CoTRpte.inv+po` is published as allowed, and **never happens here**. herd7 (June 2025) allows
//!   it, so the machine is too lenient: it never executes a load of an entry, or of other data,
//!   early. For an early access, it tracks the translation, and not the value.
//!
//! # Omitted tests
//!
//! - Two stages, VMIDs, and pKVM, which uses both (`CoWinvT2…`, `CoWinvTv…`, `CoWTv…`,
//!   `MP.invRT2…`, `….EL2…`, `Break2…`, `pKVM…`): the machine has one stage.
//! - Loads of data that are early or late, through aliases or not (`MP+…`, `LB+…`, `PPO…`, `RSW…`,
//!   `RDW…`, `CoRR….alias…`, `CoWR.alias`, `CoWW.alias`, `MP.alias3…`, `MP.RT.inv+dmb+ctrl-trfi`):
//!   the machine executes loads in order, and its pages have no contents.
//! - `ETS`, for a CPU with stronger guarantees; `W` and `W+T`, which ask for no outcome; and
//!   `R.inv`, whose program is not among the published ones.

mod program;
mod published;

use std::time::Duration;

use shootdown_check::{Budget, Detail, Profile, Search, search};

use crate::Verdict::{Allowed, Forbidden};
use crate::program::{Instruction, Program, Start};

const BUDGET: Budget = Budget { time: Duration::from_secs(3600), states: 1_000_000 };

/// A verdict on an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    Forbidden,
}

/// A difference from the published verdict, and its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deviation {
    /// The machine shows an outcome that is forbidden.
    TooHostile(&'static str),
    /// The machine does not show an outcome that is allowed.
    TooLenient(&'static str),
}

/// A test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Litmus {
    name: &'static str,
    verdict: Verdict,
    deviation: Option<Deviation>,
    /// The verdict of Arm's model in herd7 (June 2025), if the machine differs.
    herd: Option<Verdict>,
    program: Program,
}

const fn litmus(
    name: &'static str,
    verdict: Verdict,
    start: Start,
    threads: &'static [&'static [Instruction]],
) -> Litmus {
    let program = Program { start, threads, handler: &[], optional: 0 };
    Litmus { name, verdict, deviation: None, herd: None, program }
}

impl Litmus {
    /// Sets the interrupt handler of the CPUs.
    const fn with_handler(self, handler: &'static [Instruction]) -> Self {
        Self { program: Program { handler, ..self.program }, ..self }
    }

    const fn too_hostile(self, why: &'static str) -> Self {
        Self { deviation: Some(Deviation::TooHostile(why)), ..self }
    }

    const fn too_lenient(self, why: &'static str) -> Self {
        Self { deviation: Some(Deviation::TooLenient(why)), ..self }
    }

    /// Adds the verdict of Arm's model in herd7 (June 2025).
    const fn herd(self, verdict: Verdict) -> Self {
        Self { herd: Some(verdict), ..self }
    }

    /// Returns the verdict that the machine is known to give.
    fn expected(&self) -> Verdict {
        match self.deviation {
            None => self.verdict,
            Some(Deviation::TooHostile(_)) => Allowed,
            Some(Deviation::TooLenient(_)) => Forbidden,
        }
    }

    /// Visits all runs. Returns an error if the machine's verdict is not the expected one.
    fn check(&self) -> Result<(), String> {
        let Self { name, verdict: published, program, .. } = self;
        let all = everything(program);
        let verdict = if all.found.is_some() { Allowed } else { Forbidden };
        println!("{name:44} {published:9?} {verdict:?}: {} states", all.states);
        // An outcome that never happens must nearly happen: all conditions but one hold in some
        // run. Otherwise one condition could prevent all others.
        let nearly = everything(&Program { optional: 1, ..*program }).found;
        let nearly = nearly.ok_or(format!("{name}: the outcome never nearly happens"))?;
        if verdict == self.expected() {
            return Ok(());
        }
        let (what, run) = match all.found {
            Some(found) => ("the outcome happens, which is wrong", found),
            None => ("the outcome never happens; the nearest run is", nearly),
        };
        Err(format!("{name}: {what}\n{}", run.timeline(Detail::Accesses)))
    }
}

fn everything(program: &Program) -> Search {
    let all = search(program, Profile::ARM64, None, BUDGET);
    assert!(all.is_complete || all.found.is_some(), "{program:?}: {} states", all.states);
    all
}

fn check(all: &[Litmus]) {
    let failed: Vec<_> = all.iter().filter_map(|it| it.check().err()).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn software_shootdown() {
    check(published::SHOOTDOWN);
    check(published::SHOOTDOWN_BY_INTERRUPT);
}

#[test]
fn stale_translations_elsewhere() {
    check(published::STALE_ELSEWHERE);
}

#[test]
fn invalid_to_valid_on_one_cpu() {
    check(published::INVALID_TO_VALID_HERE);
}

#[test]
fn invalid_to_valid_between_cpus() {
    check(published::INVALID_TO_VALID_ELSEWHERE);
}

#[test]
fn valid_to_invalid() {
    check(published::VALID_TO_INVALID);
}

#[test]
fn translation_to_translation() {
    check(published::TRANSLATION_TO_TRANSLATION);
    check(published::FAULT_TO_FAULT);
}

#[test]
fn break_before_make() {
    check(published::BREAK_BEFORE_MAKE);
}

#[test]
fn address_space_numbers() {
    check(published::ASIDS);
}

#[test]
fn multi_copy_atomicity() {
    check(published::MULTI_COPY);
}

#[test]
fn later_verdicts() {
    check(published::LATER);
}

/// The documentation states these numbers.
#[test]
fn published_tests_are_complete() {
    let all = [
        published::SHOOTDOWN,
        published::SHOOTDOWN_BY_INTERRUPT,
        published::STALE_ELSEWHERE,
        published::INVALID_TO_VALID_HERE,
        published::INVALID_TO_VALID_ELSEWHERE,
        published::VALID_TO_INVALID,
        published::TRANSLATION_TO_TRANSLATION,
        published::FAULT_TO_FAULT,
        published::BREAK_BEFORE_MAKE,
        published::ASIDS,
        published::MULTI_COPY,
        published::LATER,
    ];
    let tests = || all.iter().copied().flatten();
    assert_eq!(tests().count(), 93);
    let deviating: Vec<_> = tests().filter(|test| test.deviation.is_some()).collect();
    assert_eq!(deviating.len(), 3);
    let differs_from_herd = |test: &&&Litmus| test.herd != Some(test.expected());
    let differing: Vec<_> = deviating.iter().filter(differs_from_herd).map(|it| it.name).collect();
    assert_eq!(differing, ["CoTRpte.inv+po"], "herd7 agrees with the machine in the other two");
    let mut names: Vec<_> = tests().map(|test| test.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 92, "one published test of two pages is two tests here");
}

/// Checks two tests with their verdicts exchanged.
#[test]
fn wrong_verdict_is_reported_with_a_run() {
    let [mut before, mut after] = [published::STALE_ELSEWHERE[0], published::STALE_ELSEWHERE[2]];
    std::mem::swap(&mut before.verdict, &mut after.verdict);
    let never_seen = before.check().unwrap_err();
    assert!(never_seen.contains("never happens") && never_seen.contains("reads the message: 0x1"));
    let seen = after.check().unwrap_err();
    assert!(seen.contains("which is wrong") && seen.contains("uses page 0, and finds frame 0"));
    println!("{never_seen}\n{seen}");
}
