//! Shootdowns: a page is unmapped on one CPU, and another CPU must not use it any more.

use crate::Verdict::{Allowed, Forbidden};
use crate::program::Instruction::*;
use crate::program::Start::*;
use crate::program::{
    BATON, FRAME, INVALID, Instruction, MESSAGE, NEW, OLD, READ_ONLY, REQUEST, X,
};
use crate::{Litmus, litmus};

/// One CPU unmaps a page and invalidates it everywhere. Another CPU is signalled, and accesses it.
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
    .too_lenient(
        "the invalidation waits for accesses that use the entry: see the head of this test",
    )
    .herd(Forbidden),
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
    // Ours: a reader's DSB does not complete an invalidation that the writer has issued.
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

/// One CPU unmaps a page, and makes another invalidate it by a flag that the other polls, as
/// published.
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

/// The same shootdown by an interrupt, as kernels do it, and with parts left out. The verdicts are
/// ours.
pub(crate) const SHOOTDOWN_BY_INTERRUPT: &[Litmus] = &[
    litmus("handler", Forbidden, Mapped, BY_INTERRUPT).with_handler(&[
        Dsb,
        Tlbi(X),
        Dsb,
        Set(REQUEST, 2),
    ]),
    // A CPU that returns from an exception has synchronised.
    litmus(
        "handler, and its return is enough for the reader",
        Forbidden,
        Mapped,
        &[
            &[Map(X, INVALID), Dsb, Interrupts(1), Reads(REQUEST, 2), Dsb, Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Finds(X, OLD)],
        ],
    )
    .with_handler(&[Dsb, Tlbi(X), Dsb, Set(REQUEST, 2)]),
    litmus("handler that invalidates nothing", Allowed, Mapped, BY_INTERRUPT)
        .with_handler(&[Dsb, Set(REQUEST, 2)]),
    // The reader has no DSB of its own, which would complete the invalidation that the handler has
    // issued.
    litmus(
        "handler that does not wait for its invalidation",
        Allowed,
        Mapped,
        &[
            &[Map(X, INVALID), Dsb, Interrupts(1), Reads(REQUEST, 2), Dsb, Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Isb, Finds(X, OLD)],
        ],
    )
    .with_handler(&[Dsb, Tlbi(X), Set(REQUEST, 2)]),
    litmus(
        "handler, and a sender that does not wait",
        Allowed,
        Mapped,
        &[
            &[Map(X, INVALID), Dsb, Interrupts(1), Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Dsb, Isb, Finds(X, OLD)],
        ],
    )
    .with_handler(&[Dsb, Tlbi(X), Dsb, Set(REQUEST, 2)]),
    litmus(
        "handler that runs before the page is unmapped",
        Allowed,
        Mapped,
        &[
            &[Interrupts(1), Reads(REQUEST, 2), Map(X, INVALID), Dsb, Set(MESSAGE, 1)],
            &[Reads(MESSAGE, 1), Dsb, Isb, Finds(X, OLD)],
        ],
    )
    .with_handler(&[Dsb, Tlbi(X), Dsb, Set(REQUEST, 2)]),
];

const BY_INTERRUPT: &[&[Instruction]] = &[
    &[Map(X, INVALID), Dsb, Interrupts(1), Reads(REQUEST, 2), Dsb, Set(MESSAGE, 1)],
    &[Reads(MESSAGE, 1), Dsb, Isb, Finds(X, OLD)],
];

/// A page changes its frame by break-before-make.
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
