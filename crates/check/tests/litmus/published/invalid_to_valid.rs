//! A page is mapped where none was. No entry is invalidated, and a CPU that was signalled must find
//! the new one.

use crate::Verdict::{Allowed, Forbidden};
use crate::program::Instruction::*;
use crate::program::Start::*;
use crate::program::{INVALID, MESSAGE, NEW, X, Y};
use crate::{Litmus, litmus};

/// A CPU maps a page and accesses it.
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

/// A CPU accesses a page after it learns that another CPU has mapped it.
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
    // Ours, because the program is published only with the verdict of ETS, which forbids it: a
    // fault is not an access, so the invalidation does not wait for it.
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

/// One CPU maps a page, a second CPU finds that, and signals a third.
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
