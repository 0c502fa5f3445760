//! One translation after another, or an access to an entry after its translation.

use crate::Verdict::{Allowed, Forbidden};
use crate::program::Instruction::*;
use crate::program::Start::*;
use crate::program::{INVALID, INVALID_TOO, NEW, OLD, X, Y, Z};
use crate::{Litmus, litmus};

/// What a CPU finds that has translated the page, or another, before; or reads its entry after.
pub(crate) const TRANSLATION_TO_TRANSLATION: &[Litmus] = &[
    litmus("CoTTf.inv+po", Allowed, Unmapped, &[&[Map(X, NEW)], &[Finds(X, NEW), Faults(X)]]),
    litmus(
        "CoTTf.inv+dsb-isb",
        Forbidden,
        Unmapped,
        &[&[Map(X, NEW)], &[Finds(X, NEW), Dsb, Isb, Faults(X)]],
    ),
    litmus("CoTfT+po", Allowed, Mapped, &[&[Map(X, INVALID)], &[Faults(X), Finds(X, OLD)]]),
    litmus(
        "CoTfT+dsb-isb",
        Allowed,
        Mapped,
        &[&[Map(X, INVALID)], &[Faults(X), Dsb, Isb, Finds(X, OLD)]],
    ),
    litmus(
        "MP.TTf.inv+dsb+po",
        Allowed,
        Unmapped,
        &[&[Map(X, NEW), Dsb, Map(Y, NEW)], &[Finds(Y, NEW), Faults(X)]],
    ),
    litmus(
        "MP.TTf.inv+dsbs",
        Allowed,
        Unmapped,
        &[&[Map(X, NEW), Dsb, Map(Y, NEW)], &[Finds(Y, NEW), Dsb, Faults(X)]],
    ),
    litmus(
        "MP.TTf.inv+dsb+dsb-isb",
        Forbidden,
        Unmapped,
        &[&[Map(X, NEW), Dsb, Map(Y, NEW)], &[Finds(Y, NEW), Dsb, Isb, Faults(X)]],
    ),
    litmus("ROT.inv+po", Allowed, NoTable, &[&[Map(X, NEW), MapTable], &[FaultsInTable(X)]]),
    litmus(
        "ROT.inv+dmbst",
        Forbidden,
        NoTable,
        &[&[Map(X, NEW), DmbSt, MapTable], &[FaultsInTable(X)]],
    ),
    litmus(
        "ROT.inv+dsb",
        Forbidden,
        NoTable,
        &[&[Map(X, NEW), Dsb, MapTable], &[FaultsInTable(X)]],
    ),
    litmus(
        "CoTRpte.inv+po",
        Allowed,
        Unmapped,
        &[&[Map(X, NEW)], &[Finds(X, NEW), ReadsEntry(X, INVALID)]],
    )
    .too_kind("loads of data are not early")
    .in_herd(Allowed),
    litmus(
        "CoTRpte.inv+dsb",
        Forbidden,
        Unmapped,
        &[&[Map(X, NEW)], &[Finds(X, NEW), Dsb, ReadsEntry(X, INVALID)]],
    ),
    litmus(
        "CoTRpte.inv+dsb-isb",
        Forbidden,
        Unmapped,
        &[&[Map(X, NEW)], &[Finds(X, NEW), Dsb, Isb, ReadsEntry(X, INVALID)]],
    ),
    litmus(
        "CoTfRpte+po",
        Forbidden,
        Mapped,
        &[&[Map(X, INVALID)], &[Faults(X), ReadsEntry(X, OLD)]],
    ),
    litmus(
        "CoTfRpte+dsb",
        Forbidden,
        Mapped,
        &[&[Map(X, INVALID)], &[Faults(X), Dsb, ReadsEntry(X, OLD)]],
    ),
    litmus(
        "CoTfRpte+dsb-isb",
        Forbidden,
        Mapped,
        &[&[Map(X, INVALID)], &[Faults(X), Dsb, Isb, ReadsEntry(X, OLD)]],
    ),
    litmus(
        "CoTfW.inv+po",
        Forbidden,
        Unmapped,
        &[
            &[Map(X, NEW)],
            &[Finds(X, NEW), Map(X, INVALID_TOO)],
            &[ReadsEntry(X, INVALID_TOO), ReadsEntry(X, NEW)],
        ],
    ),
    litmus(
        "CoTfW.inv+dsb-isb",
        Forbidden,
        Unmapped,
        &[
            &[Map(X, NEW)],
            &[Finds(X, NEW), Dsb, Isb, Map(X, INVALID_TOO)],
            &[ReadsEntry(X, INVALID_TOO), ReadsEntry(X, NEW)],
        ],
    ),
    litmus(
        "LB.TT.inv+pos",
        Forbidden,
        Unmapped,
        &[&[Finds(X, NEW), Map(Y, NEW)], &[Finds(Y, NEW), Map(X, NEW)]],
    ),
];

/// Of faults that come one after the other. The verdicts are ours.
pub(crate) const FAULT_TO_FAULT: &[Litmus] = &[
    // The first is an exception: what was found for the second before is forgotten.
    litmus(
        "a page that was mapped before another was taken away, which faults",
        Forbidden,
        Unmapped,
        &[&[Map(X, NEW), Dsb, Map(Z, INVALID)], &[Faults(Z), Faults(X)]],
    ),
    litmus(
        "the same, and the other does not fault",
        Allowed,
        Unmapped,
        &[&[Map(X, NEW), Dsb, Map(Z, INVALID)], &[ReadsEntry(Z, INVALID), Faults(X)]],
    ),
];
