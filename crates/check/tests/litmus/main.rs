//! Published litmus tests of virtual memory on the hostile machine, with their published verdicts.
//!
//! The tests are those of "Relaxed virtual memory in Armv8-A" (Simner and others, ESOP 2022), and
//! the verdicts those of its strong model, without FEAT_ETS, as in the table of results that is
//! published with it (`esop_test_results.csv`); a few tests, or verdicts, are ours, and say so.
//! Each asks for one outcome, the bad one. The machine is right if that is seen in some schedule
//! exactly where the verdict says "allowed".
//!
//! In names, R and W are reads and writes, T is a translation that succeeds, and Tf one that
//! faults; `inv` begins with nothing mapped; after a `+` comes what orders each CPU's accesses,
//! `po` being nothing.
//!
//! # What the machine does that these tests are about
//!
//! - Stores are late, for walkers of page tables, too.
//! - TLBs hold what could be reached since it was last dropped, but no faults.
//! - What an instruction has found early, faults included, outlives an invalidation on its own CPU
//!   until the next context synchronisation: `ISB`, an exception, a return from one.
//! - An invalidation is complete when its issuer's `DSB` is, and no sooner. If it was broadcast, it
//!   waits for accesses of others that use what it takes. Loads may be done then that are to be
//!   done later, until a barrier orders them.
//! - An access whose address depends on a load is translated after that.
//!
//! # Where it differs from what is published
//!
//! The machine differs in three tests. The table marks each, and the machine is held to it. For
//! these three, the table also has the verdict of Arm's current VMSA model, as in herd7's source
//! tree of June 2025: the machine agrees with that model in the first two.
//!
//! - `MP.RT.EL1+dsb-tlbiis-dsb+dmb` is published as allowed, and **never seen here**. herd7 (June
//!   2025) forbids it. The reader's access uses an entry after another CPU has had it dropped, and
//!   has waited for that. By the manual, `TLBI` "waits for all memory accesses using in-scope old
//!   translation information to complete", and by its twin RBS, which is forbidden, the reader must
//!   not find what the frame's next owner writes there. The authors' own list of 2022-09-14 (strong
//!   model with ETS) has it as forbidden, too.
//! - `CoRpteT.EL1+dsb-tlbi-dsb` is published as forbidden, and **seen here**. herd7 (June 2025)
//!   allows it. Nothing in it makes the translation later than in its twin
//!   `CoWinvT.EL1+dsb-tlbi-dsb`, which is allowed.
//! - `CoTRpte.inv+po` is published as allowed, and **never seen here**. herd7 (June 2025) allows
//!   it, so here the machine is too kind: it makes no load of an entry, or of other data, early. Of
//!   what is early it knows where it goes, and not what it reads.
//!
//! # What is left out
//!
//! - Two stages, VMIDs, and pKVM, which are made of them (`CoWinvT2…`, `CoWinvTv…`, `CoWTv…`,
//!   `MP.invRT2…`, `….EL2…`, `Break2…`, `pKVM…`): the machine has one stage.
//! - Loads of data that are early or late, through aliases or not (`MP+…`, `LB+…`, `PPO…`, `RSW…`,
//!   `RDW…`, `CoRR….alias…`, `CoWR.alias`, `CoWW.alias`, `MP.alias3…`, `MP.RT.inv+dmb+ctrl-trfi`):
//!   the machine does loads in order, and its pages have nothing in them.
//! - `ETS`, of a CPU that promises more; `W` and `W+T`, which ask for nothing; and `R.inv`, whose
//!   program is not among those that are published.

mod program;
mod published;

use std::time::Duration;

use shootdown_check::{Budget, Detail, Profile, Search, search};

use crate::Verdict::{Allowed, Forbidden};
use crate::program::{Instruction, Program, Start};

const BUDGET: Budget = Budget { time: Duration::from_secs(60), states: 1_000_000 };

/// Whether an outcome can be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    Forbidden,
}

/// How the machine differs from what is published, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deviation {
    /// It shows an outcome that is forbidden.
    TooHostile(&'static str),
    /// It does not show one that is allowed.
    TooKind(&'static str),
}

/// A test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Litmus {
    name: &'static str,
    verdict: Verdict,
    deviation: Option<Deviation>,
    /// The verdict of Arm's model in herd7 (June 2025), where the machine deviates.
    herd: Option<Verdict>,
    program: Program,
}

const fn litmus(
    name: &'static str,
    verdict: Verdict,
    start: Start,
    threads: &'static [&'static [Instruction]],
) -> Litmus {
    let program = Program { start, threads, handler: &[], spared: 0 };
    Litmus { name, verdict, deviation: None, herd: None, program }
}

impl Litmus {
    /// On CPUs that do this when they are interrupted.
    const fn handling(self, handler: &'static [Instruction]) -> Self {
        Self { program: Program { handler, ..self.program }, ..self }
    }

    const fn too_hostile(self, why: &'static str) -> Self {
        Self { deviation: Some(Deviation::TooHostile(why)), ..self }
    }

    const fn too_kind(self, why: &'static str) -> Self {
        Self { deviation: Some(Deviation::TooKind(why)), ..self }
    }

    /// With this verdict of Arm's model in herd7 (June 2025).
    const fn in_herd(self, verdict: Verdict) -> Self {
        Self { herd: Some(verdict), ..self }
    }

    /// What the machine is known to say.
    fn expected(&self) -> Verdict {
        match self.deviation {
            None => self.verdict,
            Some(Deviation::TooHostile(_)) => Allowed,
            Some(Deviation::TooKind(_)) => Forbidden,
        }
    }

    /// Looks at everything. Returns what is wrong with the machine.
    fn check(&self) -> Result<(), String> {
        let Self { name, verdict: published, program, .. } = self;
        let all = everything(program);
        let verdict = if all.found.is_some() { Allowed } else { Forbidden };
        println!("{name:44} {published:9?} {verdict:?}: {} states", all.states);
        // What is never seen has nearly been: no condition is in the way of all others.
        let nearly = everything(&Program { spared: 1, ..*program }).found;
        let nearly = nearly.ok_or(format!("{name}: asks for what never comes true"))?;
        if verdict == self.expected() {
            return Ok(());
        }
        let (what, run) = match all.found {
            Some(found) => ("seen, which must not be", found),
            None => ("never seen, but only this", nearly),
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
    let wrong: Vec<_> = all.iter().filter_map(|it| it.check().err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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

/// How many there are, as the documentation says.
#[test]
fn all_are_counted() {
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
    assert_eq!(names.len(), 92, "one published test, of two pages, is two here");
}

/// With the verdicts of two tests exchanged.
#[test]
fn a_wrong_verdict_is_reported_with_a_run() {
    let [mut before, mut after] = [published::STALE_ELSEWHERE[0], published::STALE_ELSEWHERE[2]];
    std::mem::swap(&mut before.verdict, &mut after.verdict);
    let never_seen = before.check().unwrap_err();
    assert!(never_seen.contains("never seen") && never_seen.contains("reads the message: 0x1"));
    let seen = after.check().unwrap_err();
    assert!(seen.contains("must not be") && seen.contains("uses page 0, and finds frame 0"));
    println!("{never_seen}\n{seen}");
}
