//! Shootdowns: a page is taken away on one CPU, and another is not to use it any more.

use crate::Verdict::{Allowed, Forbidden};
use crate::program::Instruction::*;
use crate::program::Start::*;
use crate::program::{
    BATON, FRAME, INVALID, Instruction, MESSAGE, NEW, OLD, READ_ONLY, REQUEST, X,
};
use crate::{Litmus, litmus};

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
    .too_kind("the invalidation waits for accesses that use what it takes: see the beginning")
    .in_herd(Forbidden),
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
    // Ours: a reader's DSB completes nothing that the writer has issued.
    litmus(
        "MP.RT.EL1+dsb-tlbiis-dmb+dsb-isb",
        Allowed,
        Mapped,
        &[
            &[Map(X, INVALID), Dsb, TlbiIs(X), DmbSt, Set(MESSAGE, 1)],
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
    // Who returns from an exception has synchronised.
    litmus(
        "whose return is enough for the reader",
        Forbidden,
        Mapped,
        &[
            &[Map(X, INVALID), Dsb, Interrupts(1), Reads(REQUEST, 2), Dsb, Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Finds(X, OLD)],
        ],
    )
    .handling(&[Dsb, Tlbi(X), Dsb, Set(REQUEST, 2)]),
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
