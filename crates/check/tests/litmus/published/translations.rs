//! One translation after another, or an access to an entry after its translation.

use crate::Verdict::{Allowed, Forbidden};
use crate::program::Instruction::*;
use crate::program::Start::*;
use crate::program::{INVALID, NEW, OLD, OTHER_INVALID, X, Y, Z};
use crate::{Litmus, litmus};

/// A CPU translates a page after it has translated the page or another one, or reads its entry
/// afterwards.
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
    .too_lenient("loads of data never execute early")
    .herd(Allowed),
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
            &[Finds(X, NEW), Map(X, OTHER_INVALID)],
            &[ReadsEntry(X, OTHER_INVALID), ReadsEntry(X, NEW)],
        ],
    ),
    litmus(
        "CoTfW.inv+dsb-isb",
        Forbidden,
        Unmapped,
        &[
            &[Map(X, NEW)],
            &[Finds(X, NEW), Dsb, Isb, Map(X, OTHER_INVALID)],
            &[ReadsEntry(X, OTHER_INVALID), ReadsEntry(X, NEW)],
        ],
    ),
    litmus(
        "LB.TT.inv+pos",
        Forbidden,
        Unmapped,
        &[&[Finds(X, NEW), Map(Y, NEW)], &[Finds(Y, NEW), Map(X, NEW)]],
    ),
];

/// Two faults, one after the other. The verdicts are ours.
pub(crate) const FAULT_TO_FAULT: &[Litmus] = &[
    // The first fault is an exception, which discards the translation that was found early for the
    // second access.
    litmus(
        "mapped page after a fault of an unmapped page",
        Forbidden,
        Unmapped,
        &[&[Map(X, NEW), Dsb, Map(Z, INVALID)], &[Faults(Z), Faults(X)]],
    ),
    litmus(
        "mapped page without a fault of the unmapped page",
        Allowed,
        Unmapped,
        &[&[Map(X, NEW), Dsb, Map(Z, INVALID)], &[ReadsEntry(Z, INVALID), Faults(X)]],
    ),
];
