//! The tests: names and verdicts as published, programs written anew.
//!
//! Where a published program reads a variable in the end, here the last CPU that has a say sees it;
//! where it counts on a handler to say that there was a fault, here the fault is asked for.

use crate::Litmus;
use crate::Verdict::{Allowed, Forbidden};
use crate::litmus;
use crate::program::Instruction::*;
use crate::program::Start::*;
use crate::program::{
    ASID, BATON, FRAME, INVALID, INVALID_TOO, Instruction, MESSAGE, NEW, OLD, OTHER_ASID,
    READ_ONLY, REQUEST, X, Y,
};

/// One takes a page away, and has it dropped everywhere; another has been told, and uses it.
pub(crate) const STALE_ELSEWHERE: &[Litmus] = &[
    litmus(
        "MP.RT.EL1+dsb-tlbiis-dsb+dsb-isb",
        Forbidden,
        Mapped,
        &[
            &[Map(X, INVALID), Dsb, TlbiIs(X), Dsb, Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Dsb, Isb, Finds(X, OLD)],
        ],
    ),
    litmus(
        "MP.RT.EL1+dsb-tlbiis-dsb+dmb",
        Allowed,
        Mapped,
        &[
            &[Map(X, INVALID), Dsb, TlbiIs(X), Dsb, Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Dmb, Finds(X, OLD)],
        ],
    )
    .too_kind("the invalidation waits for accesses that use what it takes: see the beginning"),
    litmus(
        "MP.RT.EL1+dsb-tlbi-dsb+dsb-isb",
        Allowed,
        Mapped,
        &[
            &[Map(X, INVALID), Dsb, Tlbi(X), Dsb, Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Dsb, Isb, Finds(X, OLD)],
        ],
    ),
    litmus(
        "MP.RT.EL1+dsb+dsb-tlbiis-dsb+dsb+dsb-isb",
        Forbidden,
        Mapped,
        &[
            &[Map(X, INVALID), Dsb, Set(BATON, 1)],
            &[Reads(BATON, 1), Dsb, TlbiIs(X), Dsb, Set(BATON, 2)],
            &[Reads(BATON, 2), Dsb, Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Dsb, Isb, Finds(X, OLD)],
        ],
    ),
    litmus(
        "MP.RT.EL1+dsb+dsb-tlbi-dsb+dsb+dsb-isb",
        Allowed,
        Mapped,
        &[
            &[Map(X, INVALID), Dsb, Set(BATON, 1)],
            &[Reads(BATON, 1), Dsb, Tlbi(X), Dsb, Set(BATON, 2)],
            &[Reads(BATON, 2), Dsb, Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Dsb, Isb, Finds(X, OLD)],
        ],
    ),
    litmus(
        "RBS+dsb-tlbiis-dsb",
        Forbidden,
        Mapped,
        &[&[Map(X, INVALID), Dsb, TlbiIs(X), Dsb, Set(FRAME, 2)], &[Loads(2)]],
    ),
    litmus(
        "S.RT.ro+dsb-tlbiis-dsb+dsb-isb",
        Forbidden,
        Mapped,
        &[
            &[Map(X, READ_ONLY), Dsb, TlbiIs(X), Dsb, Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Dsb, Isb, Writes(X)],
        ],
    ),
];

/// One takes a page away, and has another drop it: by a flag that the other polls, as published.
pub(crate) const SHOOTDOWN: &[Litmus] = &[litmus(
    "MP.RT.EL1+dsb-shootdown-dsb+dsb-isb",
    Forbidden,
    Mapped,
    &[
        &[Map(X, INVALID), Dsb, Set(REQUEST, 1), Reads(REQUEST, 2), Dsb, Set(MESSAGE, 1)],
        &[
            Reads(REQUEST, 1),
            // The handler.
            Svc,
            Dsb,
            Tlbi(X),
            Dsb,
            Isb,
            Eret,
            Set(REQUEST, 2),
            Reads(MESSAGE, 1),
            Dsb,
            Isb,
            Finds(X, OLD),
        ],
    ],
)];

/// The same by an interrupt, as kernels do it; and with things left out. The verdicts are ours.
pub(crate) const SHOOTDOWN_BY_INTERRUPT: &[Litmus] = &[
    litmus("by an interrupt", Forbidden, Mapped, BY_INTERRUPT).handling(&[
        Dsb,
        Tlbi(X),
        Dsb,
        Set(REQUEST, 2),
    ]),
    litmus("whose handler drops nothing", Allowed, Mapped, BY_INTERRUPT)
        .handling(&[Dsb, Set(REQUEST, 2)]),
    // The reader has no DSB of its own: that would complete what the handler has issued.
    litmus(
        "whose handler does not wait for what it drops",
        Allowed,
        Mapped,
        &[
            &[Map(X, INVALID), Dsb, Interrupts(1), Reads(REQUEST, 2), Dsb, Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Isb, Finds(X, OLD)],
        ],
    )
    .handling(&[Dsb, Tlbi(X), Set(REQUEST, 2)]),
    litmus(
        "whose sender does not wait",
        Allowed,
        Mapped,
        &[
            &[Map(X, INVALID), Dsb, Interrupts(1), Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Dsb, Isb, Finds(X, OLD)],
        ],
    )
    .handling(&[Dsb, Tlbi(X), Dsb, Set(REQUEST, 2)]),
    litmus(
        "that comes before the page is taken",
        Allowed,
        Mapped,
        &[
            &[Interrupts(1), Reads(REQUEST, 2), Map(X, INVALID), Dsb, Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Dsb, Isb, Finds(X, OLD)],
        ],
    )
    .handling(&[Dsb, Tlbi(X), Dsb, Set(REQUEST, 2)]),
];

const BY_INTERRUPT: &[&[Instruction]] = &[
    &[Map(X, INVALID), Dsb, Interrupts(1), Reads(REQUEST, 2), Dsb, Set(MESSAGE, 1)],
    &[Reads(MESSAGE, 1), Dsb, Isb, Finds(X, OLD)],
];

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

/// What a CPU that takes a page away finds there, and what another does that knows of it.
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
    .too_hostile("its twin CoWinvT.EL1+dsb-tlbi-dsb is allowed"),
    litmus(
        "CoRpteT.EL1+dsb-tlbi-dsb-isb",
        Forbidden,
        Mapped,
        &[&[Map(X, INVALID)], &[ReadsEntry(X, INVALID), Dsb, Tlbi(X), Dsb, Isb, Finds(X, OLD)]],
    ),
];

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
    .too_kind("loads of data are not early"),
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

/// A page goes from one frame to another by way of nothing.
pub(crate) const BREAK_BEFORE_MAKE: &[Litmus] = &[
    litmus(
        "BBM+dsb-tlbiis-dsb",
        Allowed,
        Mapped,
        &[&[Map(X, INVALID), Dsb, TlbiIs(X), Dsb, Map(X, NEW)], &[Finds(X, OLD)]],
    ),
    litmus(
        "BBM.Tf+dsb-tlbiis-dsb",
        Allowed,
        Mapped,
        &[&[Map(X, INVALID), Dsb, TlbiIs(X), Dsb, Map(X, NEW)], &[Faults(X)]],
    ),
    litmus(
        "MP.BBM1+dsb-tlbiis-dsb-dsb+dsb-isb",
        Forbidden,
        Mapped,
        &[
            &[Map(X, INVALID), Dsb, TlbiIs(X), Dsb, Map(X, NEW), Dsb, Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Dsb, Isb, Misses(X, NEW)],
        ],
    ),
];

/// Invalidations of an address space's number.
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
