//! A page is mapped where there was none: nothing is dropped, and who was told must find it.

use crate::Verdict::{Allowed, Forbidden};
use crate::program::Instruction::*;
use crate::program::Start::*;
use crate::program::{INVALID, MESSAGE, NEW, X, Y};
use crate::{Litmus, litmus};

/// What a CPU that maps a page finds there.
pub(crate) const INVALID_TO_VALID_HERE: &[Litmus] = &[
    litmus("CoWTf.inv+po", Allowed, Unmapped, &[&[Map(X, NEW), Faults(X)]]),
    litmus("CoWTf.inv+dsb-isb", Forbidden, Unmapped, &[&[Map(X, NEW), Dsb, Isb, Faults(X)]]),
    litmus(
        "CoWTf.inv+poloc-ctrl-isb",
        Allowed,
        Unmapped,
        &[&[Map(X, NEW), ReadsEntry(X, NEW), Isb, Faults(X)]],
    ),
    litmus("CoWTf.inv+svc", Allowed, Unmapped, &[&[Map(X, NEW), Svc, Faults(X)]]),
    litmus("CoWTf.inv.EL1+eret", Allowed, Unmapped, &[&[Map(X, NEW), Eret, Faults(X)]]),
    litmus("CoWTf.inv.EL1+dsb-svc", Forbidden, Unmapped, &[&[Map(X, NEW), Dsb, Svc, Faults(X)]]),
    litmus("CoWTf.inv.EL1+dsb-eret", Forbidden, Unmapped, &[&[Map(X, NEW), Dsb, Eret, Faults(X)]]),
    litmus("CoWR.inv", Forbidden, Unmapped, &[&[Map(X, NEW), ReadsEntry(X, INVALID)]]),
    litmus("CoTW1.inv", Forbidden, Unmapped, &[&[Finds(X, NEW), Map(X, NEW)]]),
];

/// What a CPU finds that knows that another has mapped a page.
pub(crate) const INVALID_TO_VALID_ELSEWHERE: &[Litmus] = &[
    litmus(
        "MP.RTf.inv+dmb+addr",
        Forbidden,
        Unmapped,
        &[&[Map(X, NEW), DmbSt, Set(MESSAGE, 1)], &[Reads(MESSAGE, 1), Depends, Faults(X)]],
    ),
    litmus(
        "MP.RTf.inv+dmb+po",
        Allowed,
        Unmapped,
        &[&[Map(X, NEW), DmbSt, Set(MESSAGE, 1)], &[Reads(MESSAGE, 1), Faults(X)]],
    ),
    litmus(
        "MP.RTf.inv+dmbs",
        Allowed,
        Unmapped,
        &[&[Map(X, NEW), DmbSt, Set(MESSAGE, 1)], &[Reads(MESSAGE, 1), Dmb, Faults(X)]],
    ),
    litmus(
        "MP.RTf.inv+dmb+dsb-isb",
        Forbidden,
        Unmapped,
        &[&[Map(X, NEW), DmbSt, Set(MESSAGE, 1)], &[Reads(MESSAGE, 1), Dsb, Isb, Faults(X)]],
    ),
    litmus(
        "MP.RTf.inv.EL1+dsb-tlbiis-dsb+po",
        Allowed,
        Unmapped,
        &[&[Map(X, NEW), Dsb, TlbiIs(X), Dsb, Set(MESSAGE, 1)], &[Reads(MESSAGE, 1), Faults(X)]],
    ),
    // Ours, for the program is published with the verdict of ETS alone, which forbids it: a fault
    // is no access that the invalidation would wait for.
    litmus(
        "MP.RTf.inv.EL1+dsb-tlbiis-dsb+dmb",
        Allowed,
        Unmapped,
        &[
            &[Map(X, NEW), Dsb, TlbiIs(X), Dsb, Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Dmb, Faults(X)],
        ],
    ),
    litmus(
        "MP.RTf.inv.EL1+dsb-tlbiis-dsb+dsb-isb",
        Forbidden,
        Unmapped,
        &[
            &[Map(X, NEW), Dsb, TlbiIs(X), Dsb, Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Dsb, Isb, Faults(X)],
        ],
    ),
    litmus(
        "CoRpteTf.inv+dsb",
        Allowed,
        Unmapped,
        &[&[Map(X, NEW)], &[ReadsEntry(X, NEW), Dsb, Faults(X)]],
    ),
    litmus(
        "CoRpteTf.inv+dsb-isb",
        Forbidden,
        Unmapped,
        &[&[Map(X, NEW)], &[ReadsEntry(X, NEW), Dsb, Isb, Faults(X)]],
    ),
];

/// One maps a page, another finds that, and tells a third.
pub(crate) const MULTI_COPY: &[Litmus] = &[
    litmus(
        "WRC.RRTf.inv+addrs",
        Forbidden,
        Unmapped,
        &[
            &[Map(X, NEW)],
            &[ReadsEntry(X, NEW), Depends, Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Depends, Faults(X)],
        ],
    ),
    litmus(
        "WRC.RRTf.inv+pos",
        Allowed,
        Unmapped,
        &[&[Map(X, NEW)], &[ReadsEntry(X, NEW), Set(MESSAGE, 1)], &[Reads(MESSAGE, 1), Faults(X)]],
    ),
    litmus(
        "WRC.RRTf.inv+dmbs",
        Allowed,
        Unmapped,
        &[
            &[Map(X, NEW)],
            &[ReadsEntry(X, NEW), Dmb, Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Dmb, Faults(X)],
        ],
    ),
    litmus(
        "WRC.RRTf.inv+dsbs",
        Allowed,
        Unmapped,
        &[
            &[Map(X, NEW)],
            &[ReadsEntry(X, NEW), Dsb, Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Dsb, Faults(X)],
        ],
    ),
    litmus(
        "WRC.TRTf.inv+addrs",
        Forbidden,
        Unmapped,
        &[
            &[Map(X, NEW)],
            &[Finds(X, NEW), Depends, Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Depends, Faults(X)],
        ],
    ),
    litmus(
        "WRC.TRTf.inv+pos",
        Allowed,
        Unmapped,
        &[&[Map(X, NEW)], &[Finds(X, NEW), Set(MESSAGE, 1)], &[Reads(MESSAGE, 1), Faults(X)]],
    ),
    litmus(
        "WRC.TRTf.inv+dmbs",
        Allowed,
        Unmapped,
        &[
            &[Map(X, NEW)],
            &[Finds(X, NEW), Dmb, Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Dmb, Faults(X)],
        ],
    ),
    litmus(
        "WRC.TRTf.inv+dsb+dsb-isb",
        Forbidden,
        Unmapped,
        &[
            &[Map(X, NEW)],
            &[Finds(X, NEW), Dsb, Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Dsb, Isb, Faults(X)],
        ],
    ),
    litmus(
        "WRC.TTTf.inv+addrs",
        Forbidden,
        Unmapped,
        &[
            &[Map(X, NEW)],
            &[Finds(X, NEW), Depends, Map(Y, NEW)],
            &[Finds(Y, NEW), Depends, Faults(X)],
        ],
    ),
];
