//! More tests of the same authors, with verdicts from a later list (the strong model with ETS,
//! 2022-09-14), for those in which ETS plays no part.

use crate::Verdict::{Allowed, Forbidden};
use crate::program::Instruction::*;
use crate::program::Start::*;
use crate::program::{BATON, INVALID, Instruction, MESSAGE, NEW, OLD, X, Y, Z};
use crate::{Litmus, litmus};

/// Two pages with one wait; a table that is reused; a CPU that breaks and then makes a mapping; a
/// CPU that finds a page unmapped and invalidates it.
pub(crate) const LATER: &[Litmus] = &[
    // Published for both pages together. Here there is one test for each page, which forbids more.
    litmus(
        "MP.RTT.EL1+dsb-tlbiis-tlbiis-dsb+dsb-isb",
        Forbidden,
        Mapped,
        &[TWO_PAGES, &[Reads(MESSAGE, 1), Dsb, Isb, Finds(X, OLD)]],
    ),
    litmus(
        "MP.RTT.EL1+dsb-tlbiis-tlbiis-dsb+dsb-isb",
        Forbidden,
        Mapped,
        &[TWO_PAGES, &[Reads(MESSAGE, 1), Dsb, Isb, Finds(Z, NEW)]],
    ),
    litmus(
        "ROT+dsb-tlbivmallis-dsb",
        Forbidden,
        Mapped,
        &[&[UnmapTable, Dsb, TlbiAllIs, Dsb, Map(X, NEW)], &[Finds(X, NEW)]],
    ),
    litmus("ROT+dmb", Allowed, Mapped, &[&[UnmapTable, DmbSt, Map(X, NEW)], &[Finds(X, NEW)]]),
    // The second load executes before the invalidation is complete, and the first one after it.
    litmus(
        "Stacked1BBM",
        Allowed,
        Mapped,
        &[&[Map(X, INVALID), Dsb, TlbiIs(X), Dsb, Map(X, NEW)], &[Finds(X, NEW), Finds(X, OLD)]],
    ),
    litmus(
        "WRC.TfRT+dsb-tlbiis-dsb+dsb-isb",
        Forbidden,
        Mapped,
        &[
            &[Map(X, INVALID)],
            &[Faults(X), Dsb, TlbiIs(X), Dsb, Eret, Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Dsb, Isb, Finds(X, OLD)],
        ],
    ),
    litmus(
        "WRC.TfRT+po+dsb-isb",
        Allowed,
        Mapped,
        &[
            &[Map(X, INVALID)],
            &[Faults(X), Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Dsb, Isb, Finds(X, OLD)],
        ],
    ),
    litmus(
        "ISA2.RRTf.inv+dsb+data+addr",
        Forbidden,
        Unmapped,
        &[
            &[Map(X, NEW), Dsb, Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Set(BATON, 1)],
            &[Reads(BATON, 1), Depends, Faults(X)],
        ],
    ),
    litmus(
        "IRIW.TTf.TTf.inv+addrs",
        Forbidden,
        Unmapped,
        &[
            &[Map(X, NEW)],
            &[Map(Y, NEW)],
            &[Finds(X, NEW), Depends, Faults(Y)],
            &[Finds(Y, NEW), Depends, Faults(X)],
        ],
    ),
];

const TWO_PAGES: &[Instruction] =
    &[Map(X, INVALID), Map(Z, INVALID), Dsb, TlbiIs(X), TlbiIs(Z), Dsb, Set(MESSAGE, 1)];
