"""The mechanisms of the engine, each with its state, its steps and its invariant."""

from __future__ import annotations

from ..system import System
from . import away, batches, bell, broadcasts, devices, early, lifetimes, log, mask, online, tags, targeting, waiting, walkers

SHARED_TAGS = "tags that CPUs share have no model yet; "
UNMODELLED: dict[str, str] = {
    "AsidAcquire": SHARED_TAGS + "the handshake of a new ASID with a flush",
    "AsidRelease": SHARED_TAGS + "four CPUs take part, and the axiomatic checker shows the need",
    "BroadcastAsidAcquire": SHARED_TAGS + "the other end of `AsidRelease`",
    "ActiveTagRelease": SHARED_TAGS + "which ASIDs a CPU reserves",
    "ActiveTagAcquire": SHARED_TAGS + "the other end of `ActiveTagRelease`",
    "ChosenTagAcquire": SHARED_TAGS + "as `AsidRelease`",
    "PinFence": SHARED_TAGS + "the handshake of a pin with a rollover",
    "ReserveFence": SHARED_TAGS + "the other end of `PinFence`",
    "ListFence": SHARED_TAGS + "the list of unavailable ASIDs",
    "ListRelease": SHARED_TAGS + "the list of unavailable ASIDs",
    "ListAcquire": SHARED_TAGS + "the list of unavailable ASIDs",
    "TagLockAcquire": SHARED_TAGS + "a lock, as every lock",
    "TagLockRelease": SHARED_TAGS + "a lock, as every lock",
    "ReserveTags": SHARED_TAGS + "the rollover",
    "FlushOnRollover": SHARED_TAGS + "the rollover",
}
"""The rules that no mechanism names, each with the reason."""


def build_all() -> list[System]:
    return [
        targeting.build(), bell.build(), waiting.build(), log.build(), log.build_ranges(), walkers.build(), mask.build(), lifetimes.build(), lifetimes.build_list(),
        online.build(), away.build(), devices.build(), devices.build_pins(), batches.build(), broadcasts.build(), broadcasts.build_gaps(),
        early.build(), tags.build(), tags.build_renamed(),
    ]
