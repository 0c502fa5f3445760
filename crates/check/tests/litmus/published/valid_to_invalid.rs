//! A page is unmapped, and accessed on the same CPU, or by a CPU that has read its entry.

use crate::Verdict::{Allowed, Forbidden};
use crate::program::Instruction::*;
use crate::program::Start::*;
use crate::program::{ASID, FRAME, INVALID, NEW, OLD, OTHER_ASID, X};
use crate::{Litmus, litmus};

/// A CPU unmaps a page and accesses it, or another CPU does so after it has read the entry.
pub(crate) const VALID_TO_INVALID: &[Litmus] = &[
    litmus("CoWinvT+po", Allowed, Mapped, &[&[Map(X, INVALID), Finds(X, OLD)]]),
    litmus("CoWinvT+dsb-isb", Allowed, Mapped, &[&[Map(X, INVALID), Dsb, Isb, Finds(X, OLD)]]),
    litmus(
        "CoWinvT.EL1+dsb-tlbi-dsb",
        Allowed,
        Mapped,
        &[&[Map(X, INVALID), Dsb, Tlbi(X), Dsb, Finds(X, OLD)]],
    ),
    litmus(
        "CoWinvT.EL1+dsb-tlbi-dsb-isb",
        Forbidden,
        Mapped,
        &[&[Map(X, INVALID), Dsb, Tlbi(X), Dsb, Isb, Finds(X, OLD)]],
    ),
    litmus(
        "CoWinvT.EL1+dsb-tlbiis-dsb",
        Allowed,
        Mapped,
        &[&[Map(X, INVALID), Dsb, TlbiIs(X), Dsb, Finds(X, OLD)]],
    ),
    litmus(
        "CoWinvT.EL1+dsb-tlbiis-dsb-isb",
        Forbidden,
        Mapped,
        &[&[Map(X, INVALID), Dsb, TlbiIs(X), Dsb, Isb, Finds(X, OLD)]],
    ),
    // Ours, because the program is published without a verdict of this model: the store may be
    // later.
    litmus(
        "CoWinvT.EL1+tlbi-dsb-isb",
        Allowed,
        Mapped,
        &[&[Map(X, INVALID), Tlbi(X), Dsb, Isb, Finds(X, OLD)]],
    ),
    litmus("CoWinvRpte+po", Forbidden, Mapped, &[&[Map(X, INVALID), ReadsEntry(X, OLD)]]),
    litmus("CoTWinv", Forbidden, Mapped, &[&[Faults(X), Map(X, INVALID)]]),
    litmus(
        "CoRpteT+dsb",
        Allowed,
        Mapped,
        &[&[Map(X, INVALID)], &[ReadsEntry(X, INVALID), Dsb, Finds(X, OLD)]],
    ),
    litmus(
        "CoRpteT+dsb-isb",
        Allowed,
        Mapped,
        &[&[Map(X, INVALID)], &[ReadsEntry(X, INVALID), Dsb, Isb, Finds(X, OLD)]],
    ),
    litmus(
        "CoRpteT.EL1+dsb-tlbi-dsb",
        Forbidden,
        Mapped,
        &[&[Map(X, INVALID)], &[ReadsEntry(X, INVALID), Dsb, Tlbi(X), Dsb, Finds(X, OLD)]],
    )
    .too_hostile("the similar test CoWinvT.EL1+dsb-tlbi-dsb is allowed")
    .herd(Allowed),
    litmus(
        "CoRpteT.EL1+dsb-tlbi-dsb-isb",
        Forbidden,
        Mapped,
        &[&[Map(X, INVALID)], &[ReadsEntry(X, INVALID), Dsb, Tlbi(X), Dsb, Isb, Finds(X, OLD)]],
    ),
];

/// Invalidations by ASID.
pub(crate) const ASIDS: &[Litmus] = &[
    litmus(
        "CoWinvTa1.1+dsb-tlbiasidis-dsb-eret",
        Forbidden,
        Mapped,
        &[&[Map(X, INVALID), Dsb, TlbiAsidIs(ASID), Dsb, Eret, Finds(X, OLD)]],
    ),
    litmus(
        "CoWinvTa2.1+dsb-tlbiasidis-dsb-eret",
        Allowed,
        Mapped,
        &[&[Map(X, INVALID), Dsb, TlbiAsidIs(OTHER_ASID), Dsb, Eret, Finds(X, OLD)]],
    ),
    litmus(
        "CoWTa1.1.inv+dsb-tlbiasidis-dsb-eret",
        Forbidden,
        Unmapped,
        &[&[Map(X, NEW), Dsb, TlbiAsidIs(ASID), Dsb, Eret, Faults(X)]],
    ),
    litmus(
        "CoWTa2.1.inv+dsb-tlbiasidis-dsb-eret",
        Forbidden,
        Unmapped,
        &[&[Map(X, NEW), Dsb, TlbiAsidIs(OTHER_ASID), Dsb, Eret, Faults(X)]],
    ),
    // Ours, by analogy with RBS.
    litmus(
        "RBS+dsb-tlbiasidis-dsb",
        Forbidden,
        Mapped,
        &[&[Map(X, INVALID), Dsb, TlbiAsidIs(ASID), Dsb, Set(FRAME, 2)], &[Loads(2)]],
    ),
];
